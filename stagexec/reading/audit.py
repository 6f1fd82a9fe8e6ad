"""Contradictions in a journal, found by a reader of its own that shares no fold with the answers."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from stagexec import stages as sets
from stagexec.format import SEGMENT_COLUMNS, SPAN_COLUMNS, VISIT_COLUMNS
from stagexec.reading import conditions, details, events
from stagexec.reading.journal import Problem, sources
from stagexec.reading.runs import even, uneven

HEARTBEAT_GAP_NS = 1_500_000_000
"""A journal with an open run shows a sign of life every second; half a second more is for the scheduler."""

STEP_NS = 1_000_000_000
"""A wall clock that moves so far against the monotonic one was set, or the machine slept."""

DRIFT = 1e-3
"""And so much of the time that passed is allowed besides, for a clock that is being corrected slowly."""

NOTES = frozenset(
    {
        *("torn_last", "lost", "unknown_event", "newer_format", "heartbeat_gap", "manifest_missing"),
        *("clock_step", "slept", "index_damaged"),
    }
)
"""Kinds that are told and are no errors: each can happen to a sound journal. A heartbeat is late when a
node holds the interpreter or the machine sleeps. The index is made again by who reads it."""


@dataclasses.dataclass(slots=True)
class Finding:
    """One thing found. `line` counts from 1, 0 for a whole file; `run_id` None where it is of no run."""

    kind: str
    severity: str
    run_id: str | None
    file: str
    line: int
    what: str


@dataclasses.dataclass(slots=True)
class _Seen:
    """What one run has shown so far."""

    run_id: str
    file: str
    line: int
    count: int = 0
    total_ns: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    event_ns: int | None = None
    open: bool = False
    accepted: bool = False
    started: int = 0
    closed: events.RunClosed | None = None
    cached: set[str] = dataclasses.field(default_factory=set)
    visits: dict[int, tuple[int, int, int]] = dataclasses.field(default_factory=dict)
    """visit -> (line, start_ns, end_ns)"""
    used: dict[int, int] = dataclasses.field(default_factory=dict)
    """visit number that a segment names -> line"""
    uneven: bool = False
    """some of its visits could not be read"""
    worked: set[str] = dataclasses.field(default_factory=set)
    """nodes that a visit or the cache accounts for"""
    artifacts: list[tuple[int, str, int | None]] = dataclasses.field(default_factory=list)
    """(line, node, ready_ns) of what this run is said to have made"""


class Auditor:
    """Takes the events of one journal and says what contradicts what."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._runs: dict[str, _Seen] = {}
        self._started = 0
        self._last_closed_start = 0
        self._last_ns = 0
        self._open = 0
        self._clock: tuple[int | None, int, int | None] | None = None
        self._walls = _Walls()
        self.conditions: dict[str, tuple[str, int, str]] = {}
        """condition id -> (file, line, run id) of the first run that is said to be of it"""
        self._take: dict[type[events.Event], Callable[[_Seen, Any], None]] = {
            events.RunAccepted: self._accepted,
            events.RunStarted: self._run_started,
            events.Cached: self._cached,
            events.Segments: self._segments,
            events.Visits: self._visits,
            events.Spans: self._spans,
            events.Artifact: self._artifact,
            events.RunClosed: self._closed,
            events.Condition: self._condition,
            events.RunExecuted: self._executed,
        }
        self._take_process: dict[type[events.Event], Callable[[Any], None]] = {
            events.ProcessStart: self._same_clock,
            events.HostFacts: self._host_facts,
            events.Seams: self._seams,
            events.Heartbeat: self._heartbeat,
        }
        self._file = ""
        self._line = 0

    def take(self, file: str, line: int, event: events.Event) -> None:
        """Check one event against all before it."""
        self._file, self._line = file, line
        if event.ts_mono_ns != events.NO_TIME:
            self._time(event)
        of_process = self._take_process.get(type(event))
        if of_process is not None:
            of_process(event)
        if isinstance(event, events.LostEvents):
            what = f"{event.count} events could not be written: {event.reason}"
            self._find("lost_events", what, event.run_id)
        elif isinstance(event, events.Mark):
            self._mark(event)
        if event.run_id is None:
            return
        run = self._runs.get(event.run_id)
        if run is None:
            run = self._runs[event.run_id] = _Seen(event.run_id, file, line)
            self._open += 1
        elif isinstance(event, events.RunAccepted) and run.accepted:
            # Told again, as in a file that was made again: what was told before is no more.
            self._open += run.closed is not None
            run = self._runs[event.run_id] = _Seen(event.run_id, file, line)
        check = self._take.get(type(event))
        if check is not None:
            check(run, event)

    def finish(self) -> list[Finding]:
        """Check what only the end of the journal can tell, and hand out everything found."""
        for run in self._runs.values():
            self._file, self._line = run.file, run.line
            if run.closed is not None:
                self._check_closed(run, run.closed)
            elif not run.accepted:
                self._find("missing_start", "events of a run that was never accepted", run.run_id)
            elif 0 < run.started < self._last_closed_start:
                self._find("missing_end", "a run that started later is closed, this one is not", run.run_id)
            else:
                what = "not closed in this journal: the process died, or is at it now"
                self._find("lost", what, run.run_id)
        self._tell_walls(self._walls.rest())
        return self.findings

    def _mark(self, event: events.Mark) -> None:
        if event.name == "fault":
            self._find("fault", f"our own bookkeeping failed: {_brief(event.detail)}", event.run_id)
        bad = details.checked(event.name, event.detail)[1]
        if bad:
            what = f"mark {event.name}: of the wrong type: {', '.join(bad[:5])}"
            self._find("malformed", what, event.run_id)

    def _find(self, kind: str, what: str, run_id: str | None, line: int | None = None) -> None:
        severity = "note" if kind in NOTES else "error"
        at = self._line if line is None else line
        self.findings.append(Finding(kind, severity, run_id, self._file, at, what))

    def _time(self, event: events.Event) -> None:
        self._gap_in_life(event)
        if isinstance(event, events.ProcessStart):
            self._walls.begin(event)
            return
        self._tell_walls(self._walls.take(event))
        if self._clock is not None and event.ts_mono_ns < self._clock[1]:
            what = f"at {event.ts_mono_ns} ns, before the process began ({self._clock[1]} ns)"
            self._find("clock_domain", what, event.run_id)

    def _tell_walls(self, told: list[tuple[str, str]]) -> None:
        for kind, what in told:
            self._find(kind, what, None)

    def _gap_in_life(self, event: events.Event) -> None:
        now = event.ts_mono_ns
        if self._open and now - self._last_ns > HEARTBEAT_GAP_NS:
            what = f"no sign of life for {now - self._last_ns} ns while a run was open"
            self._find("heartbeat_gap", what, None)
        self._last_ns = max(self._last_ns, now)

    def _same_clock(self, event: events.ProcessStart) -> None:
        """A journal is of one process, so of one clock: each head of it tells the same anchor pair."""
        clock = (event.pid, event.ts_mono_ns, event.ts_wall)
        if self._clock is not None and clock != self._clock:
            self._find("clock_domain", "a second process, so a second clock, in one journal", None)
        self._clock = self._clock or clock
        self._word(None, "timing", event.timing, sets.TIMING_MODES)

    def _host_facts(self, event: events.HostFacts) -> None:
        self._word(None, "executor", event.executor, sets.EXECUTORS)

    def _seams(self, event: events.Seams) -> None:
        for seam in event.seams:
            self._word(None, "seam state", seam.get("state"), sets.SEAM_STATES)

    def _heartbeat(self, event: events.Heartbeat) -> None:
        for row in event.open:
            self._words(self._runs.get(row.run_id), row.stage, row.part)

    def _accepted(self, run: _Seen, event: events.RunAccepted) -> None:
        run.accepted = True

    def _run_started(self, run: _Seen, event: events.RunStarted) -> None:
        self._started += 1
        run.started = self._started
        self._word(run, "timing", event.timing, sets.TIMING_MODES)

    def _cached(self, run: _Seen, event: events.Cached) -> None:
        run.cached.update(event.nodes)
        run.worked.update(event.nodes)

    def _even(self, run: _Seen, event: events.Event, name: str, columns: tuple[str, ...]) -> bool:
        """Whether the rows can be read; what is wrong with the columns is told either way."""
        odd = uneven(event, columns)
        sound = even(event, columns)
        if odd:
            what = f", without {', '.join(odd)}" if sound else ""
            self._find("malformed", f"{name}: columns of different lengths{what}", run.run_id)
        return sound

    def _segments(self, run: _Seen, event: events.Segments) -> None:
        if not self._even(run, event, "segments", SEGMENT_COLUMNS):
            return
        if run.closed is not None and event.stage:
            self._find("after_close", f"{len(event.stage)} segments after run_closed", run.run_id)
        self._written(run, event)
        rows = zip(event.stage, event.part, event.start_ns, event.end_ns, event.visit, strict=True)
        for stage, part, start, end, visit in rows:
            self._segment(run, stage, part, start, end)
            if visit is not None:
                run.used.setdefault(visit, self._line)
        run.open = event.open is not None
        if event.open is not None:
            self._words(run, event.open.stage, event.open.part)

    def _written(self, run: _Seen, event: events.Segments) -> None:
        """Segments are written in the order of time, and after they ended."""
        now = event.ts_mono_ns
        if now == events.NO_TIME:
            return
        if run.event_ns is not None and now < run.event_ns:
            what = f"segments written at {now} ns, after some written at {run.event_ns} ns"
            self._find("clock", what, run.run_id)
        run.event_ns = now
        if event.stage and event.end_ns[-1] > now:
            what = f"a segment ends at {event.end_ns[-1]} ns, after it was written ({now} ns)"
            self._find("clock", what, run.run_id)

    def _segment(self, run: _Seen, stage: str, part: str | None, start: int, end: int) -> None:
        self._words(run, stage, part)
        if end < start:
            self._find("negative", f"{stage} from {start} to {end}: {end - start} ns", run.run_id)
        if run.last_ns is None:
            run.first_ns = start
        elif start > run.last_ns:
            what = f"{start - run.last_ns} ns between {run.last_ns} and {start} ({stage})"
            self._find("gap", what, run.run_id)
        elif start < run.last_ns:
            what = f"{stage} starts at {start}, {run.last_ns - start} ns before the end of the one before"
            self._find("overlap", what, run.run_id)
        run.last_ns = end
        run.total_ns += end - start
        run.count += 1

    def _words(self, run: _Seen | None, stage: str | None, part: str | None) -> None:
        try:
            sets.check(str(stage), part)
        except ValueError as error:
            self._find("unknown_stage", str(error), run.run_id if run else None)

    def _word(self, run: _Seen | None, name: str, value: Any, known: Iterable[str]) -> None:
        if value is not None and value not in known:
            what = f"{name} {value!r} is not one of: {', '.join(known)}"
            self._find("unknown_word", what, run.run_id if run else None)

    def _error(self, run: _Seen, error: events.ErrorInfo | None) -> None:
        if error is not None:
            self._word(run, "cause", error.cause, sets.CAUSES)
            if error.stage is not None:
                self._words(run, error.stage, None)

    def _executed(self, run: _Seen, event: events.RunExecuted) -> None:
        self._error(run, event.executed)

    def _visits(self, run: _Seen, event: events.Visits) -> None:
        if not self._even(run, event, "visits", VISIT_COLUMNS):
            run.uneven = True
            return
        columns = zip(
            event.visit,
            event.node_id,
            event.kind,
            event.start_ns,
            event.end_ns,
            event.stage,
            event.origin,
            strict=True,
        )
        for visit, node, kind, start, end, stage, origin in columns:
            if visit in run.visits:
                self._find("visit_twice", f"visit {visit} is told twice", run.run_id)
            run.visits[visit] = (self._line, start, end)
            run.worked.add(node)
            if end < start:
                self._find("negative", f"visit {visit} from {start} to {end}: {end - start} ns", run.run_id)
            if kind == "executed" and node in run.cached:
                what = f"node {node} was cached at the start and executed in visit {visit}"
                self._find("cached_and_executed", what, run.run_id)
            self._word(run, "kind", kind, sets.VISIT_KINDS)
            self._word(run, "origin", origin, sets.ORIGINS)
            if stage is not None:
                self._words(run, stage, None)

    def _spans(self, run: _Seen, event: events.Spans) -> None:
        if not self._even(run, event, "spans", SPAN_COLUMNS):
            return
        rows = zip(event.lane, event.stage, event.start_ns, event.end_ns, strict=True)
        for lane, stage, start, end in rows:
            if end < start:
                self._find("negative", f"span {lane} from {start} to {end}: {end - start} ns", run.run_id)
            if stage is not None:
                self._words(run, stage, None)

    def _artifact(self, run: _Seen, event: events.Artifact) -> None:
        self._word(run, "state", event.state, sets.ARTIFACT_STATES)
        if event.node_id is not None and not event.orphan and not event.cached:
            run.artifacts.append((self._line, event.node_id, event.ready_mono_ns))

    def _condition(self, run: _Seen, event: events.Condition) -> None:
        if event.condition_id is None:
            self._find("unknown_word", "a condition without its id", run.run_id)
        else:
            self.conditions.setdefault(event.condition_id, (self._file, self._line, run.run_id))

    def _closed(self, run: _Seen, event: events.RunClosed) -> None:
        if run.closed is not None:
            self._find("closed_twice", "a second run_closed", run.run_id)
            return
        run.closed, run.file, run.line = event, self._file, self._line
        self._open -= 1
        self._last_closed_start = max(self._last_closed_start, run.started)
        self._word(run, "outcome", event.outcome, sets.OUTCOMES)
        self._word(run, "cause", event.cause, sets.CAUSES)
        self._error(run, event.error)
        if event.outcome is None:
            self._find("unknown_word", "run_closed without an outcome", run.run_id)

    def _check_closed(self, run: _Seen, closed: events.RunClosed) -> None:
        name = run.run_id
        if not run.accepted:
            self._find("missing_start", "closed, and never accepted", name)
        if run.open:
            self._find("missing_end", "closed with a segment still open", name)
        if closed.segment_count is not None and closed.segment_count != run.count:
            what = f"{closed.segment_count} segments were written, {run.count} are there"
            self._find("segment_count", what, name)
        if closed.accepted_ns is None or closed.finished_ns is None:
            self._find("missing_end", "closed without its bounds", name)
            return
        took = closed.finished_ns - closed.accepted_ns
        if run.total_ns != took:
            what = f"segments add up to {run.total_ns} ns, the run took {took} ns"
            self._find("sum", what, name)
        if run.count and (run.first_ns, run.last_ns) != (closed.accepted_ns, closed.finished_ns):
            bounds = f"{closed.accepted_ns}-{closed.finished_ns}"
            self._find("bounds", f"segments fill {run.first_ns}-{run.last_ns}, the run {bounds}", name)
        for visit, (line, start, end) in run.visits.items():
            if start < closed.accepted_ns or end > closed.finished_ns:
                self._find("visit_outside", f"visit {visit} lies outside its run", name, line)
        self._check_artifacts(run, closed)
        for visit, line in run.used.items():
            if visit not in run.visits:
                self._find("visit_missing", f"segments name visit {visit}, which is not told", name, line)

    def _check_artifacts(self, run: _Seen, closed: events.RunClosed) -> None:
        if closed.accepted_ns is None or closed.finished_ns is None:
            return
        for line, node, ready in run.artifacts:
            if node not in run.worked and not run.uneven:
                what = f"node {node} made an artifact, and was neither visited nor cached"
                self._find("artifact_without_visit", what, run.run_id, line)
            if ready is not None and not closed.accepted_ns <= ready <= closed.finished_ns:
                what = f"an artifact of node {node} was ready outside its run"
                self._find("artifact_outside", what, run.run_id, line)


class _Walls:
    """Follows the wall clock against the monotonic one, by every event that was given both."""

    def __init__(self) -> None:
        self._fresh = False
        self._last: tuple[int, int] | None = None
        """(monotonic, wall) of the last such event"""
        self._slept: int | None = None
        self._moved = 0
        self._passed = 0
        """how far the wall clock moved ahead, and the monotonic time that passed, since the last verdict"""

    def begin(self, event: events.ProcessStart) -> None:
        """The head of the journal; of a file made again it comes at its old time."""
        self._fresh = event.format_version >= 2  # format 1 worked its wall times out from this pair
        if self._last is None and event.ts_wall is not None:
            self._last = (event.ts_mono_ns, event.ts_wall)

    def take(self, event: events.Event) -> list[tuple[str, str]]:
        """What one event shows, as (kind, text)."""
        if event.ts_wall is None or not self._fresh:
            return []
        if self._last is not None:
            mono, wall = self._last
            if event.ts_mono_ns < mono:
                return []  # told again
            self._passed += event.ts_mono_ns - mono
            self._moved += event.ts_wall - wall - (event.ts_mono_ns - mono)
        self._last = (event.ts_mono_ns, event.ts_wall)
        if not isinstance(event, events.Heartbeat):
            return []  # the next sign of life knows whether the machine slept
        before, self._slept = self._slept, event.slept_ns
        if before is None or event.slept_ns is None:
            return self.rest()
        slept = event.slept_ns - before
        self._moved -= slept
        found = [("slept", f"the machine slept for {slept} ns: in no stage")] if slept > STEP_NS else []
        return found + self.rest("")

    def rest(self, how: str = ", or the machine slept") -> list[tuple[str, str]]:
        """The verdict on what has not been told yet."""
        moved, passed, self._moved, self._passed = self._moved, self._passed, 0, 0
        if abs(moved) <= STEP_NS + DRIFT * passed:
            return []
        ahead = "ahead" if moved > 0 else "back"
        return [("clock_step", f"the wall clock was set {abs(moved)} ns {ahead}{how}")]


def _brief(detail: Any) -> str:
    if isinstance(detail, dict):
        return ", ".join(f"{key} {value}" for key, value in detail.items())
    return str(detail)


def of_problem(problem: Problem) -> Finding:
    """A line that could not be read, as a finding."""
    severity = "note" if problem.kind in NOTES else "error"
    what = problem.what
    if problem.kind.startswith("torn"):
        where = "last line" if problem.kind == "torn_last" else "line in the middle"
        what = f"{where} is torn: {what}"
    return Finding(problem.kind, severity, None, problem.file, problem.line, what)


def audit(ledger: pathlib.Path) -> list[Finding]:
    """Everything found in the journals of `ledger`, in the order of files and lines; then its index."""
    found: list[Finding] = []
    for source in sources(ledger):
        auditor = Auditor()
        for file, line, event in source.read():
            auditor.take(file, line, event)
        mine = auditor.finish() + [of_problem(p) for p in source.problems]
        for condition_id, (file, line, run_id) in auditor.conditions.items():
            kind = conditions.trouble(ledger, condition_id)
            if kind is not None:
                severity = "note" if kind in NOTES else "error"
                what = f"condition {condition_id[:16]} has {conditions.TROUBLES[kind]} in this ledger"
                mine.append(Finding(kind, severity, run_id, file, line, what))
        order = {str(path): at for at, path in enumerate(source.paths)}
        found += sorted(mine, key=lambda f: (order.get(f.file, -1), f.line))
    return found + _index(ledger)


def _index(ledger: pathlib.Path) -> list[Finding]:
    path = ledger / "index.duckdb"
    if not os.path.lexists(path):
        return []
    from stagexec.reading import index  # DuckDB: only where there is something to look at

    trouble = index.trouble(ledger)
    what = f"the index cannot be used, and is made again: {trouble}"
    return [] if trouble is None else [Finding("index_damaged", "note", None, str(path), 0, what)]
