"""Find and decode journal files; whatever is torn, unknown or unreadable is remembered, not raised."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import stat
from collections.abc import Iterator
from typing import BinaryIO

from stagexec import format as journal_format
from stagexec.reading import events, mend

PROCESS = re.compile(r"(.*-\d+-\d+)(?:\D.*)?\Z", re.DOTALL)
"""The name of a journal names its process: also that of a copy that was put aside beside it."""

TAIL = 64 * 1024
"""In so many bytes at the end of a file its last event is looked for."""

_TIME = re.compile(rb'"ts_mono_ns": ?(-?\d{1,19})[,}]')


@dataclasses.dataclass(slots=True)
class Problem:
    """One line (or a whole file, `line` 0) that could not be taken as an event.

    kind: torn_last, torn_middle, unknown_event, malformed, newer_format or unreadable.
    """

    kind: str
    file: str
    line: int
    what: str


class Source:
    """The journal of one process: a file, or its parts in several day folders, oldest first."""

    def __init__(self, name: str, paths: list[pathlib.Path]) -> None:
        self.name = name
        self.paths = paths
        self.problems: list[Problem] = []

    def read(self) -> Iterator[tuple[str, int, events.Event]]:
        """Yield (file, line number from 1, event); `problems` is filled afresh as this goes on."""
        self.problems = []
        for path in self.paths:
            yield from self._file(str(path))

    def _file(self, file: str) -> Iterator[tuple[str, int, events.Event]]:
        torn: tuple[int, str] | None = None
        number, begun = 0, False
        try:
            with opened(file) as stream:
                for number, line in enumerate(stream, 1):
                    event, kind, what = mend.read(line)
                    if torn is not None and (event is not None or kind is not None):
                        # A file that was cut in mid-life goes on with its head: what was torn is told again.
                        head = begun and type(event) is events.ProcessStart
                        self._note("torn_last" if head else "torn_middle", file, *torn)
                        torn = None
                    if kind == "torn":
                        torn = number, what
                    elif kind is not None:
                        self._note(kind, file, number, what)
                    if event is None:
                        continue
                    if type(event) is events.ProcessStart:
                        begun = True
                        self._check_version(file, number, event)
                    yield file, number, event
        except OSError as error:
            self._note("unreadable", file, 0, f"cannot be read: {error.strerror or error}")
        if torn is not None:
            self._note("torn_last", file, *torn)

    def _check_version(self, file: str, number: int, event: events.ProcessStart) -> None:
        if event.format_version > journal_format.VERSION:
            what = f"format {event.format_version}, this reader knows {journal_format.VERSION}"
            self._note("newer_format", file, number, what)

    def _note(self, kind: str, file: str, line: int, what: str) -> None:
        self.problems.append(Problem(kind, file, line, what))


def opened(file: str | pathlib.Path, buffering: int = -1) -> BinaryIO:
    """A file to be read. Raises OSError, also for what is no file and might never end or answer."""
    mode = os.stat(file).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a folder says by itself that it is one
        raise OSError("no regular file")
    return open(file, "rb", buffering=buffering)


def sources(ledger: pathlib.Path) -> list[Source]:
    """The journals under `ledger`, oldest day first. A ledger without a journal has none.

    A day folder that cannot be listed is a source without lines, whose problem says so.
    """
    found: dict[str, Source] = {}
    root = ledger / "journal"
    for day in _listed(root, found):
        if not _is_folder(day):
            continue
        for path in _listed(day, found):
            if path.suffix == ".jsonl":
                name = process_of(path.stem)
                found.setdefault(name, Source(name, [])).paths.append(_named(path))
    for source in found.values():
        if len(source.paths) > 1:
            source.paths.sort(key=_last_time)  # stable: by day where the files do not tell
    return list(found.values())


def process_of(stem: str) -> str:
    """What the names of all parts and copies of one process's journal have in common."""
    match = PROCESS.match(stem)
    return match[1] if match else stem


def size_of(ledger: pathlib.Path) -> int:
    """Bytes of all journals, as far as they can be looked at."""
    total = 0
    for source in sources(ledger):
        for path in source.paths:
            try:
                found = path.stat()
            except OSError:
                continue  # its reader says why
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def _last_time(path: pathlib.Path) -> int:
    """The time of the last event of a file: a part that was put aside ends before the one made after it."""
    try:
        with opened(path) as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL))
            times = _TIME.findall(stream.read())
    except OSError:
        return 0
    return max((time for time in map(int, times) if abs(time) <= 2**60), default=0)


def _named(path: pathlib.Path) -> pathlib.Path:
    """A path whose name is no text is no journal of ours: told by a name that can be, and is not there."""
    return pathlib.Path(str(path).encode("utf-8", "backslashreplace").decode())


def _is_folder(path: pathlib.Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _listed(folder: pathlib.Path, found: dict[str, Source]) -> list[pathlib.Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError:
        # Opening the folder as a file fails in the same way, so it is named like an unreadable file.
        found[str(folder)] = Source(str(folder), [_named(folder)])
        return []
