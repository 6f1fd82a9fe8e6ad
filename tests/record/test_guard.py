"""A fault in any line of our bookkeeping changes nothing that the host or its clients see."""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import pkgutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import stagexec
from stagexec.record import guard, ledger, live
from stagexec.record.guard import GUARDED, guarded, note
from tests.executor.tour import travel

# All that lives inside the host's process, so that every guarded function has registered itself.
for one in pkgutil.walk_packages(stagexec.__path__, "stagexec."):
    if one.name.split(".")[1] in ("delivery", "executor", "host", "record"):
        importlib.import_module(one.name)

TOURED = (
    "stagexec.delivery.closing",
    "stagexec.executor.",
    "stagexec.host.hooks",
    "stagexec.host.node_stage",
    "stagexec.host.probes",
    "stagexec.host.restart",
    "stagexec.host.visits",
    "stagexec.host.wrap",
    "stagexec.public",
    "stagexec.record.live",
    "stagexec.record.run",
)
"""Where the functions are that a run calls on every host; others have tests of their own."""

ELSEWHERE = {
    **dict.fromkeys(
        (
            "stagexec.executor.asked.Node.ended",
            "stagexec.executor.asked.Question.ended",
            "stagexec.executor.asked._ask",
            "stagexec.executor.asked._wait",
            "stagexec.executor.asked.tell_in_run",
            "stagexec.executor.asked.watch_handlers",
            "stagexec.executor.asked.watch_node",
        ),
        "the fake host asks its classes nothing; test_asked has their faults",
    ),
    "stagexec.executor.leftover.Began.call": "no node there hands work to a thread; test_aio has its fault",
    "stagexec.executor.garbage._set_up": "once in a process; test_garbage has its fault",
    "stagexec.executor.outlet.cork": "the fake host has no such server; test_outlet has its fault",
    "stagexec.executor.outlet.uncork": "the same",
    "stagexec.executor.progress.CoalescedProgress._overdue": "a timer's body; nothing waits for its result",
    "stagexec.executor.wire.tell_of_end": "the fake host has no such server; test_wire has its fault",
    "stagexec.host.restart._can_start": "an exec ends the process; test_restart has its fault",
    "stagexec.host.restart._follows_us": "the same",
    "stagexec.host.restart.ours_started": "the same",
    "stagexec.record.live.cancel_requested": "a node interrupts there; test_interrupts has its fault",
    "stagexec.record.run.Watched.file": "nothing there takes long enough; test_watching has its fault",
    "stagexec.record.live.lose_waiting": "when the worker is dead; host_unit/test_worker has its fault",
    "stagexec.executor.lane.VisitRecord.served": "no prompt of the tour comes twice; see host/test_delivered",
    "stagexec.host.probes.written_image": "the fake host saves no picture; see host/test_delivered",
    "stagexec.host.probes.written_tensors": "the same",
    "stagexec.record.run.Run.writes": "the same",
    "stagexec.host.hooks.Hooks._install_late": "called when the host makes its routes, before any run",
}
"""Those among them that the tour does not reach, and why that is enough."""

NAMES = sorted(name for name in GUARDED if name.startswith(TOURED) and name not in ELSEWHERE)

UNREACHED = "the tour never calls it: extend tests/executor/tour.py, or name it in ELSEWHERE with a reason"


CONSEQUENCES = {"stagexec.executor.aio.watch": "Ledger.leave"}
"""Without it async tasks are taken for the main lane: they then leave stages out of order, which is noted."""


@pytest.fixture
def undisturbed(tmp_path: Path) -> Any:
    """What the host and its clients see of a tour without faults."""
    seen = travel(tmp_path / "undisturbed")
    assert live.journal is not None
    live.journal.stop("tour over")
    live.journal = live.run = guard.on_fault = None
    return seen


class Injected(Exception):
    pass


@pytest.mark.parametrize("name", NAMES)
def test_one_fault_is_noted_once_and_changes_nothing(
    name: str, undisturbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults_expected
) -> None:
    function = GUARDED[name]
    body, calls = function.body, itertools.count()

    def faulty(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 0:
            raise Injected(name)
        return body(*args, **kwargs)

    monkeypatch.setattr(function, "body", faulty)
    assert travel(tmp_path / "disturbed") == undisturbed
    assert faults_expected, UNREACHED
    noted = [one for one in faults_expected if one[0] != CONSEQUENCES.get(name)]
    assert noted == [(function.__qualname__, f"Injected: {name}")]


@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_always_faults_changes_nothing_either(
    name: str, undisturbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults_expected
) -> None:
    def faulty(*_args: Any, **_kwargs: Any) -> Any:
        raise Injected(name)

    monkeypatch.setattr(GUARDED[name], "body", faulty)
    assert travel(tmp_path / "disturbed") == undisturbed
    assert faults_expected, UNREACHED
    noted = {one for one in faults_expected if one[0] != CONSEQUENCES.get(name)}
    assert noted == {(GUARDED[name].__qualname__, f"Injected: {name}")}


def test_everything_guarded_at_once_may_fault(
    undisturbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults_expected
) -> None:
    def faulty(*_args: Any, **_kwargs: Any) -> Any:
        raise Injected

    for function in GUARDED.values():
        monkeypatch.setattr(function, "body", faulty)
    assert travel(tmp_path / "disturbed") == undisturbed
    assert faults_expected


@pytest.mark.parametrize("every", [1, 2, 3, 7, 20, 61])
def test_a_clock_that_fails_the_ledger_changes_nothing_and_the_partition_holds(
    every: int, undisturbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults_expected
) -> None:
    readings = itertools.count(1)

    class Faulty(ledger.Ledger):
        def __init__(self, stage: str, start_ns: int, clock: Any) -> None:
            def sometimes() -> int:
                if next(readings) % every == 0:
                    raise Injected
                now: int = clock()
                return now

            super().__init__(stage, start_ns, sometimes)

    monkeypatch.setattr("stagexec.record.run.Ledger", Faulty)
    assert travel(tmp_path / "disturbed") == undisturbed
    assert {where for where, _ in faults_expected} <= {
        f"Ledger.{do}" for do in ("enter", "leave", "switch", "carve")
    }
    assert faults_expected
    assert live.journal is not None
    live.journal.stop("tour over")
    assert_every_run_is_a_partition(tmp_path / "disturbed")


def assert_every_run_is_a_partition(folder: Path) -> None:
    (file,) = folder.glob("journal/*/*.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    closed = [one for one in events if one["event_type"] == "run_closed"]
    assert len(closed) > 10
    for end in closed:
        mine = [one for one in events if one["run_id"] == end["run_id"] and one["event_type"] == "segments"]
        starts = [at for one in mine for at in one["start_ns"]]
        ends = [at for one in mine for at in one["end_ns"]]
        assert (starts[0], ends[-1], len(starts)) == (
            end["accepted_ns"],
            end["finished_ns"],
            end["segment_count"],
        )
        assert ends[:-1] == starts[1:]
        assert all(start <= end for start, end in pairwise([*starts, ends[-1]]))


# ---- the guard itself -------------------------------------------------------------------------------


def test_a_fault_is_logged_once_per_place_and_kept_each_time(
    faults_expected, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "stagexec")
    for _ in range(3):
        note("somewhere", ValueError("x"))
    note("elsewhere", ValueError("y"))
    assert [where for where, _ in faults_expected] == ["somewhere"] * 3 + ["elsewhere"]
    assert [one.getMessage().split("(")[1].split(")")[0] for one in caplog.records] == [
        "somewhere",
        "elsewhere",
    ]
    assert "The run is not affected" in caplog.text


def test_faults_do_not_grow_without_end(faults_expected, monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(_where: str, _error: BaseException) -> None:
        raise RuntimeError("filing faults too")

    monkeypatch.setattr(guard, "on_fault", worse)
    for _ in range(guard.MAX_FAULTS):
        note("somewhere", ValueError("x"))
    assert len(faults_expected) == guard.MAX_FAULTS


def test_filing_a_fault_may_fault_without_filing_that_one_too(
    faults_expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    filed = []

    @guarded
    def inner() -> None:
        raise ValueError("inner")

    def file(where: str, error: BaseException) -> None:
        filed.append((where, str(error)))
        inner()

    monkeypatch.setattr(guard, "on_fault", file)
    note("somewhere", ValueError("outer"))
    assert filed == [("somewhere", "outer")]
    assert [text for _, text in faults_expected] == ["ValueError: outer", "ValueError: inner"]
    for name in [name for name in GUARDED if "<locals>" in name]:
        del GUARDED[name]


def test_an_error_whose_text_cannot_be_made_is_noted_by_its_kind(faults_expected) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    note("somewhere", Silent())
    assert faults_expected == [("somewhere", "Silent (its text raised RuntimeError)")]


def test_what_is_no_error_passes_the_guard() -> None:
    @guarded
    def leaving() -> None:
        raise SystemExit(3)

    del GUARDED[f"{leaving.__module__}.{leaving.__qualname__}"]
    with pytest.raises(SystemExit):
        leaving()
