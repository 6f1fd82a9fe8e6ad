"""Encoder processes that a node starts, without a host: what the ledger holds of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagexec.delivery import children
from stagexec.record import live
from stagexec.record.run import Run
from tests.faults import fresh_recorder, no_fault_of_ours

__all__ = ["fresh_recorder", "no_fault_of_ours"]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for ffmpeg")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run in execution on this thread, in its first visit, with `Popen` watched."""
    for target, make in children.POPEN.items():
        name = target.rpartition(".")[2]
        monkeypatch.setattr(subprocess.Popen, name, make(subprocess, getattr(subprocess.Popen, name)))
    found = live.start("p")
    assert found is not None
    found.next_visit("7", "SomeNode")
    found.ledger.switch("node_other", "SomeNode")
    return found


@pytest.fixture
def ffmpeg(tmp_path: Path) -> Callable[[str], list[str]]:
    """`ffmpeg(script)`: the command of an encode that does what the script says."""

    def make(script: str) -> list[str]:
        program = tmp_path / "ffmpeg"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return [str(program), "-i", "-", str(tmp_path / "out.mp4")]

    return make


def segments(run: Run) -> list[tuple[str, int | None]]:
    """(stage, length in ms) of the closed segments and of the open one."""
    now = run.clock()
    done = [(open_[0], (end - open_[2]) // 1_000_000) for open_, end in run.ledger.pending]
    open_ = run.ledger.open
    assert open_ is not None
    return [*done, (open_[0], (now - open_[2]) // 1_000_000)]


def test_two_encoders_at_once_are_over_when_both_have_been_waited_for(run: Run, ffmpeg: Any) -> None:
    command = ffmpeg("cat >/dev/null")
    first = subprocess.Popen(command, stdin=subprocess.PIPE)
    second = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert run.stage == "encode_mux"
    first.communicate()
    assert run.stage == "encode_mux"
    second.communicate()
    assert run.stage == "node_other"
    assert run.ledger.depth() == 0


def test_a_failure_seen_by_two_threads_at_once_is_filed_whole(
    run: Run, ffmpeg: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(run, "mark", lambda name, detail, **_fields: marks.append((name, detail)))
    judge, looking = children.Child.phase, threading.Event()

    def slowly(child: children.Child) -> str:
        looking.set()
        time.sleep(0.1)
        return judge(child)

    monkeypatch.setattr(children.Child, "phase", slowly)
    process = subprocess.Popen(ffmpeg("exit 3"), stdin=subprocess.DEVNULL)
    if hasattr(os, "pidfd_open"):
        assert looking.wait(20)  # the watcher has seen the exit, and is about to say what it means
    assert process.wait() == 3
    assert [(name, detail["exit_code"]) for name, detail in marks] == [("child_failed", 3)]


def test_a_process_that_one_of_our_own_threads_starts_is_no_part_of_the_run(run: Run, ffmpeg: Any) -> None:
    command = ffmpeg("exit 0")
    for name in ("stagexec-condition", "other"):
        thread = threading.Thread(target=subprocess.run, args=(command,), name=name)
        thread.start()
        thread.join()
    children.settle(run)
    assert [span[0] for span in run.pending_spans] == ["child:ffmpeg"]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="exits are seen by pidfd")
def test_a_process_that_asyncio_reaps_has_its_exit_code_too(
    run: Run, ffmpeg: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, kept, begun = ffmpeg("exit 3"), [], children.begun

    def keep(child: children.Child, popen: Any, done: bool) -> None:
        kept.append(popen)  # asyncio drops it: whether our look comes before that is up to the scheduler
        begun(child, popen, done)

    monkeypatch.setattr(children, "begun", keep)

    async def encode() -> int:
        process = await asyncio.create_subprocess_exec(*command)
        return await process.wait()

    for _ in range(4):
        assert asyncio.run(encode()) == 3
    watchers = [one for one in threading.enumerate() if one.name.startswith("stagexec-child-")]
    for one in watchers:
        one.join(10)
    children.settle(run)
    assert [span[6]["exit_code"] for span in run.pending_spans] == [3, 3, 3, 3]


FAIL = 'touch "$3"; exit 1'


def attempt(command: list[str], script: str = "", **more: Any) -> int:
    """Run the stand-in for ffmpeg with another script."""
    if script:
        Path(command[0]).write_text(f"#!/bin/sh\n{script}\n")
    return subprocess.run(command, input=b"frames", capture_output=True, check=False, **more).returncode


def left(run: Run) -> children.children.ChildFailure | None:
    return children.children.unanswered(run)


@pytest.mark.parametrize(
    ("first", "second", "good"),
    [
        (FAIL, 'echo data > "$3"', True),
        (FAIL, "exit 0", False),
        ("exit 1", "exit 0", False),
        (FAIL, 'touch "$3"', False),
        (FAIL, ': > "$3"', False),
        ('echo half > "$3"; exit 1', "exit 0", False),
        ('echo half > "$3"; kill -9 $$', "exit 0", False),
        ('echo half > "$3"; kill -9 $$', 'echo whole data > "$3"', True),
    ],
)
def test_a_failure_is_made_good_only_by_a_process_that_wrote_the_same_file(
    run: Run, ffmpeg: Any, first: str, second: str, good: bool
) -> None:
    command = ffmpeg(first)
    assert attempt(command) != 0
    assert attempt(command, second) == 0
    assert (left(run) is None) is good


def test_a_process_that_looks_at_the_file_afterwards_makes_nothing_good(run: Run, ffmpeg: Any) -> None:
    command = ffmpeg('echo half > "$3"; exit 1')
    attempt(command)
    program = Path(command[0]).with_name("ffprobe")
    Path(command[0]).rename(program)
    program.write_text("#!/bin/sh\nexit 0\n")
    subprocess.run([str(program), command[-1]], check=True)
    assert left(run) is not None


def test_the_same_file_is_known_by_another_spelling_and_from_another_folder(
    run: Run, ffmpeg: Any, tmp_path: Path
) -> None:
    command = ffmpeg(FAIL)
    attempt(command)
    command[-1] = "file:./out.mp4"
    assert attempt(command, "echo data > out.mp4", cwd=tmp_path) == 0
    assert left(run) is None


def test_another_file_makes_nothing_good(run: Run, ffmpeg: Any, tmp_path: Path) -> None:
    command = ffmpeg(FAIL)
    attempt(command)
    command[-1] = str(tmp_path / "other.mp4")
    attempt(command, 'echo data > "$3"')
    failure = left(run)
    assert failure is not None
    assert (failure.exit_code, failure.cause) == (1, "encode_failed")


def test_of_two_outputs_both_have_to_be_made(run: Run, ffmpeg: Any, tmp_path: Path) -> None:
    other = str(tmp_path / "other.webm")
    command = ffmpeg("exit 1")
    attempt([*command, other])
    attempt(command, 'echo data > "$3"')
    assert left(run) is not None
    attempt([*command[:-1], other], 'echo data > "$3"')
    assert left(run) is None


@pytest.mark.parametrize(("script", "good"), [("echo frame", True), ("exit 0", False)])
def test_a_pipe_is_made_good_by_what_comes_through_it(run: Run, ffmpeg: Any, script: str, good: bool) -> None:
    command = [*ffmpeg("exit 1")[:-1], "-f", "webm", "pipe:1"]
    attempt(command)
    attempt(command, script)
    assert (left(run) is None) is good


def test_a_sequence_of_files_is_made_good_by_new_files(run: Run, ffmpeg: Any, tmp_path: Path) -> None:
    (tmp_path / "old_001.png").write_bytes(b"old")
    command = [*ffmpeg("exit 1")[:-1], str(tmp_path / "old_%03d.png")]
    attempt(command)
    attempt(command, "exit 0")
    assert left(run) is not None
    attempt(command, f"echo data > {tmp_path}/old_002.png")
    assert left(run) is None


def test_a_program_that_is_not_there_is_made_good_by_one_that_is(run: Run, ffmpeg: Any) -> None:
    command = ffmpeg('echo data > "$3"')
    with pytest.raises(FileNotFoundError):
        subprocess.run(["ffmpeg-that-is-not-there", *command[1:]], check=False)
    assert left(run) is not None
    attempt(command)
    assert left(run) is None


def test_a_file_that_this_process_wrote_itself_makes_good(run: Run, ffmpeg: Any) -> None:
    command = ffmpeg(FAIL)
    attempt(command)
    children.made_otherwise(run, 2, command[-1])
    assert left(run) is not None
    children.made_otherwise(run, 1, command[-1])
    assert left(run) is None
