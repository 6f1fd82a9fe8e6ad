"""Tells listeners of the runs that earlier processes left open: each once, by the next server to start.

A dead process cannot say that its runs are lost. At the start, on a thread of its own, the journals of
dead processes are looked through, and each is claimed by a file `<ledger>/told/<journal>` before its runs are
told: of two servers on one ledger one is first. Also gives back what a dead process had reserved on the disk.
"""

from __future__ import annotations

import os
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from stagexec.reading import alive, table, unclosed
from stagexec.reading.fold import Alive
from stagexec.reading.journal import Source, sources
from stagexec.reading.runs import Process, Run
from stagexec.web.feed import Listener, tell

FIRST_FORMAT = 2
"""Journals of earlier releases are not told: their lost runs are old news to the listener."""

SILENT_NS = 120_000_000_000
"""A process of another machine, which cannot be asked, is dead after so long without a sign of life."""

LOOK_AGAIN_S = 30.0
LOOKS = 10
"""So often the journals are looked at that could not be judged at the start."""

RESERVED = 1024**2
"""More bytes than that beyond a file's end were reserved by its writer."""


class Dead:
    """A run that its process left open."""

    def __init__(self, found: Run) -> None:
        self.found = found
        self.row: dict[str, Any] = table.flat(found)

    def run(self) -> Run:
        """The run in full."""
        return self.found


class Earlier:
    """Looks through a ledger's journals but `own`, the one of this process, and calls `listeners`."""

    def __init__(
        self,
        ledger: Callable[[], pathlib.Path | None],
        own: Callable[[], pathlib.Path | None],
        listeners: Iterable[Listener],
        complain: Callable[[str, Exception], None],
        is_alive: Alive = alive.is_alive,
    ) -> None:
        self._ledger = ledger
        self._own = own
        self._listeners = listeners
        self._complain = complain
        self._is_alive = is_alive

    def start(self) -> None:
        """Begin to look, on a thread of its own."""
        threading.Thread(target=self._work, name="stagexec-earlier", daemon=True).start()

    def _work(self) -> None:
        try:
            for _ in range(LOOKS):
                if not self.look():
                    return
                time.sleep(LOOK_AGAIN_S)
        except Exception as error:  # noqa: BLE001 (the fence of this thread)
            self._complain("Earlier.look", error)

    def look(self) -> int:
        """Tell what can be told now. How many journals cannot be judged yet."""
        ledger = self._ledger()
        if ledger is None:
            return 0
        told = _names(ledger / "told")
        found = [source for source in sources(ledger) if source.paths[0].suffix == ".jsonl"]
        own = self._own()
        unsure = 0
        for source in found:
            stem = source.paths[0].stem
            if stem in told or (own is not None and stem == own.stem):
                continue
            try:
                unsure += not self._judge(ledger, source)
            except OSError:  # a journal that is gone or cannot be read, or a ledger that cannot be written
                unsure += 1
        return unsure

    def _judge(self, ledger: pathlib.Path, source: Source) -> bool:
        """Tell of one journal, if its process is dead for sure. False when that cannot be said yet."""
        path = source.paths[0]
        before = path.stat()
        now = time.time_ns()
        head = unclosed.process_of(path).start
        if head is not None and head.format_version < FIRST_FORMAT:
            _claim(ledger, path)
            return True
        left = unclosed.of(source, now, self._lives)
        process = left.process
        if process is None or process.start is None:
            if now - before.st_mtime_ns <= SILENT_NS:
                return False
            _claim(ledger, path)
            return True
        if process.live or not self._is_dead(process, now - before.st_mtime_ns):
            return False
        if process.start.hostname == socket.gethostname():
            trim(path, before)
        if _claim(ledger, path):
            for run in left.runs:
                tell(self._listeners, Dead(run), self._complain)
        return True

    def _is_dead(self, process: Process, silent_ns: int) -> bool:
        if process.end is not None:
            return True
        start = process.start
        assert start is not None
        if start.hostname != socket.gethostname():
            return silent_ns > SILENT_NS
        return not self._lives(start.hostname, start.pid, start.pid_started)

    def _lives(self, hostname: str | None, pid: int | None, pid_started: str | None) -> bool | None:
        """As alive.is_alive. Another journal of this very process is from before a restart."""
        ours = hostname == socket.gethostname() and pid == os.getpid()
        if ours and pid_started in (None, alive.started_of(os.getpid())):
            return False
        return self._is_alive(hostname, pid, pid_started)


def _claim(ledger: pathlib.Path, journal: pathlib.Path) -> bool:
    """Make this process the one that tells of a journal; False when another was first. Raises OSError."""
    folder = ledger / "told"
    folder.mkdir(parents=True, exist_ok=True)
    content = {"pid": os.getpid(), "hostname": socket.gethostname(), "wall_ns": time.time_ns()}
    try:
        file = os.open(folder / journal.stem, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(file, msgspec.json.encode(content) + b"\n")
    finally:
        os.close(file)
    return True


def _names(folder: pathlib.Path) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def trim(path: pathlib.Path, seen: os.stat_result) -> None:
    """Give back the space beyond the end of a dead process's journal, unless it has changed since `seen`."""
    if getattr(seen, "st_blocks", 0) * 512 <= seen.st_size + RESERVED:
        return
    now = os.stat(path)
    if (now.st_size, now.st_mtime_ns, now.st_ino) != (seen.st_size, seen.st_mtime_ns, seen.st_ino):
        return
    os.truncate(path, now.st_size)
    os.utime(path, ns=(now.st_atime_ns, now.st_mtime_ns))
