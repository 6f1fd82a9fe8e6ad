"""The profile of one run: armed by a file, recorded by torch, its files artifacts of the run."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from stagexec.cli import command
from stagexec.reading import rows, store
from stagexec.record import guard, live, paths
from stagexec.record.profile import Profile, compile_counters
from stagexec.record.run import Run
from tests.device.conftest import PROCESS
from tests.executor.tour import travel


@pytest.fixture(autouse=True)
def no_profiler_is_left() -> Iterator[None]:
    """Torch dies at the interpreter's exit when a profiler still runs, as after a fault put into ours."""
    yield
    if torch.autograd._profiler_enabled():
        torch.autograd._disable_profiler()


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A baseline process on the CPU."""
    monkeypatch.setattr(live, "device_clock", None)
    monkeypatch.setattr(live, "device_kind", lambda: "cpu")
    monkeypatch.setattr(live, "unseen", None)
    live.begin_process(tmp_path, **{**PROCESS, "timing": "baseline"})
    return tmp_path


def work(ledger: Path, prompt_id: str = "prompt") -> dict[str, Any]:
    """One run from acceptance to its end, with a matrix product in `sampling`."""
    live.accept(prompt_id, {"nodes": ["3"], "classes": ["KSampler"], "selected_outputs": ["3"]})
    run = live.start(prompt_id)
    assert run is not None
    run.next_visit("3", "KSampler")
    depth = run.enter("sampling", "step")
    torch.ones(64, 64) @ torch.ones(64, 64)
    run.leave(depth)
    run.end_visit()
    live.finish(run, {"host_status": "success"}, {})
    assert live.journal is not None
    assert live.journal.flush()
    return rows.detail(store.load(ledger).find(run.run_id))


def arm(ledger: Path, *words: str) -> Any:
    return CliRunner().invoke(command, ["profile", "--ledger", str(ledger), *words])


def test_an_armed_run_has_a_trace_with_ranges_named_run_stage_node(ledger: Path) -> None:
    assert (
        arm(ledger, "--next").output
        == f"The next run of a server with this ledger will be profiled: {ledger}\n"
    )
    shown = work(ledger)
    assert shown["timing"] == "profile"
    (trace,) = shown["artifacts"]
    assert trace["path"] == str(ledger / "profiles" / shown["run_id"] / "trace.json")
    assert (trace["media"], trace["state"]) == ("profile", "unverified")
    names = [one.get("name") for one in json.loads(Path(trace["path"]).read_text())["traceEvents"]]
    assert f"{shown['run_id'][:8]}/sampling/3" in names
    assert "aten::mm" in names


def test_the_time_of_the_profile_itself_is_in_no_run_and_named_in_the_wait_for_it(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm(ledger, "--next")
    seconds = {"start": 0.3, "stop": 0.4, "write": 0.5}
    for name, took_s in seconds.items():
        plain = getattr(Profile, name)

        def slow(self: Profile, plain: Any = plain, took_s: float = took_s) -> Any:
            time.sleep(took_s)
            return plain(self)

        monkeypatch.setattr(Profile, name, slow)
    shown = work(ledger)
    waited = shown["stages"]["queue_wait"]
    assert shown["total_ns"] - waited < 300_000_000
    assert shown["held_ns"] >= 390_000_000
    (by,) = shown["delayed_by"]
    assert (by["what"], by["after_run"]) == ("profile", None)
    assert 290_000_000 <= by["ns"] <= waited
    (after,) = shown["after_run"]
    assert (after["what"], after["ns"] >= 390_000_000) == ("profile", True)


def test_arming_counts_once_and_can_be_taken_back(ledger: Path) -> None:
    arm(ledger, "--next")
    assert [work(ledger, str(n))["timing"] for n in range(2)] == ["profile", "baseline"]
    arm(ledger, "--next")
    assert arm(ledger, "--cancel").output == f"No run is armed: {ledger}\n"
    assert work(ledger, "third")["timing"] == "baseline"


def test_a_run_that_waits_already_when_it_is_armed_is_the_next(ledger: Path) -> None:
    live.accept("waits", {})
    arm(ledger, "--next")
    live.accept("later", {})
    for prompt_id, timing in (("waits", "profile"), ("later", "baseline")):
        run = live.start(prompt_id)
        assert run is not None
        assert run.timing == timing
        live.finish(run, {"host_status": "success"}, {})


def test_accepting_a_prompt_looks_at_no_file(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    plain = paths.profile_flag

    def flag(folder: Path) -> Path:
        looks.append(threading.get_ident())
        return plain(folder)

    monkeypatch.setattr(paths, "profile_flag", flag)
    server = threading.Thread(target=live.accept, args=("prompt", {}))
    server.start()
    server.join()
    assert looks == []
    run = live.start("prompt")
    assert run is not None
    assert looks == [threading.get_ident()]


def test_contradicting_options_are_the_users_mistake(ledger: Path) -> None:
    done = arm(ledger, "--next", "--cancel")
    assert (done.exit_code, done.output.count("\n")) == (2, 1)


def test_an_arm_that_another_process_took_is_not_ours(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arm(ledger, "--next")

    def gone(self: Path, missing_ok: bool = False) -> None:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "unlink", gone)
    assert live.take_timing() == "baseline"


def test_a_process_in_profile_mode_needs_no_arming_and_leaves_the_flag(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "timing", "profile")
    arm(ledger, "--next")
    assert work(ledger)["timing"] == "profile"
    assert paths.profile_flag(ledger).exists()


def test_another_profiler_at_work_is_told_and_the_run_goes_on(ledger: Path) -> None:
    arm(ledger, "--next")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as other:
        shown = work(ledger)
    assert any(one.key == "aten::mm" for one in other.key_averages())
    assert shown["outcome"] is not None
    assert shown["artifacts"] == []
    (mark,) = [one for one in shown["marks"] if one["name"] == "profile_problem"]
    assert mark["detail"]["what"] == "trace: RuntimeError: another profiler is at work"


def test_of_two_runs_at_once_the_first_is_profiled(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "timing", "profile")
    first = live.start("first")
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(work, ledger, "beside").result(30)
    assert first is not None
    live.finish(first, {"host_status": "success"}, {})
    assert live.journal is not None
    assert live.journal.flush()
    shown = rows.detail(store.load(ledger).find(first.run_id))
    assert [artifact["path"].endswith("trace.json") for artifact in shown["artifacts"]] == [True]
    assert beside["artifacts"] == []
    problems = [mark["detail"] for mark in beside["marks"] if mark["name"] == "profile_problem"]
    assert problems == [{"what": "another run is being profiled"}]
    assert len(work(ledger, "after")["artifacts"]) == 1


def test_a_trace_that_cannot_be_written_is_told(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Profile, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Profile, "_save_trace", full)
    arm(ledger, "--next")
    shown = work(ledger)
    assert [one["detail"]["what"] for one in shown["marks"]] == [
        "trace.json: OSError: [Errno 28] No space left on device"
    ]


def test_ranges_follow_the_stages_and_the_last_is_ended(ledger: Path) -> None:
    begun: list[str] = []
    ended: list[str] = []

    class Range:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            begun.append(self.name)

        def __exit__(self, *_: Any) -> None:
            ended.append(self.name)

    profile = Profile("0123456789", ledger, time.perf_counter_ns)
    profile._profiler = type("P", (), {"stop": lambda self: None})()
    profile._torch = type(
        "T", (), {"profiler": type("R", (), {"record_function": Range}), "cuda": torch.cuda}
    )
    profile.range("sampling", "3")
    profile.range("vae_decode", None)
    profile.stop()
    assert begun == ended == ["01234567/sampling/3", "01234567/vae_decode/-"]


def test_without_torch_a_profile_is_a_problem_and_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    profile = Profile("0123456789", tmp_path, time.perf_counter_ns)
    profile.start()
    profile.range("sampling", None)
    profile.stop()
    assert profile.write() == []
    assert profile.problems == ["torch is not imported"]


def test_graphs_compiled_in_a_run_are_marked_with_the_growth_alone(ledger: Path) -> None:
    def compiled(factor: int) -> None:
        torch.compile(lambda x: x * factor, backend="eager")(torch.ones(3))

    compiled(2)
    before = compile_counters()["unique_graphs"]
    live.accept("prompt", {})
    run = live.start("prompt")
    compiled(3)
    assert run is not None
    live.finish(run, {"host_status": "success"}, {})
    assert live.journal is not None
    live.journal.flush()
    (mark,) = rows.detail(store.load(ledger).find("last"))["marks"]
    assert before >= 1
    assert (mark["name"], mark["detail"]["unique_graphs"]) == ("compiled", 1)


MINE = (
    "stagexec.record.instruments.Instruments.detach",
    "stagexec.record.instruments.Instruments.settle",
    "stagexec.record.instruments.attach",
    "stagexec.record.live.instrument",
    "stagexec.record.profile.file_facts",
    "stagexec.record.memory.Samples.read",
    "stagexec.record.memory.at_end",
    "stagexec.record.profile.Profile.stop",
    "stagexec.record.profile.Profile.write",
)


class Injected(Exception):
    pass


@pytest.mark.parametrize("name", MINE)
def test_a_fault_of_the_instruments_changes_nothing_of_the_run(
    name: str, ledger: Path, monkeypatch: pytest.MonkeyPatch, faults_expected: Any
) -> None:
    def faulty(*_args: Any, **_kwargs: Any) -> Any:
        raise Injected(name)

    monkeypatch.setattr(guard.GUARDED[name], "body", faulty)
    arm(ledger, "--next")
    shown = work(ledger)
    assert shown["outcome"] == "success_unverified"
    assert sum(shown["stages"].values()) == shown["total_ns"]
    assert shown["stages"]["sampling"] > 0
    assert {text for _, text in faults_expected} == {f"Injected: {name}"}


def test_what_clients_see_is_the_same_in_events_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.executor import tour

    seen = []
    for modes in (set(), set(tour.PROMPTS)):
        monkeypatch.setattr(tour, "WITH_EVENTS", modes)
        seen.append(travel(tmp_path / str(len(seen))))
        assert live.journal is not None
        live.journal.stop("tour over")
        live.journal = live.run = guard.on_fault = None
    assert seen[0] == seen[1]


def test_runs_take_no_instruments_in_baseline(ledger: Path) -> None:
    run = Run("prompt", 0, time.perf_counter_ns)
    live.begin(run)
    assert run.instruments is None
    assert type(run.ledger).__name__ == "Ledger"
