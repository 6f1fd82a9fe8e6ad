"""How this process ends, noted so that a reader can tell a planned end from a crash.

What Python lives to see (an exit, Ctrl-C, a restart, an exception out of the host's main.py) is written as
`process_end`, after the runs whose files are still being checked had a moment to be closed. A signal that
ends the process at once is noted by Python's faulthandler: its handler is C, needs neither the GIL nor
memory, writes a stack into a file of ours beside the journal, and passes the signal on, so that the process
dies as it would without us. No handler that a pack has put in, or puts in later, is touched.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stagexec.format import SIGNAL_FILES
from stagexec.record import live
from stagexec.record.disks import is_local
from stagexec.record.guard import guarded
from stagexec.record.journal import Journal
from stagexec.record.run import Run

EXIT_WAIT_S = 3.0
"""At an exit, runs that the host has filed wait this long for the check of their files."""

RESTART_WAIT_S = 0.5
"""And at a restart."""

RESTART_S = 1.0
"""A restart waits no longer than this for a disk that hangs."""

LOOK_S = 0.02
SLOW_LOOK_S = 1.0

UNCHECKED = "the process ended while the files of this run were being checked"

Decision = tuple[str, "str | None", "dict[str, Any] | None"]

unchecked: Callable[[Run], Decision] | None = None
"""Set by delivery's owner: how a run ended whose files are not checked any more."""

finish_checks: Callable[[float], list[Run]] | None = None
"""Set in the same way: waits so many seconds for the checks under way, and closes the runs that are left."""

_reason = "exit"
_exception: str | None = None
_begun_by = 0
_files: dict[str, tuple[Path, int]] = {}
"""Signal -> the file beside the journal, and our number of it."""


@guarded
def begin() -> None:
    """Note how this process ends from now on. After the journal has begun."""
    global _begun_by
    journal = live.journal
    if journal is None or _begun_by == os.getpid():
        return
    _begun_by = os.getpid()
    atexit.register(at_exit)  # runs before the journal's own, which was registered earlier
    if hasattr(faulthandler, "register") and is_local(journal.folder):
        threading.Thread(target=_watch_signals, args=(journal,), name="stagexec-ends", daemon=True).start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_leave_signals)


@guarded
def leaving(error: BaseException | None, returned: bool) -> None:
    """The host's main.py is over: by `error`, or because it has `returned`, as it does after Ctrl-C alone."""
    global _reason, _exception
    if isinstance(error, KeyboardInterrupt) or (error is None and returned):
        _reason = "signal SIGINT"
    elif error is not None and not isinstance(error, SystemExit):
        _reason, _exception = "exception", type(error).__name__


@guarded
def at_exit() -> None:
    """Close what can be closed, and say why the process ends."""
    journal = live.journal
    if journal is None or os.getpid() != _begun_by:
        return
    close_executed(EXIT_WAIT_S)
    journal.stop(_reason, _exception)
    _forget_signals()


def close_executed(wait_s: float) -> None:
    """Give the check of files a moment; then close the other runs as the host has filed them."""
    end = time.monotonic() + wait_s
    try:
        if finish_checks is not None:
            finish_checks(wait_s)  # closes what it cannot finish by what it knows so far
        while live.finishing and time.monotonic() < end:
            time.sleep(LOOK_S)
    except KeyboardInterrupt:  # Ctrl-C once more: this person does not want to wait
        end = 0.0
    for run in list(live.finishing.values()):
        outcome, cause, error = (
            unchecked(run) if unchecked is not None else ("success_unverified", None, None)
        )
        live.close(run, outcome, cause, error, UNCHECKED)


@guarded
def restarting() -> Callable[[], None] | None:
    """This process is about to be replaced: say so, within RESTART_S. What to call should that fail."""
    journal = live.journal
    if journal is None or os.getpid() != _begun_by:
        return None
    told = threading.Thread(target=_say_restart, args=(journal,), name="stagexec-restart", daemon=True)
    told.start()
    told.join(RESTART_S)
    return journal.go_on


@guarded
def _say_restart(journal: Journal) -> None:
    close_executed(RESTART_WAIT_S)
    journal.stop("restart")


@guarded
def restart_begun() -> None:
    """This process has started its successor, and will soon end: often by os._exit, without a word."""
    journal = live.journal
    if journal is None or os.getpid() != _begun_by:
        return
    live.journal_event(None, "mark", source="process", name="restart_begun", detail={})
    told = threading.Thread(target=journal.flush, args=(RESTART_S,), name="stagexec-restart", daemon=True)
    told.start()
    told.join(RESTART_S)


# --- signals ------------------------------------------------------------------------------------------


@guarded
def _watch_signals(journal: Journal) -> None:
    """Put the files beside the journal, as soon as there is one, and have the signals written into them."""
    begun = time.monotonic()
    while journal.path is None or not journal.path.exists():
        time.sleep(LOOK_S if time.monotonic() - begun < 10 else SLOW_LOOK_S)
    for name in SIGNAL_FILES:
        number = getattr(signal, name, None)
        # Not one that the host, a pack or `nohup` has a use for.
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            _watch(journal.path.with_suffix(f".{name}"), name, number)
    _sweep(journal.folder)


def _watch(path: Path, name: str, number: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    file = _high(file)
    _files[name] = (path, file)
    faulthandler.register(number, file=file, all_threads=False, chain=True)


def _high(file: int) -> int:
    """The file under a high number: one that a node closes and opens as its own would get our text."""
    try:
        import fcntl
        import resource

        least = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1024) - 32
        higher = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, max(least, 3))
    except (ImportError, OSError, ValueError):
        return file
    os.close(file)
    return higher


@guarded
def _leave_signals() -> None:
    """In a forked child: its end is not this process's."""
    for name in _files:
        faulthandler.unregister(getattr(signal, name))


@guarded
def _forget_signals() -> None:
    """An orderly end: the files are not wanted. One that was written to stays, as it tells of a signal."""
    for name, (path, _) in list(_files.items()):
        faulthandler.unregister(getattr(signal, name))
        with contextlib.suppress(OSError):
            if path.stat().st_size == 0:
                path.unlink()
    _files.clear()


@guarded
def _sweep(ledger: Path) -> None:
    """Remove the empty files that dead processes of this machine have left."""
    for name in SIGNAL_FILES:
        for path in (ledger / "journal").glob(f"*/*.{name}"):
            host, _, rest = path.stem.rpartition("-")[0].rpartition("-")
            if host != socket.gethostname() or not rest.isdigit() or _lives(int(rest)):
                continue
            with contextlib.suppress(OSError):
                if path.stat().st_size == 0:
                    path.unlink()


def _lives(pid: int) -> bool:
    if pid == os.getpid():
        return True  # ours; or one from before a restart, which took its files along
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
