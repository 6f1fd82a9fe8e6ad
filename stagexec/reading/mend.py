"""A line that is no sound event, taken as far as it goes: a bad value costs itself, and no more."""

from __future__ import annotations

import json
import math
import types
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from stagexec import format as journal_format
from stagexec.reading import events

MOST_DIGITS = 40
"""An integer of more digits is no figure of ours, and Python itself refuses those of thousands."""

MOST_DEPTH = 50
"""Deeper nesting is left out: what prints or writes it again would run out of stack sooner."""

BRACKETS = 100
"""A line with fewer is not that deep, and needs no look."""

COLUMNS: dict[type[events.Event], tuple[str, ...]] = {
    events.Segments: journal_format.SEGMENT_COLUMNS,
    events.Visits: journal_format.VISIT_COLUMNS,
    events.Spans: journal_format.SPAN_COLUMNS,
    events.Device: journal_format.DEVICE_COLUMNS,
    events.DeviceSpans: journal_format.DEVICE_SPAN_COLUMNS,
    events.Memory: journal_format.MEMORY_COLUMNS,
}

_BY_TAG: dict[str, type[events.Event]] = {str(kind.__struct_config__.tag): kind for kind in events.KINDS}
_TYPES: dict[type, dict[str, Any]] = {}
_HOLE = object()
"""Stands in a list where an item could not be read and may not be null."""

_decode = msgspec.json.Decoder(events.AnyEvent).decode


class Mended(NamedTuple):
    """What was left of a line. `kind`: torn, unknown_event or malformed; None where nothing is wrong."""

    event: events.Event | None
    kind: str | None
    what: str


class _Wrong(Exception):
    """A value that cannot be of its type."""


def decoded(line: bytes) -> events.Event | None:
    """The event of a line, mended where it must be; None for what is none."""
    return read(line).event


def read(line: bytes) -> Mended:
    """The event of a line, and what is wrong with it."""
    try:
        found = Mended(_decode(line), None, "")
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        found = mended(line, error)
    if found.event is not None and found.event.run_id is not None and not is_name(found.event.run_id):
        return Mended(None, "malformed", f"{found.what or 'an event'}: its run_id is no name")
    if found.event is not None and line.count(b"[") + line.count(b"{") > BRACKETS:
        deep = _prune(found.event)
        if deep:
            what = f"{found.what or ', '.join(deep)}: nested too deep, and cut there"
            return Mended(found.event, "malformed", what)
    return found


def is_name(run_id: str) -> bool:
    """Whether this may be the id of a run: plain characters, which are the same in every writing."""
    return run_id.isascii() and run_id.isprintable() and "\\" not in run_id and '"' not in run_id


def mended(line: bytes, error: Exception | None = None) -> Mended:
    """What can be taken of a line that is no sound event; `error` is what a strict reader says of it."""
    if not line.strip(b" \t\r\n"):
        return Mended(None, None, "")
    try:
        found = parsed(line)
    except (ValueError, RecursionError) as worse:
        return Mended(None, "torn", _brief(worse))
    if not isinstance(found, dict):
        return Mended(None, "malformed" if _is_json(line) else "torn", f"no event: {_brief(error)}")
    name = found.get("event_type")
    if not isinstance(name, str):
        return Mended(None, "malformed", f"no event: {_brief(error)}")
    kind = _BY_TAG.get(name)
    if kind is None:
        return Mended(None, "unknown_event", name)
    bad: list[str] = []
    event = _struct(found, kind, bad)
    lost = f"; not taken: {', '.join(bad[:5])}" if bad else ""
    return Mended(event, "malformed", f"{name}: {_brief(error)}{lost}")


def parsed(line: bytes) -> Any:
    """The JSON of a line, however odd its characters and numbers are. Raises ValueError, RecursionError."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError):
        # A power cut leaves zero bytes before a line; what is no UTF-8 costs its character.
        text = line.strip(b"\x00 \t\r\n").decode("utf-8", "replace")
        return _plain(json.loads(text, strict=False, parse_int=_whole))


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError):
        return False
    return True


def _whole(digits: str) -> int | float:
    return int(digits) if len(digits) <= MOST_DIGITS else math.inf


def _plain(value: Any) -> Any:
    """Halves of characters as text, since no file and no database takes them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(one) for key, one in value.items()}
    return value


def _struct(found: dict[str, Any], kind: type[Any], bad: list[str]) -> Any:
    """A struct of the fields that can be read, the others as if they were absent."""
    if kind not in _TYPES:
        _TYPES[kind] = get_type_hints(kind, include_extras=True)
    told: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name in found:
            read = _column if field.name in COLUMNS.get(kind, ()) else _value
            try:
                told[field.name] = read(found[field.name], _TYPES[kind][field.name], bad, field.name)
                continue
            except _Wrong:
                bad.append(field.name)
        if field.required:
            if field.name != "ts_mono_ns":
                raise _Wrong
            told[field.name] = events.NO_TIME
            if field.name not in found:
                bad.append(field.name)
    if kind is events.Visits:  # see runs.VISIT_TIMES
        for name in ("start_ns", "end_ns"):
            told[name] = [told["ts_mono_ns"] if one is _HOLE else one for one in told.get(name, [])]
    if kind in COLUMNS:
        _leave_out(told, COLUMNS[kind])
    return kind(**told)


def _value(value: Any, kind: Any, bad: list[str], where: str) -> Any:
    """`value` as `kind`, with what is bad inside of it left out. Raises _Wrong where nothing is left."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError, ValueError):
        pass
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (one,) = (kind for kind in inner if kind is not type(None))
        try:
            return _value(value, one, bad, where)
        except _Wrong:
            bad.append(where)
            return None
    if origin is list and isinstance(value, list):
        found = _column(value, kind, bad, where)
        placed = [_stand_in(value[at], inner[0]) if one is _HOLE else one for at, one in enumerate(found)]
        return [one for one in placed if one is not _HOLE]
    if origin is dict and isinstance(value, dict):
        return _entries(value, inner[1], bad, where)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        return _struct(value, kind, bad)
    raise _Wrong


def _column(value: Any, kind: Any, bad: list[str], where: str) -> list[Any]:
    """A list whose items are as `kind` says, or holes."""
    if not isinstance(value, list):
        raise _Wrong
    found = []
    for at, one in enumerate(value):
        try:
            found.append(_value(one, get_args(kind)[0], bad, f"{where}[{at}]"))
        except _Wrong:
            bad.append(f"{where}[{at}]")
            found.append(_HOLE)
    return found


def _stand_in(value: Any, kind: Any) -> Any:
    """What keeps the place of an item that could not be read, where other lists count on it; else a hole."""
    if kind is str:
        return str(value)[:200]
    return [] if get_origin(kind) is list else _HOLE


def _entries(value: dict[Any, Any], kind: Any, bad: list[str], where: str) -> dict[str, Any]:
    kept = {}
    for key, one in value.items():
        try:
            kept[str(key)] = _value(one, kind, bad, f"{where}.{key}")
        except _Wrong:
            bad.append(f"{where}.{key}")
    return kept


def _leave_out(told: dict[str, Any], columns: tuple[str, ...]) -> None:
    """Leave out the rows of columns that have a hole."""
    there = [told[name] for name in columns if name in told]
    holes = {at for column in there for at, one in enumerate(column) if one is _HOLE}
    if not holes:
        return
    for name in columns:
        if name in told:
            told[name] = [one for at, one in enumerate(told[name]) if at not in holes]


def _prune(event: events.Event) -> list[str]:
    """Cut what is nested too deep in the fields that may hold anything; their names."""
    found = []
    for field in msgspec.structs.fields(type(event)):
        value = getattr(event, field.name)
        if isinstance(value, (list, dict)) and _is_deep(value):
            setattr(event, field.name, _cut(value, MOST_DEPTH))
            found.append(field.name)
    return found


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, (list, dict))
        ]
        if not level:
            return False
    return True


def _cut(value: Any, depth: int) -> Any:
    if isinstance(value, (list, dict)) and not depth:
        return "…"
    if isinstance(value, list):
        return [_cut(one, depth - 1) for one in value]
    if isinstance(value, dict):
        return {key: _cut(one, depth - 1) for key, one in value.items()}
    return value


def _brief(error: Exception | None) -> str:
    return (str(error).splitlines() or [""])[0][:200] if error is not None else "damaged"
