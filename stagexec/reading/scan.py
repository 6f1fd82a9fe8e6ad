"""Reads a stretch of a journal into rows: each run that ends in it, and the lines of those that do not.

Run as `python -m stagexec.reading.scan` it is a worker: a job a line on standard input, an answer a line
on standard output, rows in files of their own, so that two cores can read one ledger.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from stagexec.reading import alive, journal, lean, table

COLUMNS = (*table.COLUMNS, "first_byte", "end_byte")
"""Of the files of rows: the journal is the same for all rows of one, so its reader puts that in."""

TAIL = 256 * 1024
"""The last sign of life is looked for in this many bytes: the writer's order is nearly that of time."""

BUFFER = 1024**2

MAX_HEARTBEATS = 1000

RESTART = b'"restart_begun"'
"""In the mark of a process that has started its successor."""

BATCH = 2000
"""Rows in one line of a file of rows."""

CHANGES = (b"process_start", b"host_facts")
"""Events of the process that rows depend on."""

MAY_FOLLOW = (b"identity", b"condition")
"""Events of a run that may be written after its end."""

_TIME = re.compile(rb'"ts_mono_ns": ?(-?\d{1,19})[,}]')

_PLAIN = re.compile(rb"[ !#-\[\]-~]*\Z")
"""See mend.is_name."""

_MOST_NS = 2**60
"""See events.Mono."""

AGAIN = (b'"run_id":', b'"event_type":')
"""Keys that stand once in a line: of two the last would count, and the first is what is looked at here."""


class Job(msgspec.Struct):
    """Bytes `start` to `end` of `file`: whole lines. `head`: the journal's first lines."""

    file: str
    start: int
    end: int
    head: list[str]
    rows_file: str
    head_end: int = 0
    """Byte at which the head ends: its own events are no surprise before it."""


class Found(msgspec.Struct):
    """What a stretch holds besides its rows. Places are [first byte, end byte] of lines."""

    rows: int = 0
    open: dict[str, list[list[int]]] = {}
    """Runs that do not begin and end here -> their lines."""
    heartbeats: list[list[int]] = []
    last_ns: int = 0
    ended: bool = False
    surprise: str | None = None
    """Why the whole journal must be folded: its head changes in mid-file, or a run goes on after its end."""
    torn: int = 0
    end: int = 0
    """Byte after the last whole line."""


class _Stretch:
    """The state of one stretch while its lines go by."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.head = lean.Head([line.encode() for line in job.head])
        self.found = Found(end=job.start)
        self.runs: dict[bytes, list[lean.Line]] = {}
        self.late: dict[bytes, list[lean.Line]] = {}
        self.done: set[bytes] = set()
        self.rows: list[list[Any]] = []
        self.ends: dict[int, int] = {}
        """Byte at which an odd line lies -> byte at which it ends, since it was laid out again."""

    def read(self, lines: Iterable[bytes]) -> int:
        """Take every whole line; the byte after the last of them."""
        at, stop = self.job.start, self.job.end
        runs, done, prefix, marker = self.runs, self.done, lean.PREFIX, lean.RUN_ID
        skip, width = len(prefix), len(marker)
        for line in lines:
            if at >= stop or line[-1:] != b"\n":
                break  # the next stretch's; or half a line, looked at again when there is more
            kind_end = line.find(b'"', skip)
            id_start = kind_end + width
            if line[:skip] != prefix or line[kind_end:id_start] != marker:
                self._odd(line, at)
            else:
                run_id = line[id_start : line.find(b'"', id_start)]
                kind = line[skip:kind_end]
                if run_id in done:
                    self._late(kind, run_id, line, at)
                elif run_id in runs:
                    runs[run_id].append((kind, line, at))
                    if kind == b"run_closed":
                        self._end(run_id)
                    elif kind == b"run_accepted":
                        self._again(run_id, at)
                elif not _PLAIN.match(run_id):  # written with escapes, or damaged
                    self._odd(line, at)
                else:
                    runs[run_id] = [(kind, line, at)]
            at += len(line)
        return at

    def _odd(self, line: bytes, at: int) -> None:
        """A line of no run, or one that another writer laid out."""
        of_process = line.startswith(lean.PREFIX) and b'","run_id":null' in line[:60]
        ordered = line if of_process else lean.in_order(line)
        if ordered is None:
            self.found.torn += bool(line.strip())
            return
        self.ends[at] = at + len(line)
        kind_end = ordered.find(b'"', len(lean.PREFIX))
        kind = ordered[len(lean.PREFIX) : kind_end]
        id_start = kind_end + len(lean.RUN_ID)
        if ordered[kind_end:id_start] == lean.RUN_ID:
            run_id = ordered[id_start : ordered.find(b'"', id_start)]
            if run_id in self.done:
                self._late(kind, run_id, ordered, at)
                return
            known = run_id in self.runs
            self.runs.setdefault(run_id, []).append((kind, ordered, at))
            if kind == b"run_closed":
                self._end(run_id)
            elif kind == b"run_accepted" and known:
                self._again(run_id, at)
        elif kind in (b"heartbeat", b"process_end") or (kind == b"mark" and RESTART in ordered):
            self.found.heartbeats = [*self.found.heartbeats[-MAX_HEARTBEATS:], [at, at + len(line)]]
            self.found.ended = kind == b"process_end"
        elif kind in CHANGES and at >= self.job.head_end and _text(line) not in self.job.head:
            # Not the writer beginning a file made again with its head, which is no news.
            self.found.surprise = f"{_text(kind)} again at byte {at}"

    def _late(self, kind: bytes, run_id: bytes, line: bytes, at: int) -> None:
        if kind in MAY_FOLLOW:
            self.late.setdefault(run_id, []).append((kind, line, at))
        else:
            self.found.surprise = f"{kind.decode('utf-8', 'replace')} of a run after its end, at byte {at}"

    def _again(self, run_id: bytes, at: int) -> None:
        """A run that is told again, as in a file that was made again, is another matter from here on."""
        if sum(kind == b"run_accepted" for kind, _, _ in self.runs[run_id]) > 1:
            self.found.surprise = f"a run is told again at byte {at}"

    def _end(self, run_id: bytes) -> None:
        lines = self.runs[run_id]
        if lines[0][0] != b"run_accepted":  # its lines begin in an earlier stretch, whose reader ends it
            return
        try:
            row = lean.row_of(self.job.file, self.head, _text(run_id), lines)
        except lean.TwoRuns:
            self.found.surprise = f"a line names two runs, before byte {lines[-1][2]}"
            return
        if row is None or row[lean.OUTCOME] is None:  # the line of its end is damaged: it has none
            return
        self.done.add(run_id)
        del self.runs[run_id]
        row += (lines[0][2], self._line_end(lines[-1]))
        self.rows.append(row)

    def _line_end(self, line: lean.Line) -> int:
        return self.ends.get(line[2], line[2] + len(line[1]))

    def open(self) -> dict[str, list[list[int]]]:
        """Where the lines lie of runs that are left over."""
        return {
            name.decode(): [[line[2], self._line_end(line)] for line in lines]
            for name, lines in [*self.runs.items(), *self.late.items()]
        }


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def scan(job: Job) -> tuple[Found, list[list[Any]]]:
    """Read one stretch. Raises OSError."""
    stretch = _Stretch(job)
    found = stretch.found
    with journal.opened(job.file, BUFFER) as stream:
        stream.seek(job.start)
        found.end = stretch.read(stream)
        stream.seek(max(job.start, found.end - TAIL))
        tail = stream.read(found.end - stream.tell())
    found.open = stretch.open()
    found.rows = len(stretch.rows)
    found.last_ns = last_time(tail)
    return found, stretch.rows


def last_time(tail: bytes) -> int:
    """The last sign of life that some lines tell."""
    sign = alive.LastSign()
    for line in tail.splitlines():
        time = _TIME.search(line[:400])
        if time is not None and abs(int(time[1])) <= _MOST_NS:
            sign.take(int(time[1]))
    return sign.ns


def write_rows(path: str, rows: list[list[Any]]) -> None:
    """Rows as JSON, BATCH of them a line, one list a column: half the price of CSV, and nulls stay nulls."""
    encode = msgspec.json.Encoder().encode
    with open(path, "wb") as out:
        for start in range(0, len(rows), BATCH):
            columns = zip(*rows[start : start + BATCH], strict=True)
            out.write(encode(dict(zip(COLUMNS, columns, strict=True))) + b"\n")


def work(job: Job) -> Found:
    """Read one stretch and write its rows; a file that cannot be read is a surprise."""
    try:
        found, rows = scan(job)
        write_rows(job.rows_file, rows)
    except OSError as error:
        return Found(surprise=f"{pathlib.Path(job.file).name}: {error.strerror or error}", end=job.start)
    except Exception as error:  # noqa: BLE001 (whatever this journal holds: the fold reads it, others go on)
        return Found(surprise=f"{pathlib.Path(job.file).name}: {error!r}", end=job.start)
    return found


def main() -> None:
    """Work through the jobs on standard input."""
    import gc

    gc.disable()  # rows are trees: nothing here needs the collector, and it costs a fifth of the time
    decode = msgspec.json.Decoder(Job).decode
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(work(decode(line))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
