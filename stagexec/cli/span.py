"""`stagexec span`: work outside of ComfyUI, timed and added to a run."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from stagexec import files
from stagexec import stages as sets
from stagexec.cli import common
from stagexec.reading import outside, rows, store

STDERR = 2
"""The descriptor: the command has no use for Python's own object."""


@click.command("span")
@click.argument("run")
@click.argument("stage")
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@common.ledger_option
@common.json_option
def command(run: str, stage: str, words: tuple[str, ...], ledger: str | None, as_json: bool) -> None:
    """Run COMMAND, time it, and add it to RUN as a span of STAGE (or STAGE/PART).

    For work that a client does with a run's results: its own ffmpeg, an upload. `show` has it beside the
    other spans; the run's own stages and total stay as they are. Of the command only the program's name and
    exit code are kept. Exit code 1 when it failed. With --json its output goes to standard error.
    """
    name, _, part = stage.partition("/")
    try:
        sets.check(name, part or None)
    except ValueError as error:
        raise common.BadInput(str(error)) from None
    folder = common.ledger_path(ledger)
    run_id = wanted(ledger, run)
    program = shutil.which(words[0])
    if program is None:
        raise common.BadInput(f"there is no program {words[0]!r}: nothing was run")
    path = new_file(folder)  # before the command is run: its time could not be told afterwards
    start_wall, start = time.time_ns(), time.perf_counter_ns()
    try:
        code = run_command([program, *words[1:]], STDERR if as_json else None)
    except OSError as error:
        path.unlink()
        raise common.BadInput(f"{words[0]}: cannot be run: {error.strerror or error}") from None
    end = time.perf_counter_ns()
    told = {
        "event_type": "outside_span",
        "run_id": run_id,
        "condition_id": None,
        "stage_id": name,
        "ts_mono_ns": start,
        "source": "process",
        "start_wall_ns": start_wall,
        "length_ns": end - start,
        "part": part or None,
        "program": base_name(words[0]),
        "exit_code": code,
        "hostname": socket.gethostname(),
    }
    path.write_bytes(msgspec.json.encode(told) + b"\n")
    if as_json:
        common.print_json(shown(told, path))
    else:
        from stagexec.answers.words import human

        common.say(f"{told['program']}: {human(end - start)} of {stage}, exit code {code}, run {run_id[:8]}")
    if code:
        raise SystemExit(1)


def wanted(ledger: str | None, name: str) -> str:
    """The id of the run that was named. An unknown one is the user's mistake."""
    with common.relation(ledger) as found:
        try:
            return str(found.find(name)["run_id"])
        except store.NoSuchRun as error:
            raise common.BadInput(f"{error}: nothing was run") from None


def base_name(program: str) -> str:
    """The program's file name, on either system, without the folder that it lies in."""
    return program.replace("\\", "/").rpartition("/")[2]


def new_file(ledger: pathlib.Path) -> pathlib.Path:
    """An empty file of this process's own: many may be timed at once. Raises OSError."""
    day = outside.folder(ledger) / time.strftime("%Y-%m-%d", time.gmtime())
    problem = files.unkept(day)
    if problem is not None:
        raise common.BadInput(f"the ledger cannot keep it, so nothing was run: {problem}")
    path = day / f"{socket.gethostname()}-{os.getpid()}-{time.time_ns()}.jsonl"
    path.open("xb").close()
    return path


def run_command(line: list[str], stdout: int | None) -> int:
    """The exit code of a command; a signal's is negative. What would end us is the command's to answer."""
    with subprocess.Popen(line, stdout=stdout) as process, passed_on(process):
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reached it as well
                return process.wait()


@contextlib.contextmanager
def passed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand SIGTERM to the command: its time is then kept as any other."""

    def hand(number: int, frame: Any) -> None:
        process.send_signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = signal.signal(signal.SIGTERM, hand)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def shown(told: dict[str, Any], path: pathlib.Path) -> dict[str, Any]:
    """What `--json` prints."""
    kept = ("run_id", "part", "program", "exit_code", "hostname", "start_wall_ns", "length_ns")
    more = {"stage": told["stage_id"], "start_wall": rows.iso(told["start_wall_ns"]), "file": str(path)}
    return {**{name: told[name] for name in kept}, **more}
