"""Child processes of a run that are no encoders, and what every child costs: its exit code and CPU time.

An encoder is a stage of its own from spawn to exit (children.py). Any other program works beside the node:
it is a span, and only while the main lane waits for it is the time named after it, in the stage that is
open. A program that fetches from elsewhere has nothing local to do: waiting for it is `external_wait`.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stagexec.delivery.children import Child, begin, keep, of_run, watch
from stagexec.record import live
from stagexec.record.guard import guarded
from stagexec.record.ledger import NO_DEPTH
from stagexec.record.run import Run

_FETCHERS = """
    aria2c curl wget git git-lfs hf huggingface-cli rclone rsync scp sftp ssh aws gsutil gcloud azcopy
    yt-dlp youtube-dl pip pip3 uv
"""
FETCHERS = frozenset(_FETCHERS.split())
"""Programs that wait for another machine."""


class Program(Child):
    """One process of a run that is no encoder: nothing is read of what it says."""

    def spawned(self, popen: Any) -> None:
        """It runs: watch for its end."""
        self.pid = popen.pid
        self._popen = weakref.ref(popen)
        keep(self, popen)
        watch(self)

    def not_spawned(self, _error: BaseException | None) -> None:
        """It could not be started."""
        self.exit_ns, self.exit_seen = self.run.clock(), "spawn"
        self.file()

    def looked(self, popen: Any) -> None:
        """The pack has waited or polled."""
        if popen.returncode is not None:
            self.ended(popen.returncode, "wait")
            self.file()

    def detail(self) -> dict[str, Any]:
        """What the span says besides its interval."""
        told = ("pid", "exit_code", "exit_seen", "cpu_ns")
        found = {name: getattr(self, name) for name in told}
        found |= {"role": self.command.role, "template": self.command.template}
        if live.record_text:
            found["command"] = list(self.command.words)
        return found


# --- the main lane's own time ---


@guarded
def entered(child: Child) -> int:
    """The main lane is about to start a program, or to wait for it: that time has its name."""
    run, command = child.run, child.command
    if command.role == "encode" or not child.main_lane or not run.on_main_lane():
        return NO_DEPTH  # an encoder is a stage of its own
    seam = f"child:{command.program}"
    if run.inside(seam) or run.stage is None:
        return NO_DEPTH
    if command.program in FETCHERS:
        return run.enter("external_wait", None, seam)
    return run.enter(run.stage, run.part, seam)


def left(child: Child, depth: int | None) -> None:
    """It has been started, or waited for."""
    if depth is not None and depth != NO_DEPTH:
        child.run.leave(depth)


# --- CPU time ---


def living(run: Run) -> list[int]:
    """The pids of a run's processes that have not been seen to end."""
    return [child.pid for child in of_run(run) if child.pid is not None and child.exit_ns is None]


_reaped = 0


@guarded
def before_reaping(popen: Any) -> tuple[int, int] | None:
    """What to compare with after a call that may reap the process; None where the system does not say."""
    if popen.returncode is not None:
        return None
    spent = _of_children()
    return None if spent is None else (spent, _reaped)


@guarded
def after_reaping(child: Child, popen: Any, before: tuple[int, int] | None) -> None:
    """The CPU time of the process, with all that it waited for itself, if that call has reaped it."""
    global _reaped
    if before is None or popen.returncode is None:
        return
    _reaped += 1
    spent = _of_children()
    if child.cpu_ns is None and spent is not None and _reaped == before[1] + 1:
        child.cpu_ns = spent - before[0]


def _of_children() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    told = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round((told.ru_utime + told.ru_stime) * 1e9)


def cpu_of_dead(pid: int | None) -> int | None:
    """CPU time of a process that has ended and is not reaped yet; None where that is not known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        ticks = sum(map(int, fields[11:15])) if fields[0] == b"Z" else None
        return None if ticks is None else ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


# --- processes that come by other ways than `subprocess` ---


def watched_system(_module: ModuleType, original: Any) -> Any:
    """`os.system` that is a span, with the main lane's time named."""

    @functools.wraps(original)
    def system(*args: Any, **kwargs: Any) -> Any:
        child = _begin_system(args[0] if args else kwargs.get("command")) if live.run is not None else None
        if child is None:
            return original(*args, **kwargs)
        depth, spent = entered(child), _of_children()
        status: Any = None
        try:
            status = original(*args, **kwargs)
            return status
        finally:
            left(child, depth)
            _end_system(child, status, spent)

    return system


@guarded
def _begin_system(command: Any) -> Child | None:
    return begin((command,), {"shell": True})


@guarded
def _end_system(child: Child, status: int | None, spent: int | None) -> None:
    now = _of_children()
    child.cpu_ns = None if now is None or spent is None else now - spent
    child.exit_ns, child.exit_seen = child.run.clock(), "wait"
    posix = status is not None and sys.platform != "win32"
    child.exit_code = os.waitstatus_to_exitcode(status) if posix and status is not None else status
    child.file()


_of_process: weakref.WeakKeyDictionary[Any, Child] = weakref.WeakKeyDictionary()


def watched_start(_module: ModuleType, original: Any) -> Any:
    """`multiprocessing.Process.start`: the new process is a span of the run."""

    @functools.wraps(original)
    def start(self: Any, *args: Any, **kwargs: Any) -> Any:
        child = _begin_process() if live.run is not None else None
        if child is None:
            return original(self, *args, **kwargs)
        depth = entered(child)
        try:
            return original(self, *args, **kwargs)
        finally:
            left(child, depth)
            _process_begun(child, self)

    return start


@guarded
def _begin_process() -> Child | None:
    return begin(([sys.executable or "python"],), {})


@guarded
def _process_begun(child: Child, process: Any) -> None:
    popen = getattr(process, "_popen", None)
    if popen is None or os.getpid() != getattr(process, "_parent_pid", None):
        return  # it could not be started; or this is the new process
    _of_process[process] = child
    child.spawned(popen)


def watched_join(_module: ModuleType, original: Any) -> Any:
    """`multiprocessing.Process.join`: waiting for it has its name."""

    @functools.wraps(original)
    def join(self: Any, *args: Any, **kwargs: Any) -> Any:
        child = _of_process.get(self) if _of_process else None
        if child is None:
            return original(self, *args, **kwargs)
        popen = getattr(self, "_popen", None)
        depth, before = entered(child), before_reaping(popen)
        try:
            return original(self, *args, **kwargs)
        finally:
            left(child, depth)
            after_reaping(child, popen, before)
            _look(child, popen)

    return join


@guarded
def _look(child: Child, popen: Any) -> None:
    child.looked(popen)


PLACES: dict[str, Callable[[ModuleType, Any], Any]] = {
    "os:system": watched_system,
    "multiprocessing.process:BaseProcess.start": watched_start,
    "multiprocessing.process:BaseProcess.join": watched_join,
}
"""Target of a seam -> what makes its replacement."""
