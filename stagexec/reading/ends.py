"""How the process of a journal ended, and until when it surely lived, by the files it left."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import socket
from typing import Any

import msgspec

from stagexec.format import ENDS, SIGNAL_FILES
from stagexec.reading import events
from stagexec.reading.runs import Process, Run

GRACE_NS = 35_000_000_000
"""Who asks a process to end and is not obeyed (process 1 of a container ignores SIGTERM) kills it after 10 s
(Docker) to 30 s (Kubernetes). A process that goes on for longer has survived the signal."""

RESTART_NS = 10_000_000_000
"""A process that has started its successor ends within this time; later it was no restart."""

LARGEST = 1 << 63
BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")


class Life(msgspec.Struct):
    """What the watcher of a process wrote beside its journal: the last instant at which it saw it alive."""

    pid: int
    mono_ns: int
    wall_ns: int
    state: str
    open: Any = None
    """[run id, [stage, part, start_ns, visit, seam], [node id, node class] or null]: what ran last."""


@dataclasses.dataclass(frozen=True)
class Ending:
    """Why a process ended: one of format.ENDS. `stopped`: as a person wished; it is no failure of its runs.

    `last_ns`: until when it lived for sure, on its own clock.
    """

    why: str
    stopped: bool
    last_ns: int
    seen: tuple[str, events.Open] | None = None
    """(run id, segment): what the watcher saw open last, which the journal may not have been told."""


def of(process: Process) -> Ending:
    """How a process ended that is not alive any more."""
    if process.end is not None:
        why = process.end.reason or "exit"
        # An unknown reason is a newer writer's: it had the time to write it, so it was no crash.
        return Ending(why, why != "exception", process.last_ns)
    life = life_of(process)
    last = max(process.last_ns, life.mono_ns) if life is not None else process.last_ns
    seen = seen_open(life)
    signal = signal_of(process)
    if signal is not None:
        return Ending(f"signal {signal}", True, last, seen)
    restart = process.restart_ns
    if restart is not None and process.last_ns - restart <= RESTART_NS:
        return Ending("restart", True, last, seen)
    return Ending("machine" if _machine_ended(process, life) else "killed", False, last, seen)


def life_of(process: Process) -> Life | None:
    """The watcher's file; None where there is none, or what it says cannot be of this process."""
    try:
        with open(pathlib.Path(process.file).with_suffix(".life"), "rb") as stream:
            life = msgspec.json.decode(stream.read(4096), type=Life)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    pid = process.start.pid if process.start is not None else None
    if pid is not None and life.pid != pid:
        return None
    return life if process.last_ns <= life.mono_ns < LARGEST else None


def seen_open(life: Life | None) -> tuple[str, events.Open] | None:
    """What the watcher saw open, if it can be read."""
    if life is None or life.open is None:
        return None
    try:
        seen = msgspec.convert(life.open, type=_Seen)
        return seen.run_id, msgspec.convert([*seen.at, *(seen.node or (None, None))], type=events.Open)
    except msgspec.MsgspecError:
        return None


class _Seen(msgspec.Struct, array_like=True):
    run_id: str
    at: list[Any]
    node: list[Any] | None


def signal_of(process: Process) -> str | None:
    """The signal that ended it: the last of those whose file beside the journal was written to."""
    journal = pathlib.Path(process.file)
    found: list[tuple[int, str]] = []
    for name in SIGNAL_FILES:
        try:
            told = os.stat(journal.with_suffix(f".{name}"))
            # Two times of the file system's clock: neither a step of the wall clock nor sleep parts them.
            went_on = os.stat(journal).st_mtime_ns - told.st_mtime_ns > GRACE_NS
        except (OSError, ValueError):
            continue
        if told.st_size and not went_on:
            found.append((told.st_mtime_ns, name))
    return max(found)[1] if found else None


def _machine_ended(process: Process, life: Life | None) -> bool:
    """Whether the machine has started again since, and its watcher, which outlives it, never saw it die."""
    start = process.start
    if start is None or start.boot_id is None or start.hostname != socket.gethostname():
        return False
    if life is None or life.state != "alive":
        return False
    try:
        return BOOT.read_text("ascii").strip() != start.boot_id
    except (OSError, ValueError):
        return False


def close(run: Run, ending: Ending) -> None:
    """Say how a run ended that its process left open."""
    filed = run.executed
    if ending.stopped and filed is not None and filed.host_status is not None:
        _as_filed(run, filed, ending)
        return
    run.outcome, run.cause = "lost", "process_stopped" if ending.stopped else "process_died"
    error = events.ErrorInfo(cause=run.cause, message=ENDS.get(ending.why, ending.why))
    last = run.at_end
    if filed is not None:
        error.stage = "delivery_commit"
    elif last is not None:
        error.stage, error.visit = last.stage, last.visit
        error.node_id, error.node_class = last.node_id, last.node_class
    elif len(run.segments):
        error.stage = run.segments.stage[-1]
    run.error = error


def _as_filed(run: Run, filed: events.RunExecuted, ending: Ending) -> None:
    """The host had filed the run when its process was asked to end: nothing of it is lost but our check."""
    run.notes.append(
        f"the process ended before the run's files were checked: {ENDS.get(ending.why, ending.why)}"
    )
    error = filed.executed
    if error is None:
        run.outcome, run.cause = "success_unverified", None
        return
    run.cause = error.cause
    run.outcome = "cancelled" if error.cause == "user_cancel" else "failed"
    run.error = error
