"""What a run's device events tell: time per segment, stage and visit, other streams, memory, energy."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from stagexec import stages as sets
from stagexec.format import MEMORY_COLUMNS
from stagexec.reading import events
from stagexec.reading.runs import NO_DEVICE, Run

OUTSIDE = "outside_execution"
"""Why a segment before the first or after the last event of its run has no device time."""


@dataclasses.dataclass(slots=True)
class DeviceTimes:
    """Device time in ns, event to event, idle time of the stream included. A sum counts what is known."""

    segments: list[int | None]
    reasons: list[str | None]
    stages: dict[str, int | None]
    visits: dict[int, int | None]
    total_ns: int | None
    unknown: dict[str, int]
    """reason -> number of segments inside execution whose device time is null for it."""

    def whole(self) -> bool:
        """Is the device time of every segment inside execution known?"""
        return self.total_ns is not None and not self.unknown


def times(run: Run) -> DeviceTimes:
    """Device times of a run; all null where there was no device."""
    found = run.device
    rows = run.segments
    size = len(rows)
    lengths: list[int | None] = [None] * size
    reasons: list[str | None] = [OUTSIDE if found is not None else "no_device"] * size
    if found is not None:
        at, last = 0, len(found.start_ns)
        for place, start in enumerate(rows.start_ns):
            while at < last and found.start_ns[at] < start:
                at += 1
            if at < last and found.start_ns[at] == start:
                lengths[place], reasons[place] = found.device_ns[at], _reason(found.reason[at])
                at += 1  # segments without length share their start: first come, first matched
    stages: dict[str, int | None] = {}
    visits: dict[int, int | None] = {}
    for stage, visit, length in zip(rows.stage, rows.visit, lengths, strict=True):
        _add(stages, stage, length)
        if visit is not None:
            _add(visits, visit, length)
    known = [length for length in lengths if length is not None]
    unknown = Counter(reason for reason in reasons if reason not in (None, OUTSIDE, "no_device"))
    total = sum(known) if known else None
    return DeviceTimes(lengths, reasons, stages, visits, total, dict(unknown))


def _reason(word: str | None) -> str | None:
    return OUTSIDE if word == "last" else word


def _add(sums: dict[Any, int | None], key: Any, length: int | None) -> None:
    before = sums.setdefault(key, None)
    if length is not None:
        sums[key] = (before or 0) + length


def reason(run: Run, found: DeviceTimes) -> str | None:
    """Why `device_ns` of the run is null, or what of it is missing; None when it is whole."""
    told = run.started.device_reason if run.started else None
    if run.device is None and told is None and run.started is not None and run.started.device is not None:
        return "the device events were never filed: the process ended before"
    if run.device is None:
        return told or NO_DEVICE.format(timing=run.timing or "unknown")
    if not found.unknown:
        return None if found.total_ns is not None else "execution had not begun"
    words = ", ".join(f"{count} × {word}" for word, count in sorted(found.unknown.items()))
    fault = f" ({run.device.fault})" if run.device.fault else ""
    return f"no device time in some segments: {words}{fault}"


def wasted(run: Run, found: DeviceTimes, host_ns: int | None, useful: set[int]) -> tuple[int | None, str]:
    """(wasted ns, `device` or `estimated`): device time where every wasted segment has it whole.

    `host_ns` is the estimate by host time; `useful` are the visits that a delivered artifact needs.
    """
    if run.device is None or host_ns is None:
        return host_ns, "estimated"
    total, cancel = 0, run.cancelled_ns
    for place, (stage, _, start, end, visit, _) in enumerate(run.segments.rows()):
        if stage in sets.HOST_STAGES:
            continue
        late = cancel is not None and end > cancel
        if not late and (visit is None or visit in useful):
            continue
        length = found.segments[place]
        if length is None or (late and cancel is not None and start < cancel and (visit in useful)):
            return host_ns, "estimated"  # a part of a segment has no device time of its own
        total += length
    return total, "device"


def streams(run: Run) -> list[dict[str, Any]]:
    """The use of other streams: stage and visit of the segment, device, stream, offset_ns into the segment
    and length_ns on the device's clock (null where unresolved), copies."""
    found = run.device_spans
    if found is None:
        return []
    rows = run.segments
    places: dict[int, int] = {start: place for place, start in enumerate(rows.start_ns)}
    answer = []
    columns = zip(
        found.start_ns,
        found.device,
        found.stream,
        found.offset_ns,
        found.length_ns,
        found.copies,
        strict=True,
    )
    for start, device, stream, offset, length, copies in columns:
        place = places.get(start)
        answer.append(
            {
                "stage": None if place is None else rows.stage[place],
                "visit": None if place is None else rows.visit[place],
                "start_ns": start,
                "device": device,
                "stream": stream,
                "offset_ns": offset,
                "length_ns": length,
                "copies": copies,
            }
        )
    return answer


def memory(run: Run) -> dict[str, list[int | None]]:
    """Readings at stage switches, as columns; empty where none were taken."""
    if run.memory is None:
        return {}
    return {name: getattr(run.memory, name) for name in MEMORY_COLUMNS}


def nvml(run: Run) -> dict[str, Any] | None:
    """What NVML's samples tell of the run, per device uuid; None where they were not asked for.

    `{reason, period_ns, devices: {uuid: {samples, energy_mj, used_bytes_max, process_bytes_max,
    power_mw_max, temperature_c_max}}}`. `energy_mj` is between the samples next to the run's start and
    stop, at most a period (or the thread's reaction time) outside of it.
    """
    facts = run.process.nvml
    if facts is None:
        return None
    devices = {}
    for known in facts.devices:
        mine = [one for one in run.process.nvml_samples if one.uuid == known.get("uuid")]
        devices[str(known.get("uuid"))] = {**known, **_of_run(run, mine)}
    return {"reason": facts.reason, "period_ns": facts.period_ns, "devices": devices}


def _of_run(run: Run, samples: list[events.NvmlSample]) -> dict[str, Any]:
    begin = run.started.ts_mono_ns if run.started else None
    end = run.executed.ts_mono_ns if run.executed else run.finished_ns
    if begin is None or end is None:
        return {"samples": 0, "energy_mj": None}
    within = [one for one in samples if begin <= one.ts_mono_ns <= end]
    # poked at the run's start and end, the thread comes a moment later
    first = next((one for one in samples if one.ts_mono_ns >= begin), None)
    last = next((one for one in samples if one.ts_mono_ns >= end), None)
    energy = None
    # One sample alone is no stretch of time: its difference to itself is not the run's energy.
    if first and last and first is not last and first.energy_mj is not None and last.energy_mj is not None:
        energy = last.energy_mj - first.energy_mj
    found: dict[str, Any] = {"samples": len(within), "energy_mj": energy}
    for name in ("used_bytes", "process_bytes", "power_mw", "temperature_c"):
        values = [value for one in within if (value := getattr(one, name)) is not None]
        found[f"{name}_max"] = max(values, default=None)
    return found
