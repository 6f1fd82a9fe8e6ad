"""What a bench that was killed has left behind, and the lock that keeps two of them out of one folder."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from stagexec.bench.results import ResultError, Results

LOCK = "lock"
STOP_SECONDS = 20.0
BASE_OPTION = "--base-directory"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a result folder; the system lets go of it when this process ends, however it ends.

    Raises ResultError while another bench holds it.
    """
    with (folder / LOCK).open("ab") as file:
        if not _hold(file):
            raise ResultError(f"another bench is still writing into {folder}")
        yield


def _hold(file: IO[bytes]) -> bool:
    """Whether no other holds the lock; a file system that knows no locks keeps no one out."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def clear(results: Results) -> list[int]:
    """Stop the servers that a killed sitting left on this machine, keep their logs, remove their folders.

    The ids of the processes that were stopped. The folder must be held.
    """
    workers = list(Path(tempfile.gettempdir()).glob(f"{results.worker_prefix}*"))
    stopped = []
    for folder in (results.folder, *(worker / "result" for worker in workers)):
        for process in servers_in(folder / "servers"):
            stopped.append(process.pid)
            _end(process)
        _tidy(folder / "servers", results.folder / "logs")
    for worker in workers:
        shutil.rmtree(worker, ignore_errors=True)
    if stopped:
        results.note("left", pids=stopped)
    return stopped


def _tidy(servers: Path, logs: Path) -> None:
    for base in servers.iterdir() if servers.is_dir() else ():
        log = base / "server.log"
        if log.is_file():
            logs.mkdir(exist_ok=True)
            shutil.copyfile(log, logs / f"{base.name}.log")
        shutil.rmtree(base, ignore_errors=True)


def servers_in(folder: Path) -> list[Any]:
    """Processes (psutil's) of servers whose scratch folder lies in `folder`.

    They are known by their command line: a process id alone may have passed on to another program.
    """
    import psutil  # type: ignore[import-untyped]

    return [one for one in psutil.process_iter(["cmdline"]) if _works_in(one.info["cmdline"] or [], folder)]


def _works_in(words: list[str], folder: Path) -> bool:
    if BASE_OPTION not in words[:-1]:
        return False
    return Path(words[words.index(BASE_OPTION) + 1]).resolve().parent == folder.resolve()


def _end(process: Any) -> None:
    """As by Ctrl-C where there is one; what is left of it and its children after that is killed."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):  # it may end by itself at any time
        family = [process, *process.children(recursive=True)]
        if sys.platform != "win32":
            process.send_signal(signal.SIGINT)
            psutil.wait_procs([process], STOP_SECONDS)
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(family, STOP_SECONDS)
