"""Fold the events of one journal into runs; close the runs that a dead process left open."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from stagexec.format import (
    CPU_COLUMNS,
    DEVICE_COLUMNS,
    DEVICE_SPAN_COLUMNS,
    MEMORY_COLUMNS,
    SAMPLE_COLUMNS,
    SPAN_COLUMNS,
    VISIT_COLUMNS,
)
from stagexec.reading import alive, details, ends, events, refold, startup
from stagexec.reading.journal import Source
from stagexec.reading.runs import Process, Run, even

SIGNS_OF_LIFE = (events.Heartbeat, events.RunAccepted, events.RunStarted, events.Segments)
"""What only a process writes that goes on."""

Alive = alive.Alive


class Fold:
    """The runs of one journal, in the order in which they were first heard of."""

    def __init__(self, file: str, files: Sequence[str] = ()) -> None:
        self.process = Process(file)
        self._files = files or (file,)
        self._last = alive.LastSign()
        self.runs: dict[str, Run] = {}
        self._take: dict[type[events.Event], Callable[[Any], None]] = {
            events.ProcessStart: self._process_start,
            events.HostFacts: self._host_facts,
            events.Seams: self._seams,
            events.Heartbeat: self._heartbeat,
            events.LostEvents: self._lost_events,
            events.ProcessEnd: self._process_end,
            events.Mark: self._mark,
            events.AfterRun: self._after_run,
            events.NvmlFacts: self._nvml_facts,
            events.NvmlSample: self._nvml_sample,
        }
        self._take_run: dict[type[events.Event], Callable[[Run, Any], None]] = {
            events.RunAccepted: _accepted,
            events.RunStarted: _started,
            events.Cached: _cached,
            events.GraphGrowth: _growth,
            events.Segments: _segments,
            **dict.fromkeys(OF_COLUMNS, _columns),
            events.Artifact: _artifact,
            events.RunExecuted: _executed,
            events.RunClosed: _closed,
            events.Identity: _identity,
            events.Condition: _condition,
            events.OutsideSpan: _outside,
        }

    def take(self, event: events.Event) -> None:
        """Add one event, in the order of the file."""
        self.process.last_ns = self._last.take(event.ts_mono_ns)
        if event.ts_wall is not None:
            self.process.take_anchor(event)
        kind = type(event)
        if kind in SIGNS_OF_LIFE:
            self.process.end = None  # a restart that did not come about: the process goes on
        of_process = self._take.get(kind)
        if of_process is not None:
            of_process(event)
        elif event.run_id is not None:
            run = self._run(event.run_id, event)
            if kind is events.RunAccepted and run.accepted is not None:
                # Told again, as in a file that was made again: all that was known of it is told after this.
                run = self.runs[event.run_id] = Run(event.run_id, self.process, event.ts_mono_ns)
            if event.condition_id is not None:
                run.condition_id = event.condition_id
            self._take_run[kind](run, event)

    def finish(self, now_wall_ns: int, is_alive: Alive) -> list[Run]:
        """Close what is left open, as of wall time `now_wall_ns`, and hand out all runs."""
        left = [run for run in self.runs.values() if run.closed is None]
        self.process.live = bool(left) and self._is_live(now_wall_ns, is_alive)
        ending = ends.of(self.process) if left and not self.process.live else None
        if ending is not None and ending.seen is not None:
            self._seen_open(*ending.seen)
        for run in left:
            _complete(run, ending.last_ns if ending is not None else self.process.last_ns)
            if ending is not None:
                ends.close(run, ending)
        refold.apply(self.runs.values())
        startup.assign(self.runs.values())
        return list(self.runs.values())

    def _is_live(self, now_wall_ns: int, is_alive: Alive) -> bool:
        start = self.process.start
        if self.process.end is not None or start is None:
            return False
        last = self.process.wall_ns(self.process.last_ns)
        return alive.is_live(start, last, self._files, now_wall_ns, is_alive)

    def _run(self, run_id: str, event: events.Event) -> Run:
        run = self.runs.get(run_id)
        if run is None:
            run = self.runs[run_id] = Run(run_id, self.process, event.ts_mono_ns)
        return run

    def _process_start(self, event: events.ProcessStart) -> None:
        # A journal that had to be made again begins with its head again.
        self.process.start = self.process.start or event

    def _host_facts(self, event: events.HostFacts) -> None:
        self.process.host = event

    def _seams(self, event: events.Seams) -> None:
        self.process.seams = event.seams

    def _heartbeat(self, event: events.Heartbeat) -> None:
        for row in event.open:
            run = self.runs.get(row.run_id)
            if run is None:
                continue
            if run.opens and run.opens[-1].start_ns == row.start_ns:
                run.opens.pop()  # the same segment seen again: a long one must not pile up
            where = (row.stage, row.part, row.start_ns, row.visit, row.seam, row.node_id, row.node_class)
            run.opens.append(events.Open(*where))

    def _seen_open(self, run_id: str, seen: events.Open) -> None:
        """What the watcher saw, where that is later than all that the journal was told."""
        run = self.runs.get(run_id)
        if run is not None and all(known.start_ns < seen.start_ns for known in run.opens):
            run.opens.append(seen)

    def _lost_events(self, event: events.LostEvents) -> None:
        self.process.lost_events += event.count

    def _after_run(self, event: events.AfterRun) -> None:
        self.process.after.append(event)

    def _nvml_facts(self, event: events.NvmlFacts) -> None:
        self.process.nvml = event

    def _nvml_sample(self, event: events.NvmlSample) -> None:
        if event.ts_mono_ns != events.NO_TIME:
            self.process.nvml_samples.append(event)

    def _process_end(self, event: events.ProcessEnd) -> None:
        self.process.end = event

    def _mark(self, event: events.Mark) -> None:
        event.detail = details.checked(event.name, event.detail)[0]
        if event.run_id is not None:
            run = self._run(event.run_id, event)
            run.condition_id = event.condition_id or run.condition_id
            run.marks.append(event)
        elif event.name == "fault":
            self.process.faults.append(event)
        elif event.name == "restart_begun":
            self.process.restart_ns = event.ts_mono_ns


def _accepted(run: Run, event: events.RunAccepted) -> None:
    run.accepted = event
    _opened(run, "queue_wait", None, event)


def _started(run: Run, event: events.RunStarted) -> None:
    run.started = event
    _opened(run, "executor_prepare", "plan", event)


def _opened(run: Run, stage: str, part: str | None, event: events.Event) -> None:
    if event.ts_mono_ns != events.NO_TIME:
        run.opens.append(events.Open(stage, part, event.ts_mono_ns))


def _cached(run: Run, event: events.Cached) -> None:
    run.cached.extend(event.nodes)


def _growth(run: Run, event: events.GraphGrowth) -> None:
    run.growth.append(event)


def _segments(run: Run, event: events.Segments) -> None:
    if not run.segments.extend(event):
        run.notes.append("a segments event with columns of different lengths was left out")
    elif event.open is not None:
        run.opens = [event.open]
    elif event.stage:
        run.opens = []


OF_COLUMNS: dict[type[events.Event], tuple[str, tuple[str, ...], str]] = {
    events.Visits: ("visits", VISIT_COLUMNS, "visit_events"),
    events.Spans: ("spans", SPAN_COLUMNS, "span_events"),
    events.Samples: ("samples", SAMPLE_COLUMNS, "sample_events"),
    events.Cpu: ("cpu", CPU_COLUMNS, "cpu_events"),
    events.Device: ("device", DEVICE_COLUMNS, "device"),
    events.DeviceSpans: ("device_spans", DEVICE_SPAN_COLUMNS, "device_spans"),
    events.Memory: ("memory", MEMORY_COLUMNS, "memory"),
}
"""Event -> its name, its columns, and where the run keeps it: in a list, or as the only one."""


def _columns(run: Run, event: events.Event) -> None:
    name, columns, place = OF_COLUMNS[type(event)]
    kept = getattr(run, place)
    if not even(event, columns):
        run.notes.append(f"a {name} event with columns of different lengths was left out")
    elif isinstance(kept, list):
        kept.append(event)
    else:
        setattr(run, place, event)


def _artifact(run: Run, event: events.Artifact) -> None:
    run.artifacts.append(event)


def _executed(run: Run, event: events.RunExecuted) -> None:
    run.executed = event


def _closed(run: Run, event: events.RunClosed) -> None:
    run.closed = event
    run.outcome, run.cause, run.error = event.outcome, event.cause, event.error
    if event.reason is not None:
        run.notes.append(event.reason)


def _identity(run: Run, event: events.Identity) -> None:
    run.identity = event


def _outside(run: Run, event: events.OutsideSpan) -> None:
    run.outside.append(event)


def _condition(run: Run, event: events.Condition) -> None:
    run.missing = event.missing


def _complete(run: Run, last_ns: int) -> None:
    """Close what was last seen open at the last sign of life.

    A heartbeat may know a later open segment than the last one written: what lies between is then
    counted as what was open before, which is the most that the journal knows of it.
    """
    written = run.segments.end_ns[-1] if len(run.segments) else None
    chain: list[events.Open] = []
    for seen in run.opens:
        if written is not None and seen.start_ns < written:
            continue
        while chain and chain[-1].start_ns >= seen.start_ns:
            chain.pop()
        chain.append(seen)
    if not chain:
        return
    if written is not None and chain[0].start_ns > written:
        chain[0].start_ns = written
    ends = [later.start_ns for later in chain[1:]]
    # An open segment may be written with a time later than its line's own: it then has no length yet.
    ends.append(max(last_ns, chain[-1].start_ns))
    for seen, end in zip(chain, ends, strict=True):
        run.segments.append(seen, end)
    run.at_end = chain[-1]
    if len(chain) > 1 and written is not None:
        run.notes.append(f"stages after {written} ns are known from signs of life alone")


def fold(source: Source, now_wall_ns: int | None = None, is_alive: Alive = alive.is_alive) -> list[Run]:
    """All runs of one journal. `now_wall_ns`: now, in ns since 1970; by default the machine's clock."""
    folded = Fold(str(source.paths[0]), [str(path) for path in source.paths])
    for _, _, event in source.read():
        folded.take(event)
    return folded.finish(time.time_ns() if now_wall_ns is None else now_wall_ns, is_alive)
