"""Seam and node tables: read TOML, check it, say exactly what is wrong and where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from stagexec import files
from stagexec.host.probes import PROBES
from stagexec.resources import patches_folder
from stagexec.stages import NODE_CLASS, OPEN_STAGE, STAGES, check

_ID = re.compile(r"[a-z][a-z0-9_]*")
_TARGET = re.compile(r"(?:[\w.]+|[\w.\-/ ]+\.py):[\w.]+")


class TableError(ValueError):
    """A table that cannot be used; the message names the file, the row and what is wrong."""


class PartInside(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part that counts while another seam is open."""

    seam: str
    part: str


class SeamRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One place in the host. `target` holds its spellings, newest first; the first that exists wins."""

    id: str
    target: tuple[str, ...]
    kind: Literal["stage", "replace", "probe"]
    why: str
    hosts: str
    stage: str | None = None
    part: str | None = None
    part_inside: PartInside | None = None
    not_inside: tuple[str, ...] = ()
    not_while: tuple[str, ...] = ()
    """Stages that go on when they are open: the call is part of their work."""
    inside: tuple[str, ...] = ()
    threads: bool = True
    often: bool = False
    subclasses: bool = False
    probe: str | None = None
    source: str = ""


class NodeGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Node classes of one stage, as they stand in a file."""

    stage: str
    why: str
    classes: tuple[str, ...]
    part: str | None = None
    hint: str | None = None
    """Only with stage node_other: what such a class likely does where no seam tells."""


class HandsOff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A place that must never be patched, and why."""

    target: str
    why: str


@dataclass(frozen=True)
class NodeRow:
    """What a table says of one node class. `part` is None where the stage has no certain part."""

    stage: str
    part: str | None
    why: str
    source: str
    hint: str | None = None
    """The likely stage of a class that does several things: only its seams tell for certain."""


@dataclass
class Tables:
    """All tables of a process, merged: user files over shipped ones."""

    seams: dict[str, SeamRow] = field(default_factory=dict)
    nodes: dict[str, NodeRow] = field(default_factory=dict)
    hands_off: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


def load(extra: Sequence[Path | str] = (), folder: Path | None = None) -> Tables:
    """The shipped tables with those of `extra` files over them; TableError when any cannot be used.

    A user's seam with a shipped id takes its place (so a host's rename can be repaired without us),
    and a user's node class takes the place of the shipped one.
    """
    merged = Tables()
    for path in sorted((folder or patches_folder()).glob("*.toml")):
        _merge(merged, read(path), override=False)
    for given in extra:
        if not str(given):
            raise TableError("--stagexec-patches: an empty name is no path")
        _merge(merged, read(Path(given)), override=True)
    _check_references(merged)
    return merged


def read(path: Path) -> Tables:
    """One file as tables, each row checked by itself."""
    name = str(path)
    try:
        raw = files.toml_of(files.text_of(path))
    except files.BadPath as error:
        raise TableError(str(error)) from None
    except files.BadText as error:
        raise TableError(f"{name}: is not TOML: {error}") from None
    unknown = set(raw) - {"seam", "nodes", "hands_off"}
    if unknown:
        raise TableError(
            f"{name}: unknown table {', '.join(sorted(unknown))}; known are seam, nodes, hands_off"
        )
    tables = Tables(files=[name])
    for number, one in enumerate(_rows(raw, "seam", name), 1):
        row = _seam(one, name, number)
        if row.id in tables.seams:
            raise TableError(f"{name}: seam '{row.id}': the id is used twice in this file")
        tables.seams[row.id] = row
    for number, one in enumerate(_rows(raw, "nodes", name), 1):
        _add_nodes(tables, one, name, number)
    for number, one in enumerate(_rows(raw, "hands_off", name), 1):
        row_off = _convert(one, HandsOff, f"{name}: hands_off {number}")
        tables.hands_off[row_off.target] = row_off.why
    return tables


def _rows(raw: dict[str, Any], key: str, name: str) -> list[Any]:
    rows = raw.get(key, [])
    if not isinstance(rows, list):
        raise TableError(f"{name}: {key} must be written as [[{key}]], once for each row")
    return rows


def _convert(one: Any, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(one, kind)
    except msgspec.ValidationError as error:
        raise TableError(f"{where}: {error}") from None


def _seam(one: Any, name: str, number: int) -> SeamRow:
    known_id = one.get("id") if isinstance(one, dict) else None
    where = f"{name}: seam '{known_id}'" if isinstance(known_id, str) else f"{name}: seam {number}"
    if isinstance(one, dict):
        if "source" in one:
            raise TableError(f"{where}: Object contains unknown field `source`")
        if isinstance(one.get("target"), str):
            one = {**one, "target": [one["target"]]}
        one = {**one, "source": name}
    row: SeamRow = _convert(one, SeamRow, where)
    problem = _seam_problem(row)
    if problem:
        raise TableError(f"{where}: {problem}")
    return row


def _seam_problem(row: SeamRow) -> str | None:
    """What is wrong with a row looked at by itself, or None."""
    if not _ID.fullmatch(row.id):
        return "the id must be lower-case letters, digits and underscores"
    if not row.target:
        return "target is empty; it takes at least one 'module:qualname'"
    wrong = [one for one in row.target if not _TARGET.fullmatch(one)]
    if wrong:
        return f"target {wrong[0]!r} is neither 'module:qualname' nor 'folder/file.py:qualname'"
    if not row.why.strip() or not row.hosts.strip():
        return "why and hosts must say something"
    if row.probe is not None and row.probe not in PROBES:
        return f"unknown probe {row.probe!r}; the probes are: {', '.join(sorted(PROBES))}"
    return _stage_row_problem(row) if row.kind == "stage" else _other_row_problem(row)


def _stage_row_problem(row: SeamRow) -> str | None:
    if row.stage is None:
        return "a row of kind stage needs a stage"
    if row.stage == OPEN_STAGE:
        return "the open stage keeps its part" if row.part or row.part_inside else None
    inner = row.part_inside.part if row.part_inside else None
    unknown = [one for one in row.not_while if one not in STAGES]
    if unknown:
        return f"not_while names {unknown[0]!r}, which is no stage"
    try:
        check(row.stage, None if row.part == NODE_CLASS else row.part)
        check(row.stage, inner)
    except ValueError as error:
        return str(error)
    return None


def _other_row_problem(row: SeamRow) -> str | None:
    if row.stage or row.part or row.part_inside or row.inside or row.not_inside or row.not_while:
        return f"a row of kind {row.kind} has no stage, part, part_inside, inside, not_inside or not_while"
    if row.often or row.subclasses:
        return f"a row of kind {row.kind} is neither often nor of subclasses"
    if row.kind == "probe" and row.probe is None:
        return "a row of kind probe needs the name of a probe"
    if row.kind == "replace" and row.probe is not None:
        return "a row of kind replace has no probe"
    return None


def _add_nodes(tables: Tables, one: Any, name: str, number: int) -> None:
    where = f"{name}: nodes {number}"
    group: NodeGroup = _convert(one, NodeGroup, where)
    try:
        check(group.stage, None if group.part == NODE_CLASS else group.part)
    except ValueError as error:
        raise TableError(f"{where}: {error}") from None
    if not group.why.strip():
        raise TableError(f"{where}: why must say something")
    if group.hint is not None and (group.stage != "node_other" or group.hint not in STAGES):
        raise TableError(f"{where}: a hint is a stage, and is given beside stage node_other alone")
    for node_class in group.classes:
        if node_class in tables.nodes:
            raise TableError(f"{where}: node class '{node_class}' is listed twice in this file")
        part = node_class if group.part == NODE_CLASS else group.part
        tables.nodes[node_class] = NodeRow(group.stage, part, group.why, name, group.hint)


def _merge(into: Tables, new: Tables, override: bool) -> None:
    if not override:
        for kind, have, more in (("seam", into.seams, new.seams), ("node class", into.nodes, new.nodes)):
            twice = sorted(have.keys() & more.keys())
            if twice:
                raise TableError(f"{new.files[0]}: {kind} '{twice[0]}' is already in another shipped table")
    into.seams.update(new.seams)
    into.nodes.update(new.nodes)
    into.hands_off.update(new.hands_off)
    into.files += new.files


def _check_references(tables: Tables) -> None:
    """Rows name other rows and targets: every name must be a row, and no target forbidden."""
    for row in tables.seams.values():
        where = f"{row.source}: seam '{row.id}'"
        for other in _named(row):
            if other not in tables.seams:
                raise TableError(f"{where}: names the seam '{other}', which no table has")
        for target in row.target:
            if target in tables.hands_off:
                raise TableError(f"{where}: {target} must not be patched: {tables.hands_off[target]}")


def _named(row: SeamRow) -> Iterable[str]:
    yield from row.inside
    yield from row.not_inside
    if row.part_inside is not None:
        yield row.part_inside.seam
