"""Find and decode journal files; whatever is torn, unknown or unreadable is remembered, not raised."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator

import msgspec

from stagexec import format as journal_format
from stagexec.reading import events

_decode = msgspec.json.Decoder(events.AnyEvent).decode


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
        number = 0
        try:
            with open(file, "rb") as stream:
                for number, line in enumerate(stream, 1):
                    if torn is not None:
                        self._note("torn_middle", file, *torn)
                        torn = None
                    try:
                        event = _decode(line)
                    except (msgspec.DecodeError, RecursionError) as error:
                        torn = self._judge(file, number, line, error)
                        continue
                    if type(event) is events.ProcessStart:
                        self._check_version(file, number, event)
                    yield file, number, event
        except OSError as error:
            self._note("unreadable", file, 0, f"cannot be read: {error.strerror or error}")
        if torn is not None:
            self._note("torn_last", file, *torn)

    def _judge(self, file: str, number: int, line: bytes, error: Exception) -> tuple[int, str] | None:
        """Tell an unknown or misshapen event from a torn line; (line, reason) when it is torn."""
        if not line.strip():
            return None
        try:
            found = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as worse:
            return number, str(worse)
        name = found.get("event_type") if isinstance(found, dict) else None
        if isinstance(name, str) and name not in journal_format.EVENTS:
            self._note("unknown_event", file, number, name)
        else:
            self._note("malformed", file, number, f"{name or 'no event'}: {error}")
        return None

    def _check_version(self, file: str, number: int, event: events.ProcessStart) -> None:
        if event.format_version > journal_format.VERSION:
            what = f"format {event.format_version}, this reader knows {journal_format.VERSION}"
            self._note("newer_format", file, number, what)

    def _note(self, kind: str, file: str, line: int, what: str) -> None:
        self.problems.append(Problem(kind, file, line, what))


def sources(ledger: pathlib.Path) -> list[Source]:
    """The journals under `ledger`, oldest day first. A ledger without a journal has none.

    A day folder that cannot be listed is a source without lines, whose problem says so.
    """
    found: dict[str, Source] = {}
    root = ledger / "journal"
    for day in _listed(root, found):
        if not day.is_dir():
            continue
        for path in _listed(day, found):
            if path.suffix == ".jsonl":
                found.setdefault(path.name, Source(path.name, [])).paths.append(path)
    return list(found.values())


def _listed(folder: pathlib.Path, found: dict[str, Source]) -> list[pathlib.Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError:
        # Opening the folder as a file fails in the same way, so it is named like an unreadable file.
        found[str(folder)] = Source(str(folder), [folder])
        return []
