"""One bad byte, value or file never costs more than itself, whichever way a ledger is read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import mend, progress, scan, startup, store, table
from stagexec.reading.audit import audit
from tests.reading import damaged
from tests.reading.damaged import NOW, ODD, with_value

Cells = dict[str, list[Any]]


def no_one(*_: Any) -> bool:
    return False


def by_fold(ledger: Path) -> Cells:
    """Run id -> cells, by the fold."""
    return {run.run_id: list(table.flat(run).values()) for run in store.load(ledger, NOW, no_one).runs}


def by_scan(path: Path) -> Cells | None:
    """The same by the lean way, without an index round it; None where that hands the journal to the fold."""
    known = progress.start(path)
    found: Cells = {}
    stretches = []
    for job in progress.jobs(known, path, lambda: ""):
        stretch, rows = scan.scan(job)
        stretches.append(stretch)
        found.update({row[0]: row[: len(table.COLUMNS)] for row in rows})
    done = progress.advance(known, stretches, lambda ids: set(ids) & found.keys())
    if known.whole is not None or done.surprise is not None:
        return None
    found.update({row[0]: row[: len(table.COLUMNS)] for row in done.rows})
    for run_id, (condition, _) in done.late.items():
        found[run_id][list(table.COLUMNS).index("condition_id")] = condition or found[run_id][2]
    found.update({row[0]: row[: len(table.COLUMNS)] for row in progress.open_rows(known, NOW, no_one)})
    return settled(found)


def settled(found: Cells) -> Cells:
    """The rows with what their order in the process adds to their startup classes."""
    names = list(table.COLUMNS)
    raw, name, between, at, models = map(names.index, STARTUP)
    history = startup.History()
    for row in sorted((row for row in found.values() if row[at] is not None), key=lambda row: row[at]):
        facts = startup.from_cell(row[models])
        told = history.take(row[0], row[raw], startup.own_class(row[name], facts), facts)
        row[name], row[between] = told
    return found


STARTUP = ("startup_raw", "startup_class", "startup_between", "started_ns", "models")


def alone(row: list[Any] | None) -> list[Any] | None:
    """A row without its startup class, which is also that of the runs before it."""
    if row is None:
        return None
    return [value for value, name in zip(row, table.COLUMNS, strict=True) if name not in STARTUP[1:3]]


EVENTS = damaged.whole().events
KINDS = sorted({event["event_type"] for event in EVENTS})


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Cells:
    """The rows of the ledger before it is damaged."""
    ledger = tmp_path_factory.mktemp("sound")
    path = damaged.put(ledger, damaged.lines_of(EVENTS))
    damaged.manifest(ledger)
    assert sorted({f.kind for f in audit(ledger) if f.severity == "error"}) == SOUND
    rows = by_fold(ledger)
    assert by_scan(path) == rows
    assert len(rows) == 6
    return rows


SOUND = ["lost_events"]


PER_KIND = 40
"""So many damages of each kind of event are tried, drawn from a seed; 0: all of some thousand."""


def damages(kind: str) -> list[tuple[int, str, bool, str]]:
    """(place of the event, field, as an item of its list, name of the odd value)"""
    places = [at for at, event in enumerate(EVENTS) if event["event_type"] == kind]
    found = [
        (at, field, inside, name)
        for at in sorted({places[0], places[-1]})
        for field, value in EVENTS[at].items()
        for inside in ((False, True) if isinstance(value, list) else (False,))
        for name in ODD
    ]
    return random.Random(kind).sample(found, PER_KIND) if 0 < PER_KIND < len(found) else found


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_cannot_be_costs_itself_and_both_ways_of_reading_agree(
    kind: str, sound: Cells, tmp_path: Path
) -> None:
    lines = damaged.lines_of(EVENTS)
    damaged.put(tmp_path, lines)
    damaged.manifest(tmp_path)
    before = audit(tmp_path)
    wrong = []
    for damage in damages(kind):
        at, field, inside, name = damage
        mine, line = EVENTS[at]["run_id"], with_value(EVENTS[at], field, ODD[name], inside)
        path = damaged.put(tmp_path, [*lines[:at], line, *lines[at + 1 :]])
        folded, scanned = by_fold(tmp_path), by_scan(path)
        if scanned is not None and scanned != folded:
            wrong.append((damage, "the two ways differ"))
        if mine is not None and any(
            alone(folded.get(one)) != alone(row) for one, row in sound.items() if one != mine
        ):
            wrong.append((damage, "another run changed"))
        if mend.read(line).kind is not None and all(one in before for one in audit(tmp_path)):
            wrong.append((damage, "the audit names nothing"))
    assert wrong == []
