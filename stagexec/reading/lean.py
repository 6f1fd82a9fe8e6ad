"""The row of an ordinary closed run, straight from its lines: the fold's answer at a fifth of its price.

What is not ordinary (growth, cancels, odd columns, events that this file does not know) is handed to the
fold. A property test holds both ways to the same rows.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

import msgspec

from stagexec.reading import derive, details, events, lean_columns, mend, shares, startup, table
from stagexec.reading.events import Mono, Wall, Whole
from stagexec.reading.fold import Fold
from stagexec.reading.rows import MOST
from stagexec.reading.runs import NO_DEVICE, Process
from stagexec.stages import HOST_STAGES

PREFIX = b'{"event_type":"'
"""How each line of the journal's writer begins; a line that begins otherwise is put into this order."""

RUN_ID = b'","run_id":"'
CONDITION = b'"condition_id":'
_START = len(PREFIX)


class TwoRuns(Exception):
    """A line that names a second run: the last name counts, and only the fold of all knows whose it is."""


class _Line(msgspec.Struct, tag_field="event_type", kw_only=True, gc=False):
    """Of each line: a key that stands in it twice is one that was damaged, or written by hand."""

    run_id: str | None = None


class _Accepted(_Line, tag="run_accepted", gc=False):
    ts_mono_ns: Mono
    ts_wall: Wall | None = None
    prompt_id: str | None = None
    prompt_hash: str | None = None
    validate_ns: Mono | None = None
    nodes: msgspec.Raw = msgspec.Raw(b"[]")
    links: msgspec.Raw = msgspec.Raw(b"[]")


class _Started(_Line, tag="run_started", gc=False):
    ts_mono_ns: Mono
    startup_class: str | None = None
    timing: str | None = None
    device: str | None = None
    device_reason: str | None = None


class _Segments(_Line, tag="segments", gc=False):
    start_ns: list[Mono]
    end_ns: list[Mono]
    # see lean_columns.py
    stage: msgspec.Raw
    part: msgspec.Raw
    visit: msgspec.Raw
    seam: msgspec.Raw


class _Visits(_Line, tag="visits", gc=False):
    visit: list[Whole]
    node_id: list[str]
    kind: list[str]
    # see there too
    stage: msgspec.Raw
    origin: msgspec.Raw
    hint: msgspec.Raw = msgspec.Raw(b"[]")


class _Samples(_Line, tag="samples", gc=False):
    visit: list[Whole]
    ns: list[Mono]


class _Artifact(_Line, tag="artifact", gc=False):
    node_id: str | None = None
    state: str = "unverified"
    media: str | None = None
    frames: Whole | None = None
    orphan: bool = False
    cached: bool = False


class _Executed(_Line, tag="run_executed", gc=False):
    outputs: dict[str, Any] = {}
    cancel_ns: Mono | None = None
    stopped_ns: Mono | None = None


class Identity(_Line, tag="identity", gc=False):
    """What a row needs of an identity event."""

    packs: dict[str, str] = {}


class _Mark(_Line, tag="mark", gc=False):
    name: str = ""
    detail: msgspec.Raw = msgspec.Raw(b"null")


class _Cached(_Line, tag="cached", gc=False):
    nodes: list[str] = []


class _Closed(_Line, tag="run_closed", gc=False):
    outcome: str | None = None
    cause: str | None = None
    error: events.ErrorInfo | None = None
    cancel_ns: Mono | None = None
    stopped_ns: Mono | None = None


def _decoder(kind: Any) -> Any:
    return msgspec.json.Decoder(kind).decode


DECODERS: dict[bytes, Any] = {
    b"run_accepted": _decoder(_Accepted),
    b"run_started": _decoder(_Started),
    b"segments": _decoder(_Segments),
    b"visits": _decoder(_Visits),
    b"artifact": _decoder(_Artifact),
    b"run_executed": _decoder(_Executed),
    b"identity": _decoder(Identity),
    b"samples": _decoder(_Samples),
    b"mark": _decoder(_Mark),
    b"run_closed": _decoder(_Closed),
}
SKIPPED = frozenset((b"cached", b"spans", b"cpu", b"condition"))

OUTCOME = list(table.COLUMNS).index("outcome")
"""Place of that cell in a row."""

Line = tuple[bytes, bytes, int]
"""(event type, the line, the byte at which it lies)"""

_NODES = _decoder(list[str])
_CACHED = _decoder(_Cached)
_LINKS = _decoder(list[list[Whole]])

_known: dict[tuple[bytes, bytes, tuple[str, ...]], frozenset[str]] = {}
"""(nodes, links, delivered nodes) -> needed nodes: most runs of a ledger are of a few workflows."""

MAX_KNOWN = 4096


class Head:
    """What the head of a journal says of its process."""

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines
        process = folded("", lines, []).process
        self.process: Process = process
        start, host = process.start, process.host
        asked = start.executor_asked if start else None
        self.executor = host.executor if host else asked
        self.host_version = host.host_version if host else None
        self.hostname = start.hostname if start else None


_NOT_STARTED = _Started(ts_mono_ns=0)
_NOT_EXECUTED = _Executed()


def folded(file: str, head: list[bytes], lines: list[bytes]) -> Fold:
    """The fold of some lines of a journal, what cannot be decoded left out."""
    fold = Fold(file)
    for line in (*head, *lines):
        event = mend.decoded(line)
        if event is not None:
            fold.take(event)
    return fold


def row_of(file: str, head: Head, run_id: str, lines: list[Line]) -> list[Any] | None:
    """The cells of a closed run, in the order of COLUMNS; None when its lines hold no run after all.

    Raises TwoRuns.
    """
    found = ordinary(head, run_id, lines)
    if found is not None:
        return found
    runs = folded(file, head.lines, [line for _, line, _ in lines]).runs
    return list(table.flat(runs[run_id]).values()) if run_id in runs else None


@dataclasses.dataclass(slots=True)
class _Events:
    """The events of one run, those that come once by their type."""

    once: dict[bytes, Any]
    segments: list[lean_columns.Segments]
    visits: list[_Visits]
    artifacts: list[_Artifact]
    samples: list[_Samples]
    marks: list[_Mark]
    """Those that tell of models."""
    cached: list[bytes]
    """Lines: few runs need them read."""
    lower_bound: bool = False
    warmup: bool = False


def ordinary(head: Head, run_id: str, lines: list[Line]) -> list[Any] | None:
    """The cells of a run without surprises; None for one that the fold must see. Raises TwoRuns."""
    try:
        found = _sorted(lines, run_id)
        if found is None:
            return None
        once = found.once
        accepted, closed = once[b"run_accepted"], once[b"run_closed"]
        executed = once.get(b"run_executed", _NOT_EXECUTED)
        if closed.outcome in (None, "lost") or (closed.cancel_ns, executed.cancel_ns) != (None, None):
            return None
        stages, wasted, nameless = _times(found, executed, accepted)
        started = once.get(b"run_started", _NOT_STARTED)
        state, facts = _startup(found, started, accepted)
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, ValueError):
        return None  # an event that is unknown here, missing, or of another shape
    identity = once.get(b"identity")
    if stages is None or started.device is not None:
        return None  # device events are the fold's business
    total = sum(stages.values())
    spent = stages.values() or (0,)
    if max(spent) > MOST or min(spent) < -MOST or not -MOST <= total <= MOST or abs(nameless) > MOST:
        return None  # sums of damaged times
    first = next((s.start_ns[0] for s in found.segments if s.start_ns), accepted.ts_mono_ns)
    timing = started.timing or head.process.timing
    return [
        run_id,
        accepted.prompt_id,
        last_condition(lines),
        accepted.prompt_hash,
        closed.outcome,
        closed.cause,
        *_place(closed.error, identity),
        state,
        started.startup_class,
        None,
        None if started is _NOT_STARTED else started.ts_mono_ns,
        startup.cell(facts),
        head.executor,
        timing,
        head.host_version,
        head.hostname,
        head.process.wall_by_head(first)
        if accepted.ts_wall is None or not head.process.fresh_walls
        else accepted.ts_wall + first - accepted.ts_mono_ns,
        total,
        None,
        started.device_reason or NO_DEVICE.format(timing=timing or "unknown"),
        accepted.validate_ns,
        wasted,
        derive.WASTED_KIND,
        None,
        None,
        sum(map(table.is_delivered, found.artifacts)),
        sum(told.kind.count("executed") for told in found.visits),
        found.lower_bound,
        found.warmup,
        shares.pictures(found.artifacts),
        nameless,
        *table.stage_cells(stages),
    ]


def _sorted(lines: list[Line], run_id: str) -> _Events | None:
    """The events by their type; None where one comes again or a cancel was asked. KeyError: unknown.

    Raises TwoRuns.
    """
    found = _Events({}, [], [], [], [], [], [])
    many: dict[bytes, list[Any]] = {
        b"segments": found.segments,
        b"visits": found.visits,
        b"artifact": found.artifacts,
        b"samples": found.samples,
    }
    for kind, line, _ in lines:
        several = many.get(kind)
        if several is not None:
            event = DECODERS[kind](line)
            if event.run_id != run_id:
                raise TwoRuns
            several.append(lean_columns.segments(event) if kind == b"segments" else event)
            continue
        if kind in SKIPPED:
            if kind == b"cached":
                found.cached.append(line)
            continue
        event = DECODERS[kind](line)
        if event.run_id != run_id:
            raise TwoRuns
        if kind == b"mark":
            if event.name in ("cancel_requested", "messages"):
                return None
            found.lower_bound = found.lower_bound or event.name == "dynamic_vram"
            found.warmup = found.warmup or event.name == "warmup"
            if event.name in startup.MARKS:
                found.marks.append(event)
        elif kind in found.once:
            return None
        else:
            found.once[kind] = event
    return found


def _startup(
    found: _Events, started: _Started, accepted: _Accepted
) -> tuple[str | None, startup.Facts | None]:
    """(startup class, facts of models) as far as the run tells by itself. Raises DecodeError."""
    collected = startup.Collected(accepted.prompt_hash)
    for mark in found.marks:
        collected.mark(mark.name, details.checked(mark.name, mend.parsed(bytes(mark.detail)))[0])
    for rows in found.segments:
        told = rows.texts
        collected.segments(told.stage, told.part, rows.start_ns, rows.end_ns, told.visit, told.seam)
    facts = collected.facts()
    if started is _NOT_STARTED:
        return None, facts
    worked = any(kind in told.kind for kind in startup.WORKED for told in found.visits)
    cached = not worked and (
        any(_CACHED(line).nodes for line in found.cached)
        or any("cached" in told.kind for told in found.visits)
    )
    return startup.local(started.startup_class, worked, cached, facts), facts


def _place(error: events.ErrorInfo | None, identity: Identity | None) -> tuple[str | None, ...]:
    if error is None:
        return None, None, None, None
    pack = identity.packs.get(error.node_class or "") if identity else None
    return error.stage, error.node_id, error.node_class, pack


class _Conditioned(msgspec.Struct, gc=False):
    condition_id: str | None = None


_condition = _decoder(_Conditioned)


def last_condition(lines: list[Line]) -> str | None:
    """The condition id that the last of the lines to have one carries. A damaged one is none."""
    for _, line, _ in reversed(lines):
        at = line.find(CONDITION, 0, 200)
        begin = at + len(CONDITION)
        if at < 0 or line[begin : begin + 4] == b"null":
            continue
        plain = line[begin + 1 : begin + 65]
        is_digest = plain.isalnum() and line[begin : begin + 66] == b'"%b"' % plain
        if is_digest and line.find(CONDITION, begin) < 0:  # the usual case, at a fifth of a decoding
            return plain.decode()
        try:
            found: str | None = _condition(line).condition_id
        except (msgspec.DecodeError, RecursionError, ValueError):
            event = mend.decoded(line)
            found = event.condition_id if event is not None else None
        if found is not None:
            return found
    return None


def _times(
    found: _Events, executed: _Executed, accepted: _Accepted
) -> tuple[dict[str, int] | None, int, int]:
    """({stage: ns}, wasted ns, ns without a name), None first where columns are uneven or a visit is told
    twice. Raises DecodeError, ValueError."""
    numbers: list[int] = []
    nodes: list[str] = []
    classes = lean_columns.NO_CLASSES
    for told in found.visits:
        if not len(told.visit) == len(told.node_id) == len(told.kind):
            return None, 0, 0
        numbers += told.visit
        more = lean_columns.classes(told)
        classes = classes.and_(more) if nodes else more
        nodes += told.node_id
    if len(set(numbers)) != len(numbers):
        return None, 0, 0
    needed = _needed(accepted, tuple(_delivered(found.artifacts, executed)))
    useful: set[int | None] = {None, *numbers}
    if not needed.issuperset(nodes):
        useful = {None, *(v for v, node in zip(numbers, nodes, strict=True) if node in needed)}
    stages: dict[str, int] = defaultdict(int)
    unnamed: dict[int, int] = {}
    wasted = 0
    for starts, ends, texts in found.segments:
        for stage, start, end in zip(texts.stage, starts, ends, strict=True):
            stages[stage] += end - start
        for at, visit in texts.unnamed(classes):
            unnamed[visit] = unnamed.get(visit, 0) + ends[at] - starts[at]
        if not useful.issuperset(texts.visit):
            wasted += _wasted(starts, ends, texts, useful)
    return stages, wasted, lean_columns.unseen(found.samples, unnamed, classes.hinted) if unnamed else 0


def _wasted(starts: list[int], ends: list[int], texts: lean_columns.Texts, useful: set[int | None]) -> int:
    columns = zip(texts.stage, starts, ends, texts.visit, strict=True)
    return sum(e - s for stage, s, e, visit in columns if visit not in useful and stage not in HOST_STAGES)


def _delivered(artifacts: list[_Artifact], executed: _Executed) -> list[str]:
    found = [a.node_id for a in artifacts if a.node_id is not None and a.state in table.KEPT and not a.orphan]
    with_files = {a.node_id for a in artifacts}
    return found + [node for node, entries in executed.outputs.items() if entries and node not in with_files]


def _needed(accepted: _Accepted, delivered: tuple[str, ...]) -> frozenset[str]:
    """The delivered nodes and all that they take inputs from. Ordinary runs grow no nodes."""
    if not delivered:
        return frozenset()
    key = (bytes(accepted.nodes), bytes(accepted.links), delivered)
    known = _known.get(key)
    if known is None:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        known = _known[key] = _walk(_NODES(accepted.nodes), _LINKS(accepted.links), delivered)
    return known


def _walk(nodes: list[str], links: list[list[int]], delivered: tuple[str, ...]) -> frozenset[str]:
    needed = set(delivered)
    place = {node: at for at, node in enumerate(nodes)}
    waiting = list(needed)
    while waiting:
        at = place.get(waiting.pop())
        if at is None or at >= len(links):
            continue
        for position in links[at]:
            if 0 <= position < len(nodes) and nodes[position] not in needed:
                needed.add(nodes[position])
                waiting.append(nodes[position])
    return frozenset(needed)


def in_order(line: bytes) -> bytes | None:
    """A line that another writer laid out, with the type and the run first; None for what is no event."""
    try:
        found = mend.parsed(line)
    except (RecursionError, ValueError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("event_type"), str):
        return None
    run_id = found.get("run_id")
    if isinstance(run_id, str) and not mend.is_name(run_id):
        return None
    first = {name: found.get(name) for name in ("event_type", "run_id", "condition_id", "stage_id")}
    return msgspec.json.encode({**first, **found}) + b"\n"
