"""Another stage table for journals that are there: `--stages FILE`.

The journal holds the seam that opened each segment and the class of each visit, so where the time belongs can
be said again. Times are never touched: a run's segments have the same edges, and add up as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stagexec import files
from stagexec import stages as sets
from stagexec.reading.runs import Run

Place = tuple[str, str | None]
"""(stage, part)"""

KNOWN = ("seam", "nodes", "stage", "hands_off")


class BadStages(ValueError):
    """A file that is no stage table; one line."""


@dataclass
class Rules:
    """What a file says: of seams by id, of node classes, and of stages (with or without a part).

    A seam of OPEN_STAGE leaves its time in the stage that it was in.
    """

    seams: dict[str, Place] = field(default_factory=dict)
    classes: dict[str, Place] = field(default_factory=dict)
    stages: dict[Place, Place] = field(default_factory=dict)


_active: list[Rules] = []
"""The rules that readers of this process go by: the last one."""


@contextlib.contextmanager
def using(rules: Rules) -> Iterator[None]:
    """Read every journal by these rules."""
    _active.append(rules)
    try:
        yield
    finally:
        _active.pop()


def active() -> bool:
    """Whether there are any: then no index is of use."""
    return bool(_active)


def apply(runs: Iterable[Run]) -> None:
    """Put the segments, visits, spans and errors of runs where the active rules say."""
    for rules in _active[-1:]:
        for run in runs:
            _apply(rules, run)


def read(named: str) -> Rules:
    """The rules in a file. Raises BadStages; files.BadPath for one that cannot be read."""
    try:
        raw = files.toml_of(files.text_of(named))
    except files.BadText as error:
        raise BadStages(f"{named}: is not TOML: {error}") from None
    unknown = sorted(set(raw) - set(KNOWN))
    if unknown:
        raise BadStages(f"{named}: unknown table {', '.join(unknown)}; known are {', '.join(KNOWN[:3])}")
    rules = Rules()
    for number, row in _rows(raw, "seam", named):
        where = f"{named}: seam {number}"
        if "stage" in row or row.get("kind") not in ("probe", "replace"):
            rules.seams[_text(row, "id", where)] = _place(row, where)
    for number, row in _rows(raw, "nodes", named):
        where = f"{named}: nodes {number}"
        classes = row.get("classes")
        if not isinstance(classes, list) or not all(isinstance(one, str) for one in classes):
            raise BadStages(f"{where}: classes must be a list of class names")
        rules.classes.update(dict.fromkeys(classes, _place(row, where)))
    for number, row in _rows(raw, "stage", named):
        where = f"{named}: stage {number}"
        told = {"stage": row.get("to"), "part": row.get("to_part")}
        rules.stages[_text(row, "stage", where), row.get("part")] = _place(told, where, "to")
    if not (rules.seams or rules.classes or rules.stages):
        raise BadStages(f"{named}: holds no [[seam]], [[nodes]] or [[stage]] with a stage")
    return rules


def _rows(raw: dict[str, Any], key: str, named: str) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = raw.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadStages(f"{named}: {key} must be written as [[{key}]], once for each row")
    yield from enumerate(rows, 1)


def _text(row: dict[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise BadStages(f"{where}: {key} is missing, or is no text")
    return value


def _place(row: dict[str, Any], where: str, key: str = "stage") -> Place:
    stage, part = row.get("stage"), row.get("part")
    if not isinstance(stage, str) or not (part is None or isinstance(part, str)):
        raise BadStages(f"{where}: {key} is missing, or is no text")
    if stage == sets.OPEN_STAGE and key == "stage":
        return stage, part
    try:
        sets.check(stage, part)
    except ValueError as error:
        raise BadStages(f"{where}: {error}") from None
    return stage, part


def _apply(rules: Rules, run: Run) -> None:
    class_of: dict[int, str | None] = {}
    for event in run.visit_events:
        class_of.update(zip(event.visit, event.node_class, strict=True))
        for at, name in enumerate(event.node_class):
            if name in rules.classes:
                event.stage[at], event.origin[at] = rules.classes[name][0], "table"
    rows = run.segments
    before = list(rows.stage)
    for at, seam in enumerate(rows.seam):
        visit = rows.visit[at]
        name = None if visit is None else class_of.get(visit)
        old = rows.stage[at], rows.part[at]
        stage, part = _moved(rules, old, seam, name)
        rows.stage[at] = stage
        rows.part[at] = name or part if part == sets.NODE_CLASS else part
    for told in run.span_events:
        for at, seam in enumerate(told.name):
            found = rules.seams.get(seam or "")
            if found is not None and found[0] != sets.OPEN_STAGE:
                told.stage[at] = found[0]
    _place_error(run, before)


def _moved(rules: Rules, old: Place, seam: str | None, name: str | None) -> Place:
    """Where a segment belongs: by its seam, else by its class where the time is the class's own."""
    if seam is not None and seam in rules.seams:
        found = rules.seams[seam]
        return old if found[0] == sets.OPEN_STAGE else found
    if seam is None and name in rules.classes and old[0] not in sets.HOST_STAGES:
        return rules.classes[name]
    for key in (old, (old[0], None)):
        if key in rules.stages:
            return rules.stages[key]
    return old


def _place_error(run: Run, before: list[str]) -> None:
    """An error is where the last segment of its visit in that stage is now."""
    error = run.error
    if error is None or error.stage is None:
        return
    rows = run.segments
    for at in range(len(before) - 1, -1, -1):
        if before[at] == error.stage and (error.visit is None or rows.visit[at] == error.visit):
            error.stage = rows.stage[at]
            return
