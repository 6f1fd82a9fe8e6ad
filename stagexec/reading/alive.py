"""Is a process alive: the one question about the present that reading asks."""

from __future__ import annotations

import os
import pathlib
import socket
from collections.abc import Callable, Iterable

from stagexec.reading import events

LIVE_WITHIN_NS = 10_000_000_000
"""A process that cannot be looked at is alive while its last sign of life is younger than this: a heartbeat
comes every second."""

JUMP_NS = 3_600_000_000_000
"""Two lines in a row are less than an hour apart, either way, unless one of them is damaged."""

MOST_PID = 2**31 - 1

Alive = Callable[["str | None", "int | None", "str | None"], "bool | None"]
"""hostname, pid and `pid_started` of a process_start -> whether it lives; None where nothing can tell."""


class LastSign:
    """The last sign of life: the latest time of any event, one alone that lies far off left out."""

    def __init__(self) -> None:
        self.ns = 0
        self._before: int | None = None
        """What it was before the event that moved it on by more than JUMP_NS."""

    def take(self, ns: int) -> int:
        """Count one event in, in the order of the file; the last sign of life so far."""
        before = self._before
        if ns > self.ns:
            self._before = self.ns if ns - self.ns > JUMP_NS else None
            self.ns = ns
        elif before is not None:
            if ns < self.ns - JUMP_NS and ns != events.NO_TIME:
                self.ns = max(before, ns)
            self._before = None
        return self.ns


def is_alive(hostname: str | None, pid: int | None, pid_started: str | None = None) -> bool | None:
    """Whether process `pid` runs on this machine, and is the one that began at `pid_started`.

    None where that cannot be told: the process is of another container, or this system does not say when
    its processes began. False for another machine's whose journal does not say either.
    """
    here = hostname == socket.gethostname()
    if pid is None or not 0 < pid <= MOST_PID:
        return False
    if pid_started is not None:
        mine = _place()
        if mine is None or pid_started.rpartition(":")[0] != mine:
            return None  # another pid namespace or machine, or this one before it was started again
        found = started_of(pid)
        return found == pid_started if found is not None else _unseen(pid)
    if not here:
        return False
    return _windows(pid) if os.name == "nt" else _posix(pid)


def is_live(
    start: events.ProcessStart,
    last_wall_ns: int | None,
    files: Iterable[str],
    now_wall_ns: int,
    look: Alive,
) -> bool:
    """Whether the process of a journal without an end is at work still.

    `last_wall_ns`: its last event; `files`: where it writes. A process that is known to be the very one is
    alive however long it has been silent: it may be stopped, or the machine has slept.
    """
    found = look(start.hostname, start.pid, start.pid_started)
    if found is False or (found and start.pid_started is not None):
        return bool(found)
    if found is None and start.pid_started is None:
        return False
    signs = [last_wall_ns, *map(_changed_ns, files)]
    # A sign from the future is of another clock, and says nothing.
    return any(sign is not None and abs(now_wall_ns - sign) < LIVE_WITHIN_NS for sign in signs)


def started_of(pid: int) -> str | None:
    """When a process of this machine began: `boot id:pid namespace:start in clock ticks`.

    None where the system does not say, or the process has ended, be it that its parent has not asked yet.
    """
    place = _place()
    if place is None:
        return None
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return f"{place}:{fields[19]}"


def _place() -> str | None:
    """The running system and the pid namespace of this process; None where the system has no such names."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except (OSError, ValueError):
        return None


def _changed_ns(file: str) -> int | None:
    try:
        return os.stat(file).st_mtime_ns
    except (OSError, ValueError):
        return None


def _unseen(pid: int) -> bool | None:
    """Of a process that the system tells nothing about: None where it only does not tell us."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return None
    except OSError:
        return False
    return False  # it has ended, and its parent has not asked yet


def _posix(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _windows(pid: int) -> bool:
    # os.kill(pid, 0) would send a console event here, so the process is asked for by a handle.
    import ctypes

    query_limited, still_active = 0x1000, 259
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009 - absent from the type stubs elsewhere
    handle = kernel.OpenProcess(query_limited, False, pid)
    if not handle:
        return False
    code = ctypes.c_ulong()
    answered = kernel.GetExitCodeProcess(handle, ctypes.byref(code))
    kernel.CloseHandle(handle)
    return bool(answered) and code.value == still_active
