"""A thread beside the runs: what unnamed stretches run, and how busy this process and the machine are.

It wakes some times a second while runs execute, looks, and keeps a name and a number: never a frame, and
nothing that the worker would wait for. Runs shorter than its first look cost one wake-up.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stagexec.record import stacks
from stagexec.record.guard import guarded, note
from stagexec.record.run import Run
from stagexec.stages import HOST_STAGES

TICK_S = 0.05
FIRST_S = 0.01
"""From a run's start to the first look at it."""

LINGER_S = 1.0
"""How long it goes on after the last run: the next one need not wake it."""

CPU_NS = 200_000_000
"""Between two readings of CPU time."""

YOUNG_NS = 100_000_000
"""A visit younger than this is not looked into."""

RATES = ((2_000_000_000, 0), (30_000_000_000, 200_000_000), (2**62, 1_000_000_000))
"""(age of the visit, least time between two looks into it)."""

children: Callable[[Run], Iterable[int]] = lambda _run: ()  # noqa: E731
"""The pids of a run's own processes that live; set by delivery."""

_wake = threading.Event()
_lock = threading.Lock()
_thread: threading.Thread | None = None
_running: Mapping[int, Run] = {}
_awake = False
_pid = 0


@guarded
def begun(running: Mapping[int, Run]) -> None:
    """A run has begun: look at `running` from now on. Called on its own thread."""
    global _thread, _pid, _running
    _running = running
    if _thread is None or _pid != os.getpid() or not _thread.is_alive():
        with _lock:
            _pid = os.getpid()
            _thread = threading.Thread(target=_loop, name="stagexec-watching", daemon=True)
            _thread.start()
    if not _awake:
        _wake.set()


@guarded
def ended(run: Run) -> None:
    """A run has been executed: one last reading, where its last one is old. On its own thread."""
    last = run.watched.cpu_at_ns
    if last is not None and run.clock() - last > CPU_NS // 2:
        read_cpu([run])


def _loop() -> None:
    global _awake
    looks: dict[str, Look] = {}
    while True:
        _wake.wait()
        _wake.clear()
        _awake = True
        time.sleep(FIRST_S)
        idle_since = time.monotonic()
        while time.monotonic() - idle_since < LINGER_S:
            runs = list(_running.values())
            if runs:
                idle_since = time.monotonic()
            try:
                _tick(runs, looks)
            except Exception as error:  # noqa: BLE001 (the fence of this thread)
                note("watching.tick", error)
            time.sleep(TICK_S)
        _awake = False
        if _running:  # one that began meanwhile and did not wake us
            _wake.set()


def _tick(runs: list[Run], looks: dict[str, Look]) -> None:
    ids = {run.run_id for run in runs}
    for gone in looks.keys() - ids:
        del looks[gone]
    for run in runs:
        look = looks.get(run.run_id)
        if look is None:
            look = looks[run.run_id] = Look()
        look.at(run)
    due = [
        run for run in runs if run.watched.cpu_at_ns is None or run.clock() - run.watched.cpu_at_ns >= CPU_NS
    ]
    if due:
        read_cpu(due)


class Look:
    """The looks into one run: at most one visit at a time is unnamed."""

    def __init__(self) -> None:
        self._visit: int | None = None
        self._since_ns = 0
        self._open: Any = None
        self._seen_ns = 0

    def at(self, run: Run) -> None:
        """Where the open segment has no name and its visit is no longer young, keep what it runs."""
        open_, now, thread = run.ledger.open, run.clock(), run.thread
        if open_ is None or thread is None or not is_unnamed(open_):
            self._open = None
            return
        if open_[3] != self._visit:
            self._visit, self._since_ns, self._seen_ns = open_[3], open_[2], open_[2]
        age = now - self._since_ns
        begin = self._seen_ns if self._open is open_ else max(open_[2], self._seen_ns)
        wanted = next(gap for oldest, gap in RATES if age <= oldest)
        if age < YOUNG_NS or (self._open is open_ and now - self._seen_ns < wanted):
            return
        visit: Any = open_[3]
        name = stacks.told(sys._current_frames().get(thread))
        if name is None or run.ledger.open is not open_:
            return  # it has gone on while we looked: what was seen may be the next one's
        self._open, self._seen_ns = open_, now
        run.watched.saw(visit, name, now - begin)


def is_unnamed(open_: Any) -> bool:
    """Does no more than its node's class say what this segment is? (stage, part, start, visit, seam)"""
    return open_[4] is None and open_[3] is not None and open_[0] not in HOST_STAGES


# --- CPU ---


def read_cpu(runs: list[Run]) -> None:
    """Keep a reading of CPU time with each of `runs`."""
    busy = machine_busy_ns()
    own = time.process_time_ns()
    reaped = os.times()
    own += round((reaped.children_user + reaped.children_system) * 1e9)
    cores = os.cpu_count()
    for run in runs:
        at = run.watched.cpu_at_ns = run.clock()
        run.watched.cpu.append((at, own + sum(map(_cpu_of, children(run))), busy, cores))


def _cpu_of(pid: int) -> int:
    """CPU time of a living child with all that it waited for; 0 where it is gone or cannot be asked."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0


def machine_busy_ns() -> int | None:
    """CPU time that all programs of the machine have had, all cores together; None where not known."""
    try:
        with open("/proc/stat", "rb") as file:
            told = list(map(int, file.readline().split()[1:9]))
        return (sum(told) - told[3] - told[4]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return _busy_by_psutil()


def _busy_by_psutil() -> int | None:
    psutil = sys.modules.get("psutil")
    if psutil is None:
        return None
    told = psutil.cpu_times()
    busy = sum(told) - told.idle - getattr(told, "iowait", 0.0)
    return int(busy * 1e9)
