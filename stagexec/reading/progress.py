"""How far each journal of a ledger has been read into rows, and reading on from there."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

import msgspec

from stagexec.reading import events, lean, mend, scan, table
from stagexec.reading.fold import Alive, fold
from stagexec.reading.journal import Source, opened

STRETCH = 48 * 1024**2
"""Bytes of one job: a few of them a core, so that the cores end together."""

HEAD_BYTES = 1024**2

MARK_BYTES = 1024
"""So many bytes before `offset` say whether a file is the one that was read, or was made again meanwhile."""


class Progress(msgspec.Struct):
    """Of one journal file: all before byte `offset` is in rows, but for the runs that are `open`."""

    file: str
    offset: int = 0
    mark: str = ""
    size: int = 0
    mtime_ns: int = 0
    inode: int = 0
    head: list[str] = []
    head_end: int = 0
    open: dict[str, list[list[int]]] = {}
    heartbeats: list[list[int]] = []
    last_ns: int = 0
    ended: bool = False
    whole: str | None = None
    """Why this journal is folded in full each time that it has grown; None for most."""
    torn: int = 0


class Row(msgspec.Struct):
    """Cells of one run, and whether it is over for good."""

    cells: list[Any]
    over: bool


def start(path: pathlib.Path) -> Progress:
    """Nothing of the file has been read yet. Raises OSError."""
    found = Progress(str(path))
    head: list[str] = []
    with opened(path) as stream:
        for line in stream:
            if b'"seams"' not in line[:40]:
                if not any(b'"%s"' % kind in line[:40] for kind in scan.CHANGES) or line[-1:] != b"\n":
                    break
                head.append(line.decode("utf-8", "replace"))
            found.head_end += len(line)
            if found.head_end > HEAD_BYTES:
                break
    found.head = head
    found.offset = found.head_end
    if not any("process_start" in line[:40] for line in head):
        found.whole = "the head of the journal is missing"
    return found


def is_behind(known: Progress, path: pathlib.Path) -> bool:
    """Whether the file has changed since. Raises OSError."""
    stat = path.stat()
    return (stat.st_size, stat.st_mtime_ns, stat.st_ino) != (known.size, known.mtime_ns, known.inode)


def is_another(known: Progress, path: pathlib.Path) -> bool:
    """Whether it is not the file that was read before, or was cut and has grown again. Raises OSError."""
    stat = path.stat()
    if stat.st_size < known.offset or stat.st_ino != known.inode:
        return True
    with opened(path) as stream:
        return known.mark != _mark(stream, known.offset)


def _mark(stream: BinaryIO, offset: int) -> str:
    start = max(0, offset - MARK_BYTES)
    stream.seek(start)
    return hashlib.sha256(stream.read(offset - start)).hexdigest()


def jobs(known: Progress, path: pathlib.Path, rows_file: Callable[[], str]) -> list[scan.Job]:
    """The stretches of the file that have not been read. Raises OSError."""
    stat = path.stat()
    known.size, known.mtime_ns, known.inode = stat.st_size, stat.st_mtime_ns, stat.st_ino
    found = []
    with opened(path) as stream:
        begin = known.offset
        while begin < stat.st_size:
            end = min(begin + STRETCH, stat.st_size)
            if end < stat.st_size:
                stream.seek(end)
                end += len(stream.readline())
            found.append(scan.Job(str(path), begin, end, known.head, rows_file(), known.head_end))
            begin = end
    return found


class Advance:
    """What reading on in one journal brought beside the rows in files."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.late: dict[str, tuple[str | None, dict[str, str]]] = {}
        """Run id -> (condition id, packs) that became known after the run's row was made."""
        self.surprise: str | None = None


Known = Callable[[Iterable[str]], set[str]]
"""Those of some runs that have a row already."""


def advance(known: Progress, stretches: list[scan.Found], with_row: Known) -> Advance:
    """Take what the stretches after `known.offset` hold, in their order; `known` is moved on.

    Raises OSError.
    """
    done = Advance()
    fresh: dict[str, None] = {}
    for found in stretches:
        done.surprise = done.surprise or found.surprise
        known.offset, known.torn = found.end, known.torn + found.torn
        known.last_ns, known.ended = max(known.last_ns, found.last_ns), known.ended or found.ended
        known.heartbeats = [*known.heartbeats, *found.heartbeats][-scan.MAX_HEARTBEATS :]
        for run_id, places in found.open.items():
            known.open.setdefault(run_id, []).extend(places)
            fresh[run_id] = None
    if done.surprise is None and fresh:
        _finish(known, list(fresh), done, with_row(fresh))
    if done.surprise is None and known.open:
        twice = with_row(known.open)  # begun in one stretch, told again in another
        done.surprise = f"run {min(twice)} is told again" if twice else None
    if not known.open:
        known.heartbeats = []
    with opened(known.file) as stream:
        known.mark = _mark(stream, known.offset)
    return done


def _finish(known: Progress, run_ids: list[str], done: Advance, have_row: set[str]) -> None:
    head = lean.Head([line.encode() for line in known.head])
    with opened(known.file) as stream:
        for run_id in run_ids:
            places = known.open[run_id]
            lines = [_line(stream, *place) for place in places]
            kinds = [kind for kind, _, _ in lines]
            if kinds.count(b"run_accepted") > 1:
                done.surprise = f"run {run_id} is told again"
                return
            if b"run_accepted" not in kinds and run_id in have_row:
                if not set(kinds) <= set(scan.MAY_FOLLOW):
                    done.surprise = f"run {run_id} goes on after its end"
                    return
                done.late[run_id] = _told_late(lines)
                del known.open[run_id]
            elif b"run_closed" in kinds:
                try:
                    cells = lean.row_of(known.file, head, run_id, lines)
                except lean.TwoRuns:
                    done.surprise = f"a line of run {run_id} names another"
                    return
                if cells is not None and cells[lean.OUTCOME] is not None:
                    done.rows.append([*cells, known.file, places[0][0], places[-1][1]])
                    del known.open[run_id]


def _line(stream: Any, begin: int, end: int) -> lean.Line:
    stream.seek(begin)
    line: bytes = stream.read(end - begin)
    found = ordered(line) or line
    return found[len(lean.PREFIX) : found.find(b'"', len(lean.PREFIX))], found, begin


def ordered(line: bytes) -> bytes | None:
    """A line with the type and the run first, by any writer; None for what is no event."""
    plain = line.startswith(lean.PREFIX) and not any(line.find(key, 60) > 0 for key in scan.AGAIN)
    return line if plain else lean.in_order(line)


def _told_late(lines: list[lean.Line]) -> tuple[str | None, dict[str, str]]:
    packs: dict[str, str] = {}
    for kind, line, _ in lines:
        if kind == b"identity":
            event = mend.decoded(line)
            if isinstance(event, events.Identity):
                packs.update(event.packs)
    return lean.last_condition(lines), packs


def open_rows(known: Progress, now_wall_ns: int, is_alive: Alive) -> list[list[Any]]:
    """Rows of the runs that have no end in the journal: `lost`, or still under way. Raises OSError."""
    if not known.open:
        return []
    places = sorted([*(p for ps in known.open.values() for p in ps), *known.heartbeats])
    with opened(known.file) as stream:
        lines = [_line(stream, *place)[1] for place in places]
    folded = lean.folded(known.file, [line.encode() for line in known.head], lines)
    folded.process.last_ns = known.last_ns or folded.process.last_ns
    if known.ended and folded.process.end is None:
        folded.process.end = events.ProcessEnd(ts_mono_ns=known.last_ns)
    runs = [run for run in folded.finish(now_wall_ns, is_alive) if run.run_id in known.open]
    for run in runs:
        run.startup = None  # the runs before it are not here: startup_rows knows them
    return [
        [*table.flat(run).values(), known.file, known.open[run.run_id][0][0], known.open[run.run_id][-1][1]]
        for run in runs
    ]


def whole_rows(source: Source, now_wall_ns: int, is_alive: Alive) -> list[Row]:
    """Rows of a journal that is folded in full."""
    file = str(source.paths[0])
    found = []
    for run in fold(source, now_wall_ns, is_alive):
        over = run.closed is not None
        found.append(Row([*table.flat(run).values(), file, 0, 0], over))
    return found
