"""One run on one timeline: ledger, visits, lanes, device, memory and torch's trace, for ui.perfetto.dev.

The format is the Chrome trace events' JSON, which that page, Perfetto's trace processor and torch's own
tools read. Times are microseconds since the run was accepted, exact to the nanosecond.
"""

from __future__ import annotations

import pathlib
from typing import Any

import msgspec

ANCHOR = "stagexec.anchor/"
"""Begins the name of the range by which a profile's trace tells the ledger's time (record/profile.py)."""

RUN_PID, DEVICE_PID, MEMORY_PID, TORCH_PID = 1, 2, 3, 1000
"""Process rows of the timeline; torch's own rows come behind, counted from TORCH_PID."""

LEDGER_TID, VISITS_TID, LANES_TID = 1, 2, 10

Event = dict[str, Any]


def timeline(run: dict[str, Any], trace: Any = None) -> dict[str, Any]:
    """The trace of one run. `run` as `show --json` gives it, `trace` the parsed torch trace of its profile.

    Device intervals are placed after one another from the host's time of the first event before which the
    device had nothing to do; a gap in the events begins again at the host's time.
    """
    zero = run["accepted_mono_ns"]
    events = [
        *_names(RUN_PID, f"run {run['run_id'][:8]}", {LEDGER_TID: "ledger", VISITS_TID: "visits"}),
        *_ledger(run, zero),
        *_visits(run, zero),
        *_lanes(run, zero),
        *_marks(run, zero),
        *_device(run, zero),
        *_memory(run, zero),
    ]
    notes = []
    if trace is not None:
        try:
            merged = torch_events(trace, zero)
            notes = [] if merged else ["the torch trace has no anchor of ours and was left out"]
            events += merged
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            notes = [f"the torch trace is no trace and was left out: {error}"]
    told = {
        name: run[name]
        for name in ("run_id", "prompt_id", "condition_id", "outcome", "timing", "named_share")
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {**told, "notes": "; ".join(notes)}}


def trace_of(run: dict[str, Any]) -> pathlib.Path | None:
    """The torch trace among the run's artifacts; None where there is none or it was removed."""
    for artifact in run["artifacts"]:
        path = pathlib.Path(artifact["path"] or "")
        if artifact["media"] == "profile" and path.suffix == ".json" and _is_file(path):
            return path
    return None


def _is_file(path: pathlib.Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def write(run: dict[str, Any], target: pathlib.Path) -> int:
    """Write the run's timeline, torch's trace included where there is one. Gives the number of events.

    Raises OSError, or msgspec.DecodeError for a trace that is no JSON.
    """
    path = trace_of(run)
    trace = msgspec.json.decode(path.read_bytes()) if path is not None else None
    made = timeline(run, trace)
    target.write_bytes(msgspec.json.encode(made))
    return len(made["traceEvents"])


def _us(ns: int) -> float:
    return ns / 1000


def _interval(pid: int, tid: int, name: str, start: int, length: int, **args: Any) -> Event:
    kept = {key: value for key, value in args.items() if value is not None}
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "cat": "stagexec",
        "ts": _us(start),
        "dur": _us(length),
        "args": kept,
    }


def _names(pid: int, process: str, threads: dict[int, str]) -> list[Event]:
    """Metadata: what the rows are called, and their order."""
    found: list[Event] = [
        {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": process}}
    ]
    for tid, name in threads.items():
        found.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}})
        found.append(
            {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
        )
    return found


def _ledger(run: dict[str, Any], zero: int) -> list[Event]:
    found = []
    for s in run["segments"]:
        name = s["stage"] if s["part"] is None else f"{s['stage']}/{s['part']}"
        told = {key: s[key] for key in ("visit", "seam", "device_ns")}
        length = s["end_ns"] - s["start_ns"]
        found.append(_interval(RUN_PID, LEDGER_TID, name, s["start_ns"] - zero, length, **told))
    return found


def _visits(run: dict[str, Any], zero: int) -> list[Event]:
    found = []
    for v in run["visits"]:
        told = {
            key: v[key] for key in ("visit", "node_id", "kind", "stage", "self_ns", "device_ns", "parent")
        }
        name, length = f"{v['node_id']} {v['class_type']}", v["end_ns"] - v["start_ns"]
        found.append(_interval(RUN_PID, VISITS_TID, name, v["start_ns"] - zero, length, **told))
    return found


def _lanes(run: dict[str, Any], zero: int) -> list[Event]:
    """Spans that overlap get rows of their own, as few as will do."""
    rows: list[tuple[str, int]] = []
    found: list[Event] = []
    for span in sorted(run["spans"], key=lambda one: int(one["start_ns"])):
        lane = span["lane"]
        free = (at for at, (name, end) in enumerate(rows) if name == lane and end <= span["start_ns"])
        place = next(free, len(rows))
        if place == len(rows):
            rows.append((lane, 0))
        rows[place] = (lane, span["end_ns"])
        start, length = span["start_ns"] - zero, span["end_ns"] - span["start_ns"]
        told = {"stage": span["stage"], "visit": span["visit"], "detail": span["detail"]}
        found.append(_interval(RUN_PID, LANES_TID + place, str(span["name"]), start, length, **told))
    names = {LANES_TID + place: lane for place, (lane, _) in enumerate(rows)}
    return [*_names(RUN_PID, f"run {run['run_id'][:8]}", names)[1:], *found]


def _marks(run: dict[str, Any], zero: int) -> list[Event]:
    return [
        {
            "ph": "i",
            "s": "p",
            "pid": RUN_PID,
            "tid": LEDGER_TID,
            "name": mark["name"],
            "cat": "stagexec",
            "ts": _us(mark["at_ns"] - zero),
            "args": {"detail": mark["detail"], "node_id": mark["node_id"]},
        }
        for mark in run["marks"]
        if mark["at_ns"] is not None  # its time is damaged: it has no place here
    ]


def _device(run: dict[str, Any], zero: int) -> list[Event]:
    """The device's own row: each segment where the device came to it, as long as the device took."""
    found: list[Event] = []
    at: int | None = None
    starts: dict[int, int] = {}
    for s in run["segments"]:
        length = s["device_ns"]
        if length is None:
            at = None
            continue
        at = s["start_ns"] - zero if at is None else at
        starts[s["start_ns"]] = at
        told = {"visit": s["visit"], "host_ns": s["end_ns"] - s["start_ns"]}
        found.append(_interval(DEVICE_PID, 1, s["stage"], at, length, **told))
        at += length
    rows: dict[int, str] = {1: "stages"}
    for span in run["device_spans"]:
        start = starts.get(span["start_ns"])
        if start is None or span["length_ns"] is None or span["offset_ns"] is None:
            continue
        tid = 2 + sum(1 for known in rows.values() if known != "stages")
        name = f"stream {span['stream']}"
        tid = next((row for row, known in rows.items() if known == name), tid)
        rows[tid] = name
        told = {"copies": span["copies"], "stage": span["stage"]}
        found.append(
            _interval(DEVICE_PID, tid, "offload", start + span["offset_ns"], span["length_ns"], **told)
        )
    return [*_names(DEVICE_PID, "device", rows), *found] if found else []


def _memory(run: dict[str, Any], zero: int) -> list[Event]:
    samples = run["memory_samples"]
    found: list[Event] = []
    for name in ("allocated_bytes", "reserved_bytes", "dynamic_bytes", "rss_bytes"):
        values = samples.get(name, ())
        for at, value in zip(samples.get("at_ns", ()), values, strict=bool(values)):
            if value is not None:
                place = {"ph": "C", "pid": MEMORY_PID, "tid": 0, "name": name, "ts": _us(at - zero)}
                found.append({**place, "args": {"bytes": value}})
    return [*_names(MEMORY_PID, "memory", {}), *found] if found else []


def torch_events(trace: Any, zero: int) -> list[Event]:
    """Torch's events on our clock, in process rows of their own; empty without an anchor of ours."""
    events = trace.get("traceEvents", []) if isinstance(trace, dict) else trace
    anchor = next((one for one in events if str(one.get("name", "")).startswith(ANCHOR)), None)
    if anchor is None:
        return []
    shift = _us(int(str(anchor["name"])[len(ANCHOR) :]) - zero) - float(anchor["ts"])
    pids: dict[Any, int] = {}
    found = []
    for one in events:
        if one is anchor:
            continue
        moved = {**one, "pid": pids.setdefault(one.get("pid"), TORCH_PID + len(pids))}
        if "ts" in one and one.get("ph") != "M":
            moved["ts"] = round(float(one["ts"]) + shift, 3)
        found.append(moved)
    return found
