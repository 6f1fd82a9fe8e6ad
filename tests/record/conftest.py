"""Journals to write and to read back, with a disk that can be full, hang or vanish."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from stagexec.record import clock, journal_file
from stagexec.record import journal as journal_module
from stagexec.record.journal import Journal, event
from stagexec.record.run import Run
from tests.faults import faults_expected, fresh_recorder, no_fault_of_ours

__all__ = ["faults_expected", "fresh_recorder", "no_fault_of_ours"]

Event = dict[str, Any]


class Disk:
    """Stands in for the module `os` under the journal's file: room for so many bytes, and writes that hang.

    `reserved`: bytes that were set aside, which a full disk still takes.
    """

    def __init__(self) -> None:
        self.room: float = float("inf")
        self.reserved: float = 0
        self.may_open = True
        self.hanging = threading.Event()
        self.released = threading.Event()
        self.released.set()

    def write(self, file: int, data: bytes) -> int:
        if not self.released.is_set():
            self.hanging.set()
            self.released.wait(60)
        if self.room + self.reserved <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = os.write(file, bytes(data[: int(min(len(data), self.room + self.reserved))]))
        self.room -= max(0, done - self.reserved)
        self.reserved = max(0, self.reserved - done)
        return done

    def fallocate(self, _file: int, _begin: int, size: int) -> int:
        if self.room + self.reserved < size:
            return errno.ENOSPC
        self.room -= max(0, size - self.reserved)
        self.reserved = max(self.reserved, size)
        return 0

    def fill(self) -> None:
        """No room for anything, and nothing set aside."""
        self.room = self.reserved = 0

    def open(self, *args: Any) -> int:
        if not self.may_open:
            raise OSError(errno.EROFS, "Read-only file system")
        return os.open(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The writer's disk. Without a pause after a failed write: a test does not wait for it."""
    one = Disk()
    monkeypatch.setattr(journal_file, "os", one)
    monkeypatch.setattr(journal_file, "_fallocate", one.fallocate)
    monkeypatch.setattr(journal_module, "RETRY_S", 0.0)
    return one


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is lost at once: no memory to wait in."""
    monkeypatch.setattr(journal_module, "WAITING_BYTES", 0)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """A journal whose rounds the test does itself, with tick()."""
    return Journal(tmp_path)


def mark(number: int, **more: Any) -> Event:
    return event("mark", source="seam", name="test", detail={"number": number, **more})


def started_run() -> Run:
    """A run in execution on the calling thread, outside `live`."""
    run = Run("prompt", clock.now_ns(), clock.now_ns)
    run.thread = threading.get_ident()
    run.started = True
    return run


def events_in(ledger: Path) -> list[Event]:
    """Every event of the only journal file under `ledger`; a line that is no JSON fails the test."""
    (file,) = (ledger / "journal").glob("*/*.jsonl")
    return [json.loads(line) for line in file.read_bytes().splitlines() if line]


def numbers(events: list[Event]) -> list[int]:
    """The numbers of the marks of `mark`."""
    return [one["detail"]["number"] for one in events if one.get("name") == "test"]
