"""What a host did and when, in a mapped file that outlives it: the truth that a ledger is compared with."""

from __future__ import annotations

import dataclasses
import mmap
import struct
import threading
import time
from pathlib import Path

RECORD = struct.Struct("<qqq")
MOST = 60_000
SIZE = RECORD.size * MOST

EVENT, DELAY, HOLD, DONE, DELIVER, STARTED, ROUND = 1, 2, 3, 4, 5, 6, 7
"""Kinds: a segment ended · a thread that slept woke late · the interpreter's lock is taken in C · a prompt is
closed · a delivery began · a prompt began · the sleeping thread looked."""


class Pen:
    """Writes records. Each costs a microsecond and needs no one else; a kill leaves what was written."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)
        self._at = 1

    def write(self, kind: int, value: int = 0) -> None:
        """A record of now."""
        if self._at < MOST:
            RECORD.pack_into(self._map, self._at * RECORD.size, kind, time.perf_counter_ns(), value)
            self._at += 1


@dataclasses.dataclass
class Account:
    """The records of one host, in order, as (kind, ns, value)."""

    records: list[tuple[int, int, int]]

    def times(self, kind: int, value: int | None = None) -> list[int]:
        """When records of a kind, and with a value, were written, ns."""
        return [at for one, at, held in self.records if one == kind and value in (None, held)]

    def awake_ns(self) -> int | None:
        """When the witness thread looked last."""
        return max(self.times(ROUND), default=None)

    def lateness_ns(self, at: int, within_ns: int = 400_000_000) -> int:
        """By how much a thread that sleeps as the journal's does was woken late, shortly before `at`."""
        late = [value for one, then, value in self.records if one == DELAY and at - within_ns <= then <= at]
        rounds = [then for one, then, _ in self.records if one == ROUND and then <= at]
        asleep = at - rounds[-1] - SLEEP_NS if rounds else 0
        return max([0, asleep, *late])


SLEEP_NS = 20_000_000
"""The witness thread sleeps so long, as the journal's does."""


def sheet(path: Path) -> Path:
    """An empty file to write records to."""
    path.write_bytes(bytes(SIZE))
    return path


def read(path: Path) -> Account:
    """What is written so far; by several pens one after the other, when a host was started again."""
    found = []
    data = path.read_bytes()
    for at in range(1, MOST):
        record = RECORD.unpack_from(data, at * RECORD.size)
        if not record[0]:
            break
        found.append(record)
    return Account(found)


def watch_lateness(pen: Pen) -> None:
    """The witness thread's whole life."""
    while True:
        before = time.perf_counter_ns()
        time.sleep(SLEEP_NS / 1e9)
        late = time.perf_counter_ns() - before - SLEEP_NS
        pen.write(ROUND)
        if late > 1_000_000:
            pen.write(DELAY, late)


def start(path: str) -> Pen:
    """A pen for that file, with the witness thread beside it."""
    pen = Pen(Path(path))
    threading.Thread(target=watch_lateness, args=(pen,), name="chaos-witness", daemon=True).start()
    return pen
