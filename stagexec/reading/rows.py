"""A run as JSON: the row of `runs` and the object of `show`, field by field as the contract says."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec

from stagexec.reading import beside, cpu, derive, device, disk, events, named, outside, parts, shares, startup
from stagexec.reading.graph import Graph
from stagexec.reading.runs import Run, Visit


def iso(wall_ns: int | None) -> str | None:
    """ISO-8601 UTC text, to the microsecond, of nanoseconds since 1970."""
    if wall_ns is None:
        return None
    seconds, rest = divmod(wall_ns, 1_000_000_000)
    try:
        moment = _EPOCH + datetime.timedelta(seconds=seconds)
    except OverflowError:
        return None  # no year of any calendar
    return f"{moment.replace(tzinfo=None).isoformat(timespec='seconds')}.{rest // 1000:06d}Z"


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)

MOST = 2**62
"""A sum of times beyond this is of damaged ones: no table of another program could hold it."""


def fit(ns: int | None) -> int | None:
    """A sum of times; None for one that damaged times made too large."""
    return ns if ns is None or -MOST <= ns <= MOST else None


def accepted_wall_ns(run: Run) -> int | None:
    """When the run was accepted, in ns since 1970; None without an anchor pair.

    By its own anchor, which a sleep of the machine or a step of its clock has not made wrong.
    """
    own = run.accepted if run.process.fresh_walls else None
    if own is not None and own.ts_wall is not None and own.ts_mono_ns != events.NO_TIME:
        return own.ts_wall + run.accepted_ns - own.ts_mono_ns
    return run.process.wall_by_head(run.accepted_ns)


def started_ns(run: Run) -> int | None:
    """When execution began (monotonic ns); None where it never did, or that time is damaged."""
    at = run.started.ts_mono_ns if run.started else events.NO_TIME
    return None if at == events.NO_TIME else at


def summary(run: Run, unnamed_ns: int | None = None) -> dict[str, Any]:
    """The row of `runs`. Times in ns; null where the journal does not know. `unnamed_ns`: of named.parts."""
    unnamed_ns = named.parts(run)["unnamed_ns"] if unnamed_ns is None else unnamed_ns
    return _summary(run, run.visits(), Graph(run), device.times(run), unnamed_ns)


def _summary(
    run: Run, visits: list[Visit], graph: Graph, on_device: device.DeviceTimes, unnamed_ns: int
) -> dict[str, Any]:
    process, error = run.process, run.error
    cancel, stopped = run.cancelled_ns, run.stopped_ns
    asked = process.start.executor_asked if process.start else None
    needed = derive.useful_visits(run, visits, graph) if run.device is not None else set()
    wasted_ns, wasted_kind = device.wasted(run, on_device, derive.wasted_ns(run, visits, graph), needed)
    return {
        "run_id": run.run_id,
        "prompt_id": run.prompt_id,
        "condition_id": run.condition_id,
        "outcome": run.outcome,
        "cause": run.cause,
        "error_stage": error.stage if error else None,
        "error_node": error.node_id if error else None,
        "startup_class": run.startup_class,
        "startup_evidence": startup.evidence(
            run.startup_class, run.startup.between if run.startup else None, startup.facts_of(run)
        ),
        "executor": process.host.executor if process.host else asked,
        "timing": run.timing,
        "accepted_wall": iso(accepted_wall_ns(run)),
        "total_ns": fit(run.segments.total_ns()),
        "device_ns": fit(on_device.total_ns),
        "device_reason": device.reason(run, on_device),
        "validate_ns": run.accepted.validate_ns if run.accepted else None,
        "stages": {name: ns for name, ns in derive.stage_times(run).items() if fit(ns) is not None},
        "wasted_ns": fit(wasted_ns),
        "wasted_kind": wasted_kind,
        "cancel_latency_ns": _latency(cancel, stopped),
        "cancel_had_effect": run.cancel_had_effect,
        "host_version": process.host.host_version if process.host else None,
        "warmup": run.warmup,
        "named_share": named.share_of(fit(run.segments.total_ns()), fit(unnamed_ns)),
        **shares.of(derive.stage_times(run), run.segments.total_ns(), shares.pictures(run.artifacts)),
    }


def _latency(cancel: int | None, stopped: int | None) -> int | None:
    """From the cancel to the stop; None where one of them never was, or the run had stopped by itself."""
    if cancel is None or stopped is None or stopped < cancel:
        return None
    return stopped - cancel


def detail(run: Run) -> dict[str, Any]:
    """The object of `show`: the row of `runs` and everything below it. Times in ns, absolute on the
    process's monotonic clock, except `ready_ns` of artifacts: since the run was accepted."""
    visits, graph = run.visits(), Graph(run)
    times = derive.visit_times(run)
    found_spans = derive.spans(run)
    from_outside = outside.spans(run)
    on_device, names = device.times(run), named.parts(run)
    return {
        **_summary(run, visits, graph, on_device, names["unnamed_ns"]),
        "accepted_mono_ns": run.accepted_ns,
        "finished_mono_ns": run.finished_ns,
        "error": {**msgspec.to_builtins(run.error), "cause": run.cause} if run.error else None,
        "host_status": run.executed.host_status if run.executed else None,
        "segments": [
            {
                "stage": stage,
                "part": part,
                "start_ns": start,
                "end_ns": end,
                "visit": visit,
                "seam": seam,
                "device_ns": length,
            }
            for (stage, part, start, end, visit, seam), length in zip(
                run.segments.rows(), on_device.segments, strict=True
            )
        ],
        "parts": parts.part_times(run),
        "steps": parts.steps(run),
        "device_stages": on_device.stages,
        "device_unknown": on_device.unknown,
        "device_unseen": run.started.unseen if run.started else [],
        "visits": [_visit(v, times.get(v.visit), on_device.visits.get(v.visit)) for v in visits],
        "spans": sorted([*found_spans, *from_outside], key=outside.begin) if from_outside else found_spans,
        "device_spans": device.streams(run),
        "concurrency": derive.concurrency(found_spans),
        **derive.node_lists(run, visits, graph),
        **beside.of(run),
        "named": names,
        "unnamed": named.unnamed(run),
        "reads": disk.reads(run),
        "cpu": cpu.by_stage(run),
        "rollup": derive.rollup(visits, times, graph),
        "blocked": run.executed.blocked if run.executed else [],
        "artifacts": [_artifact(a, run) for a in run.artifacts],
        "messages": derive.messages(run),
        "delivered": derive.delivered_nodes(run),
        "memory": (run.executed.memory or {}) if run.executed else {},
        "memory_samples": device.memory(run),
        "nvml": device.nvml(run),
        "marks": [_mark(m) for m in run.marks if m.name != "fault"],
        "faults": [_mark(m) for m in run.marks if m.name == "fault"],
        "seams": run.process.seams,
        "executor_reason": run.process.host.executor_reason if run.process.host else None,
        "journal": run.process.file,
        "lost_events": run.process.lost_events,
        "notes": run.notes,
    }


def _visit(visit: Visit, time: derive.VisitTime | None, device_ns: int | None) -> dict[str, Any]:
    stage, origin = derive.stage_and_origin(visit, time)
    return {
        "visit": visit.visit,
        "node_id": visit.node_id,
        "class_type": visit.class_type,
        "kind": visit.kind,
        "stage": stage,
        "origin": origin,
        "hint": visit.hint,
        "self_ns": time.self_ns if time else 0,
        "device_ns": device_ns,
        "list_index": visit.list_index,
        "parent": visit.parent,
        "calls": visit.calls,
        "start_ns": visit.start_ns,
        "end_ns": visit.end_ns,
        "ui": visit.ui,
    }


def _artifact(artifact: events.Artifact, run: Run) -> dict[str, Any]:
    ready, accepted_ns = artifact.ready_mono_ns, run.accepted_ns
    return {
        "path": beside.path_of(artifact, run),
        "bytes": artifact.bytes,
        "sha256": artifact.sha256,
        "state": artifact.state,
        "ready_ns": None if ready is None else ready - accepted_ns,
        "reason": artifact.reason,
        "media": artifact.media,
        "frames": artifact.frames,
        "orphan": artifact.orphan,
        "cached": artifact.cached,
        "node_id": artifact.node_id,
        "first_bad": artifact.first_bad,
        "via": artifact.via,
    }


def _mark(mark: events.Mark) -> dict[str, Any]:
    return {
        "name": mark.name,
        "at_ns": None if mark.ts_mono_ns == events.NO_TIME else mark.ts_mono_ns,
        "stage": mark.stage_id,
        "visit": mark.visit,
        "node_id": mark.node_id,
        "node_class": mark.node_class,
        "detail": mark.detail,
    }
