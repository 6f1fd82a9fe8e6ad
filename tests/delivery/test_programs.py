"""Child processes that are no encoders, without a host: a span each, and the wait for one has its name."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.process
import os
import subprocess
import sys
import threading
import time

import pytest

from stagexec.delivery import children, programs
from stagexec.record import live
from stagexec.record.run import Run
from tests.faults import fresh_recorder, no_fault_of_ours

__all__ = ["fresh_recorder", "no_fault_of_ours"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="shell scripts stand in for programs")

PLACES = {"Popen": subprocess.Popen, "system": os, "BaseProcess": multiprocessing.process.BaseProcess}
BURN = "import time; end = time.process_time() + 0.4\nwhile time.process_time() < end: pass"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run in execution on this thread, in its first visit, with every way to start a process watched."""
    for target, make in {**children.POPEN, **programs.PLACES}.items():
        path = target.partition(":")[2].split(".")
        owner, name = PLACES[path[0]], path[-1]
        monkeypatch.setattr(owner, name, make(subprocess, getattr(owner, name)))
    found = live.start("p")
    assert found is not None
    found.next_visit("7", "SomeNode")
    found.ledger.switch("node_other", "SomeNode")
    found.ledger.pending.clear()
    return found


@pytest.fixture
def program(tmp_path):
    """`program(name, script)`: the command of a program of that name."""

    def make(name: str, script: str) -> list[str]:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return [str(path)]

    return make


def only_span(run: Run) -> tuple:
    end = time.monotonic() + 5
    while not run.pending_spans and time.monotonic() < end:
        time.sleep(0.01)
    (span,) = run.pending_spans
    return span


def waits(run: Run) -> list[tuple[str, str | None, str | None, int]]:
    return [(o[0], o[1], o[4], (end - o[2]) // 1_000_000) for o, end in run.ledger.pending if o[4]]


def test_a_program_is_a_span_with_its_name_and_exit_code(run: Run, program) -> None:
    done = subprocess.run(program("realesrgan-ncnn-vulkan", "sleep 0.3; exit 3"), capture_output=True)
    assert done.returncode == 3
    lane, stage, name, visit, start, end, detail = only_span(run)
    assert (lane, name, stage, visit) == ("child:realesrgan-ncnn-vulkan", "realesrgan-ncnn-vulkan", None, 1)
    assert (detail["exit_code"], detail["role"]) == (3, "other")
    assert end - start >= 290_000_000
    assert "command" not in detail


def test_the_wait_for_a_program_has_its_name_in_the_stage_that_is_open(run: Run, program) -> None:
    subprocess.run(program("upscayl", "sleep 0.3"), check=True)
    found = waits(run)
    assert {(stage, part, seam) for stage, part, seam, _ in found} == {
        ("node_other", "SomeNode", "child:upscayl")
    }
    assert sum(ms for *_, ms in found) >= 280
    assert run.stage == "node_other"
    assert run.ledger.depth() == 0


def test_what_the_node_does_between_the_start_and_the_wait_is_its_own(run: Run, program) -> None:
    with subprocess.Popen(program("upscayl", "sleep 0.6")) as child:
        time.sleep(0.3)
        child.wait()
    assert 100 <= sum(ms for *_, ms in waits(run)) < 560


def test_a_program_that_fetches_is_a_wait_for_another_machine(run: Run, program) -> None:
    subprocess.check_output(program("wget", "sleep 0.2; echo fetched"))
    assert {(stage, seam) for stage, _, seam, _ in waits(run)} == {("external_wait", "child:wget")}


def test_the_cpu_time_of_a_program_is_its_own(run: Run) -> None:
    subprocess.run([sys.executable, "-c", BURN], check=True)
    detail = only_span(run)[-1]
    assert 380_000_000 <= detail["cpu_ns"] < 2_000_000_000
    run.pending_spans.clear()
    subprocess.run(["sleep", "0.3"], check=True)
    assert only_span(run)[-1]["cpu_ns"] < 200_000_000


def test_a_program_that_cannot_be_started_is_a_span_without_a_process(run: Run, tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        subprocess.run([str(tmp_path / "not there")])
    detail = only_span(run)[-1]
    assert (detail["pid"], detail["exit_code"], detail["exit_seen"]) == (None, None, "spawn")
    assert run.ledger.depth() == 0


def test_a_name_that_is_no_plain_word_is_not_kept(run: Run, program) -> None:
    subprocess.run(program("a woman in red", "exit 0"), check=True)
    lane, _, name, *_ = only_span(run)
    assert "woman" not in lane + name
    assert lane.startswith("child:text:")


def test_what_a_program_says_reaches_the_node_untouched(run: Run, program) -> None:
    command = program("tool", "cat; echo two >&2")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as one:
        assert type(one.stderr).__name__ == "BufferedReader"
        assert one.communicate(b"one") == (b"one", b"two\n")


def test_a_program_on_a_thread_is_a_span_and_leaves_the_ledger_alone(run: Run, program) -> None:
    thread = threading.Thread(target=subprocess.run, args=(program("tool", "sleep 0.1"),))
    thread.start()
    thread.join()
    assert only_span(run)[0] == "child:tool"
    assert waits(run) == []


def test_a_program_that_an_async_node_waits_for_is_a_span(run: Run, program) -> None:
    async def work() -> int:
        child = await asyncio.create_subprocess_exec(*program("tool", "exit 4"))
        return await child.wait()

    assert asyncio.run(work()) == 4
    children.settle(run)  # as the run ends: nothing looks at the process but asyncio itself
    detail = only_span(run)[-1]
    assert detail["exit_code"] in (4, None), "asyncio reaps it: a later look may not learn the code"


def test_a_command_line_by_os_system_is_a_span(run: Run) -> None:
    status = os.system("sleep 0.2; exit 5")
    assert os.waitstatus_to_exitcode(status) == 5
    lane, *_, detail = only_span(run)
    assert (lane, detail["exit_code"]) == ("child:sleep", 5)
    assert [(stage, seam) for stage, _, seam, _ in waits(run)] == [("node_other", "child:sleep")]


def test_a_process_of_multiprocessing_is_a_span(run: Run) -> None:
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0.2,))
    process.start()
    process.join()
    assert process.exitcode == 0
    lane, *_, detail = only_span(run)
    assert lane.startswith("child:python")
    assert (detail["exit_code"], detail["pid"]) == (0, process.pid)
    assert {seam for _, _, seam, _ in waits(run)} == {lane}


def test_an_encoder_keeps_its_stage_and_tells_its_cpu_time(run: Run, program, tmp_path) -> None:
    command = [*program("ffmpeg", "sleep 0.1; exit 0"), "-i", "-", str(tmp_path / "out.mp4")]
    subprocess.run(command, check=True)
    assert [(stage, seam) for stage, _, seam, _ in waits(run)] == [("encode_mux", "child_spawn")]
    assert only_span(run)[-1]["cpu_ns"] < 1_000_000_000


def test_a_decoder_s_wait_is_named_and_its_stage_stays(run: Run, program) -> None:
    command = [*program("ffmpeg", "sleep 0.1"), "-i", "a.mp4", "-f", "rawvideo", "-"]
    subprocess.run(command, capture_output=True, check=True)
    assert {(stage, seam) for stage, _, seam, _ in waits(run)} == {("node_other", "child:ffmpeg")}
