"""Closing runs: each from its own files, whatever another run's files or its disk do meanwhile."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from pathlib import Path

import pytest
import samples

from stagexec.delivery import artifacts, closing, hands, verify
from stagexec.delivery.closing import AT_EXIT, Closer
from stagexec.record import clock, live, pauses
from stagexec.record.run import Run

PATIENCE_S = 60.0
STAGES = ["queue_wait", "delivery_commit"]
SILENT = "no answer from the disk within 0.5 s"


class Disk:
    """Files of these names are looked at for ever, until `revive`."""

    def __init__(self):
        self.dead = set()
        self.asked = threading.Event()
        self.alive = threading.Event()

    def stat(self, path):
        if path.name in self.dead:
            self.asked.set()
            self.alive.wait()
        return os.stat(path)


@pytest.fixture
def disk(monkeypatch):
    one = Disk()
    monkeypatch.setattr(verify, "_stamp", one.stat)
    yield one
    one.alive.set()


@pytest.fixture
def events(monkeypatch):
    """All events of runs, in the order in which they were filed."""
    filed = []

    def keep(of, event_type, **fields):
        filed.append({"run": of, "type": event_type, **fields})

    monkeypatch.setattr(live, "journal_event", keep)
    return filed


@pytest.fixture
def closer(tmp_path, monkeypatch, events, disk):
    monkeypatch.setattr(hands, "SILENCE_S", 0.5)
    monkeypatch.setattr(hands, "SUSPECT_S", 0.25)
    monkeypatch.setattr(hands, "TICK_S", 0.02)
    monkeypatch.setattr(closing, "current", None)
    monkeypatch.setattr(live, "finishing", {})
    one = Closer({"output": str(tmp_path)}.get)
    one.start()
    return one


@pytest.fixture
def picture(tmp_path):
    def make(name):
        samples.image(tmp_path / name)
        return name

    return make


def executed(names, node_id="save", now=True, **about):
    """A run whose node delivered files of these names, and its history, handed to the closer."""
    run = Run("prompt", clock.now_ns(), clock.now_ns)
    if now:
        run.executed_nodes.add(node_id)
    for name, value in about.items():
        setattr(run, name, value)
    run.ledger.switch("delivery_commit", "verify")
    live.finishing[run.run_id] = run
    entries = [{"filename": name, "subfolder": "", "type": "output"} for name in names]
    live.after_execution(run, {"outputs": {node_id: {"images": entries}} if names else {}})
    return run


def rows(events, run):
    """(name, state, reason) of the run's artifacts, in the order in which they were filed."""
    return [
        (Path(one["artifact"]).name, one["state"], one["reason"])
        for one in events
        if one["run"] is run and one["type"] == "artifact"
    ]


def end_of(events, run):
    """The run's one end, which nothing of it follows."""
    mine = [one for one in events if one["run"] is run]
    assert [one["type"] for one in mine].count("run_closed") == 1
    assert mine[-1]["type"] == "run_closed"
    return mine[-1]["outcome"], mine[-1]["cause"]


def is_exact(run):
    """Do the run's segments lie end to end from its acceptance to its end?"""
    starts = [open_[2] for open_, _ in run.ledger.pending]
    ends = [end for _, end in run.ledger.pending]
    return starts == [run.accepted_ns, *ends[:-1]] and ends[-1] == run.ended_ns


def wait(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_run_is_closed_although_the_one_before_it_hangs(closer, disk, events, picture, monkeypatch):
    monkeypatch.setattr(hands, "SILENCE_S", 1000.0)
    disk.dead.add("dead.png")
    first = executed([picture("dead.png")])
    assert disk.asked.wait(PATIENCE_S)
    second = executed([picture("good.png")])
    wait(lambda: second.filed)
    assert end_of(events, second) == ("success", None)
    assert not first.filed


def test_a_file_that_gives_no_answer_is_unverified_and_costs_its_run_no_other_file(
    closer, disk, events, picture
):
    disk.dead.add("b.png")
    run = executed([picture("a.png"), picture("b.png"), picture("c.png")])
    assert closer.drain(PATIENCE_S) == []
    assert rows(events, run) == [
        ("a.png", "verified", None),
        ("b.png", "unverified", SILENT),
        ("c.png", "verified", None),
    ]
    assert end_of(events, run) == ("success_unverified", None)
    assert is_exact(run)
    disk.alive.set()
    wait(lambda: not closer._hands._given_up)
    assert end_of(events, run) == ("success_unverified", None)


def test_a_failed_run_whose_disk_hangs_is_failed_and_its_leftovers_are_not_looked_for(
    closer, events, monkeypatch
):
    answer = threading.Event()

    def scandir(_):
        answer.wait()
        raise FileNotFoundError

    monkeypatch.setattr(artifacts.os, "scandir", scandir)
    error = {"cause": "disk_full", "stage": "native_materialize", "visit": 1, "message": None}
    run = executed([], error=error, save_folders=[("output", "x", clock.now_ns())])
    assert closer.drain(PATIENCE_S) == []
    assert end_of(events, run) == ("failed", "disk_full")
    answer.set()
    wait(lambda: not closer._hands._given_up)


def test_a_hanging_look_for_what_a_viewer_names_leaves_it_in_the_first_folder(closer, events, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(closing, "exists", lambda _: answer.wait())
    run = Run("prompt", clock.now_ns(), clock.now_ns)
    run.executed_nodes.add("view")
    run.ledger.switch("delivery_commit", "verify")
    live.after_execution(run, {"outputs": {"view": {"result": ["mesh.glb"]}}})
    assert closer.drain(PATIENCE_S) == []
    assert [(name, state) for name, state, _ in rows(events, run)] == [("mesh.glb", "missing")]
    answer.set()
    wait(lambda: not closer._hands._given_up)


def test_a_profile_that_hangs_while_it_is_written_does_not_keep_its_run_open(closer, events, monkeypatch):
    class Instruments:
        def settle(self, file):
            file(run, "memory", source="loop")
            answer.wait()
            file(run, "artifact", artifact="trace.json", state="unverified", reason="late")
            done.set()

    monkeypatch.setattr(closing, "SETTLE_S", 0.2)
    answer, done = threading.Event(), threading.Event()
    run = executed([], instruments=Instruments())
    assert closer.drain(PATIENCE_S) == []
    assert end_of(events, run) == ("success_empty", None)
    answer.set()
    assert done.wait(PATIENCE_S)
    assert [one["type"] for one in events] == ["memory", "run_closed"]
    assert is_exact(run)


def test_a_fault_in_one_check_costs_that_file_only(closer, events, picture, monkeypatch, faults_expected):
    check = closer.verifier.check

    def odd(path):
        if path.name == "odd.png":
            raise AssertionError("a fault of ours")
        return check(path)

    monkeypatch.setattr(closer.verifier, "check", odd)
    run = executed([picture("odd.png"), picture("good.png")])
    assert closer.drain(PATIENCE_S) == []
    assert [state for _, state, _ in rows(events, run)] == ["unverified", "verified"]
    assert end_of(events, run) == ("success_unverified", None)
    assert [where for where, _ in faults_expected] == ["Hands.work"]


def test_a_run_whose_history_cannot_be_read_is_closed(closer, events, monkeypatch, faults_expected):
    def odd(*_):
        raise RuntimeError("odd")

    monkeypatch.setattr(artifacts, "from_history", odd)
    run = executed(["a.png"])
    assert closer.drain(PATIENCE_S) == []
    assert end_of(events, run) == ("success_unverified", None)
    assert is_exact(run)


@pytest.mark.parametrize("known_late", [True, False])
def test_a_file_made_from_nan_is_so_in_a_later_run_that_is_done_first(
    closer, disk, events, picture, monkeypatch, known_late
):
    looked = threading.Event()

    def finite(tensors):
        if tensors == ["nan"]:
            looked.wait(PATIENCE_S)
        return tensors != ["nan"]

    monkeypatch.setattr(artifacts, "finite", finite)
    name = picture("nan.png")
    if not known_late:
        looked.set()
    hang = threading.Event()
    check = closer.verifier.check

    def slow_for_the_first(path):
        if not hang.is_set():
            hang.set()
            time.sleep(0.1)
        return check(path)

    monkeypatch.setattr(closer.verifier, "check", slow_for_the_first)
    tensors = type("Tensors", (), {"saved": {"save": ["nan"]}, "made": [], "clear": lambda self: None})()
    first = executed([name], tensors=tensors)
    second = executed([name], now=False)
    threading.Timer(0.1, looked.set).start()
    assert closer.drain(PATIENCE_S) == []
    for run in (first, second):
        assert [state for _, state, _ in rows(events, run)] == ["nonfinite"]
        assert end_of(events, run) == ("failed", "artifact_nonfinite")
        assert is_exact(run)
    waited_ms = 80 if known_late else 0  # for the first run's tensors, looked at after 100 ms
    assert second.held_ns >= waited_ms * 1_000_000


def test_a_file_that_was_never_there_marks_no_later_file_of_its_name(closer, events, picture, monkeypatch):
    monkeypatch.setattr(artifacts, "finite", lambda tensors: tensors != ["nan"])
    tensors = type("Tensors", (), {"saved": {"save": ["nan"]}, "made": [], "clear": lambda self: None})()
    executed(["same.png"], tensors=tensors)
    assert closer.drain(PATIENCE_S) == []
    later = executed([picture("same.png")], now=False)
    assert closer.drain(PATIENCE_S) == []
    assert end_of(events, later) == ("success", None)


def test_artifacts_are_filed_in_the_order_in_which_history_names_them(closer, events, picture, monkeypatch):
    monkeypatch.setattr(hands.os, "cpu_count", lambda: 4)
    names = [picture(f"{number:02}.png") for number in range(40)]
    check = closer.verifier.check

    def uneven(path):
        time.sleep(0.02 * (int(path.stem) % 3))
        return check(path)

    monkeypatch.setattr(closer.verifier, "check", uneven)
    run = executed(names)
    assert closer.drain(PATIENCE_S) == []
    assert [name for name, _, _ in rows(events, run)] == names


def test_runs_closed_side_by_side_stay_exact_under_collections_and_waiting(closer, picture, monkeypatch):
    monkeypatch.setattr(hands, "MOST_HANDS", 2)
    names = [picture(f"{number}.png") for number in range(4)]
    check = closer.verifier.check
    monkeypatch.setattr(closer.verifier, "check", lambda path: time.sleep(0.003) or check(path))
    over = threading.Event()

    def collect():
        while not over.wait(0.01):
            gc.collect()

    gc.freeze()  # what the other tests have left would make each collection long
    pauses.watch()
    collector = threading.Thread(target=collect)
    collector.start()
    try:
        runs = [executed(names) for _ in range(20)]
        assert closer.drain(PATIENCE_S) == []
    finally:
        over.set()
        collector.join()
        gc.unfreeze()
        gc.callbacks.remove(pauses._pause)
    assert all(is_exact(run) for run in runs)
    # 20 runs of 4 checks on 2 hands: each but the first ones waited, and was stopped, longer than it worked.
    assert all([open_[0] for open_, _ in run.ledger.pending] == STAGES for run in runs)
    worked = [run.ended_ns - run.ledger.pending[-1][0][2] for run in runs]
    assert sum(run.held_ns for run in runs) > sum(worked)


def test_what_is_left_at_the_end_of_the_process_is_closed_from_what_is_known(
    closer, disk, events, picture, monkeypatch
):
    monkeypatch.setattr(hands, "SILENCE_S", 1000.0)
    disk.dead.add("dead.png")
    left = executed([picture("good.png"), picture("dead.png")])
    assert disk.asked.wait(PATIENCE_S)
    done = executed([picture("done.png")])
    assert closing.at_exit(timeout_s=0.3) == [left]
    assert end_of(events, done) == ("success", None)
    assert end_of(events, left) == ("success_unverified", None)
    assert rows(events, left)[-1] == ("dead.png", "unverified", AT_EXIT)
    assert is_exact(left)
    assert not closer.close_unverified(left, AT_EXIT)
    disk.alive.set()
    wait(lambda: not closer._hands._given_up)
    assert end_of(events, left) == ("success_unverified", None)


def test_without_a_closer_the_end_of_the_process_waits_for_nothing(monkeypatch):
    monkeypatch.setattr(closing, "current", None)
    assert closing.at_exit() == []


def test_one_file_that_two_nodes_name_is_read_once(closer, events, picture, monkeypatch):
    read = []
    check = closer.verifier.check
    monkeypatch.setattr(closer.verifier, "check", lambda path: read.append(path.name) or check(path))
    run = Run("prompt", clock.now_ns(), clock.now_ns)
    run.executed_nodes |= {"a", "b"}
    entry = {"filename": picture("x.png"), "subfolder": "", "type": "output"}
    live.after_execution(run, {"outputs": {node: {"images": [entry]} for node in "ab"}})
    assert closer.drain(PATIENCE_S) == []
    assert read == ["x.png"]
    assert [one["node_id"] for one in events if one["type"] == "artifact"] == ["a", "b"]


def test_closing_on_the_callers_thread_says_the_same(closer, events, picture):
    run = Run("prompt", clock.now_ns(), clock.now_ns)
    run.executed_nodes.add("save")
    entries = [{"filename": picture("x.png"), "subfolder": "", "type": "output"}]
    closer.close(run, {"outputs": {"save": {"images": entries}}})
    assert rows(events, run) == [("x.png", "verified", None)]
    assert end_of(events, run) == ("success", None)


def test_a_run_is_ended_once_by_whatever_comes_first(events):
    ticks = itertools.count(0, 10)
    run = Run("prompt", 0, lambda: next(ticks))
    told = []
    live.closed_callbacks.append(lambda *_: told.append(1))
    live.close(run, "success", None, None)
    live.close(run, "failed", "oom", None, settle=False)
    assert end_of(events, run) == ("success", None)
    assert told == [1]
    assert events[-1]["finished_ns"] == run.ended_ns
