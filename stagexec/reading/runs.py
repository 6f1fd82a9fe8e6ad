"""What a journal tells, as nouns: processes, runs, segments, visits."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from stagexec.format import LATE_COLUMNS, VISIT_COLUMNS
from stagexec.reading import events, startup

VISIT_TIMES = ("start_ns", "end_ns")
"""A visit counts by its number, node and kind; its time is that of its segments."""

NO_DEVICE = "no device events in timing mode {timing}"


class Columns:
    """Closed segments of one run in order of time, one list a field: lighter than an object each."""

    __slots__ = ("end_ns", "part", "seam", "stage", "start_ns", "visit")

    def __init__(self) -> None:
        self.stage: list[str] = []
        self.part: list[str | None] = []
        self.start_ns: list[int] = []
        self.end_ns: list[int] = []
        self.visit: list[int | None] = []
        self.seam: list[str | None] = []

    def extend(self, event: events.Segments) -> bool:
        """Take the columns of `event`; False, and nothing taken, when they differ in length."""
        if not even(event, self.__slots__):
            return False
        for name in self.__slots__:
            getattr(self, name).extend(getattr(event, name))
        return True

    def append(self, open_: events.Open, end_ns: int) -> None:
        """Close an open segment at `end_ns`."""
        self.stage.append(open_.stage)
        self.part.append(open_.part)
        self.start_ns.append(open_.start_ns)
        self.end_ns.append(end_ns)
        self.visit.append(open_.visit)
        self.seam.append(open_.seam)

    def __len__(self) -> int:
        return len(self.stage)

    def rows(self) -> Iterator[tuple[str, str | None, int, int, int | None, str | None]]:
        """Each segment as (stage, part, start_ns, end_ns, visit, seam)."""
        return zip(self.stage, self.part, self.start_ns, self.end_ns, self.visit, self.seam, strict=True)

    def total_ns(self) -> int:
        """The exact sum of all lengths."""
        return sum(self.end_ns) - sum(self.start_ns)


@dataclasses.dataclass(slots=True)
class Process:
    """One process that wrote a journal, as far as its file tells."""

    file: str
    start: events.ProcessStart | None = None
    host: events.HostFacts | None = None
    seams: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    faults: list[events.Mark] = dataclasses.field(default_factory=list)
    end: events.ProcessEnd | None = None
    restart_ns: int | None = None
    """When it last started its successor, to end itself then; None when it never did."""
    last_ns: int = 0
    """The last sign of life: the latest time of any event."""
    lost_events: int = 0
    live: bool = False
    after: list[events.AfterRun] = dataclasses.field(default_factory=list)
    nvml: events.NvmlFacts | None = None
    nvml_samples: list[events.NvmlSample] = dataclasses.field(default_factory=list)
    anchors: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """(monotonic ns, wall ns) of every event that tells both, in order of time."""

    @property
    def fresh_walls(self) -> bool:
        """Whether each `ts_wall` was read from the wall clock: format 1 worked it out from the head's pair.

        A journal of which only the line with the version is damaged counts as one of today.
        """
        return self.start.format_version >= 2 if self.start is not None else self.host is not None

    def take_anchor(self, event: events.Event) -> None:
        """Remember both times of an event, where it has them."""
        if event.ts_wall is None or event.ts_mono_ns == events.NO_TIME:
            return
        if not self.fresh_walls and not isinstance(event, events.ProcessStart):
            return
        pair = (event.ts_mono_ns, event.ts_wall)
        if not self.anchors or pair > self.anchors[-1]:
            self.anchors.append(pair)
        else:
            bisect.insort(self.anchors, pair)

    @property
    def timing(self) -> str | None:
        """The timing mode; None when the head of the journal is missing."""
        return self.start.timing if self.start else None

    def wall_ns(self, mono_ns: int) -> int | None:
        """Nanoseconds since 1970 for a monotonic time of this process; None without an anchor pair.

        By the nearest anchor before it: the monotonic clock stands still while a machine sleeps.
        """
        if not self.anchors:
            return None
        place = bisect.bisect_right(self.anchors, mono_ns, key=lambda pair: pair[0])
        mono, wall = self.anchors[max(0, place - 1)]
        return wall + mono_ns - mono

    def mono_ns(self, wall_ns: int) -> int | None:
        """The monotonic time of this process at a wall time, by the nearest anchor before it, or None."""
        if not self.anchors:
            return None
        before = [pair for pair in self.anchors if pair[1] <= wall_ns]
        mono, wall = before[-1] if before else self.anchors[0]
        return mono + wall_ns - wall

    def wall_by_head(self, mono_ns: int) -> int | None:
        """The same by the anchor of the journal's head alone."""
        start = self.start
        if start is None or start.ts_wall is None or start.ts_mono_ns == events.NO_TIME:
            return None
        return start.ts_wall + mono_ns - start.ts_mono_ns


@dataclasses.dataclass(slots=True)
class Visit:
    """One attempt to execute one node. Times in ns; `self_ns` counts main-lane segments alone."""

    visit: int
    node_id: str | None
    class_type: str | None
    kind: str
    list_index: int | None
    calls: int | None
    parent: str | None
    start_ns: int
    end_ns: int
    class_stage: str | None
    class_origin: str | None
    ui: bool | None
    hint: str | None = None


@dataclasses.dataclass(slots=True)
class Run:
    """One prompt, folded from its events. `outcome` is None while the run is still under way."""

    run_id: str
    process: Process
    heard_ns: int = events.NO_TIME
    """The time of the first event that speaks of it."""
    condition_id: str | None = None
    accepted: events.RunAccepted | None = None
    started: events.RunStarted | None = None
    cached: list[str] = dataclasses.field(default_factory=list)
    growth: list[events.GraphGrowth] = dataclasses.field(default_factory=list)
    segments: Columns = dataclasses.field(default_factory=Columns)
    visit_events: list[events.Visits] = dataclasses.field(default_factory=list)
    span_events: list[events.Spans] = dataclasses.field(default_factory=list)
    sample_events: list[events.Samples] = dataclasses.field(default_factory=list)
    cpu_events: list[events.Cpu] = dataclasses.field(default_factory=list)
    device: events.Device | None = None
    device_spans: events.DeviceSpans | None = None
    memory: events.Memory | None = None
    marks: list[events.Mark] = dataclasses.field(default_factory=list)
    artifacts: list[events.Artifact] = dataclasses.field(default_factory=list)
    executed: events.RunExecuted | None = None
    closed: events.RunClosed | None = None
    identity: events.Identity | None = None
    missing: list[str] | None = None
    """Fields of its condition that are null; None while the condition is not known."""
    outside: list[events.OutsideSpan] = dataclasses.field(default_factory=list)
    """Work of other programs for it, in the order in which it was told."""
    opens: list[events.Open] = dataclasses.field(default_factory=list)
    """What was seen open since the last segment was written, oldest first."""
    at_end: events.Open | None = None
    """What was open at the last sign of life of a run that was never closed."""
    outcome: str | None = None
    cause: str | None = None
    error: events.ErrorInfo | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    startup: startup.Startup | None = None
    """Its startup class by all runs of its process; None where those are not known."""

    @property
    def startup_class(self) -> str | None:
        """In which state it found the process, one of startup.CLASSES; None where that is not known."""
        return self.startup.name if self.startup is not None else startup.local_of(self)

    @property
    def prompt_id(self) -> str | None:
        """The host's id of the prompt."""
        return self.accepted.prompt_id if self.accepted else None

    @property
    def warmup(self) -> bool:
        """A warm-up is a run like any other, and in no statistic."""
        return any(mark.name == "warmup" for mark in self.marks)

    @property
    def timing(self) -> str | None:
        """The run's own timing mode; the process's in journals that do not tell it by the run."""
        own = self.started.timing if self.started else None
        return own or self.process.timing

    @property
    def accepted_ns(self) -> int:
        """When the run began: the start of its first segment (monotonic ns)."""
        if len(self.segments):
            return self.segments.start_ns[0]
        if self.accepted is not None and self.accepted.ts_mono_ns != events.NO_TIME:
            return self.accepted.ts_mono_ns
        return self.process.last_ns if self.heard_ns == events.NO_TIME else self.heard_ns

    @property
    def finished_ns(self) -> int | None:
        """When the run ended; None while it is under way."""
        if self.outcome is None:
            return None
        return self.segments.end_ns[-1] if len(self.segments) else self.accepted_ns

    @property
    def cancel_ns(self) -> int | None:
        """When a person asked to cancel, by whichever event tells it first."""
        if self.closed is not None and self.closed.cancel_ns is not None:
            return self.closed.cancel_ns
        if self.executed is not None and self.executed.cancel_ns is not None:
            return self.executed.cancel_ns
        told = (mark.ts_mono_ns for mark in self.marks if mark.name == "cancel_requested")
        return next((at for at in told if at != events.NO_TIME), None)

    @property
    def cancel_had_effect(self) -> bool | None:
        """Whether the cancel that was asked ended the run; None where none was, or the run goes on."""
        if self.cancel_ns is None or self.outcome is None:
            return None
        return self.outcome in ("cancelled", "lost") or self.cause == "user_cancel"

    @property
    def cancelled_ns(self) -> int | None:
        """When a cancel was asked; None for one that came too late and had no effect."""
        return self.cancel_ns if self.cancel_had_effect is not False else None

    @property
    def stopped_ns(self) -> int | None:
        """When execution stopped; None when it never did."""
        if self.closed is not None and self.closed.stopped_ns is not None:
            return self.closed.stopped_ns
        return self.executed.stopped_ns if self.executed else None

    def visits(self) -> list[Visit]:
        """The visits in order of their end; the one cut off by the process's death is last, `pending`."""
        found: list[Visit] = []
        for event in self.visit_events:
            found.extend(map(Visit, *visit_columns(event)))
        cut = self.at_end
        if cut is not None and cut.visit is not None and all(v.visit != cut.visit for v in found):
            found.append(self._cut_off(cut, cut.visit))
        return found

    def _cut_off(self, open_: events.Open, visit: int) -> Visit:
        rows = self.segments
        start = rows.start_ns[rows.visit.index(visit)]
        node, name, kind = open_.node_id, open_.node_class, "pending"
        return Visit(visit, node, name, kind, None, None, None, start, rows.end_ns[-1], None, None, None)


def visit_columns(event: events.Visits) -> list[list[Any]]:
    """The columns of a `visits` event in the order of Visit's fields."""
    return [getattr(event, name) for name in VISIT_COLUMNS]


@functools.cache
def _nullable(kind: type[events.Event], names: tuple[str, ...]) -> frozenset[str]:
    """Those of the columns whose items may be null: a row means something without them."""
    hints = get_type_hints(kind)
    items = {name: get_args(hints[name])[0] for name in names}
    return frozenset(name for name, item in items.items() if item is Any or type(None) in get_args(item))


def uneven(event: events.Event, names: tuple[str, ...]) -> list[str]:
    """The named columns of `event` that have not the length of its first."""
    size = len(getattr(event, names[0]))
    odd = [name for name in names if len(getattr(event, name)) != size]
    return [name for name in odd if name not in LATE_COLUMNS or getattr(event, name)]


def even(event: events.Event, names: tuple[str, ...]) -> bool:
    """Whether the columns without which a row means nothing have one length.

    Another column of another length is put to nulls, or times of visits to that of the event: it costs
    itself, and not the rows.
    """
    size = len(getattr(event, names[0]))
    for name in names:
        if len(getattr(event, name)) != size:
            if name in _nullable(type(event), names):
                setattr(event, name, [None] * size)
            elif type(event) is events.Visits and name in VISIT_TIMES:
                setattr(event, name, [event.ts_mono_ns] * size)
            else:
                return False
    return True
