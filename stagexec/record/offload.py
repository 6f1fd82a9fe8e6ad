"""Weights copied on streams of their own: one span per stream and stage segment, on the device's clock."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from stagexec.record.device import WAIT_S, Point, Recording

MAX_SPANS = 20_000


@dataclasses.dataclass(slots=True)
class Columns:
    """The `device_spans` event's columns: one entry for each stream in each segment that used it."""

    start_ns: list[int] = dataclasses.field(default_factory=list)
    device: list[int | None] = dataclasses.field(default_factory=list)
    stream: list[int | None] = dataclasses.field(default_factory=list)
    offset_ns: list[int | None] = dataclasses.field(default_factory=list)
    length_ns: list[int | None] = dataclasses.field(default_factory=list)
    copies: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Use:
    """The use of one stream inside one segment: from before its first copy to after its last."""

    at: int
    first: Point
    last: Point | None = None
    copies: int = 0


class Offload:
    """The offload streams of one run. The executing thread calls `handed_out` and `joined`."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._open: dict[Any, Use] = {}
        self._segment = -1
        self.uses: list[Use] = []

    def handed_out(self, stream: Any) -> None:
        """The host is about to copy weights on `stream`."""
        segment = len(self._recording.points) - 1
        if segment != self._segment:
            self._segment = segment
            self._open = {}
        use = self._open.get(stream)
        if use is None and self._recording.fault is None and segment >= 0 and len(self.uses) < MAX_SPANS:
            use = self._open[stream] = Use(segment, self._recording.clock.point_on(stream))
            self.uses.append(use)
        if use is not None:
            use.copies += 1

    def joined(self, stream: Any) -> None:
        """The computing stream waits for `stream`: what was copied so far is the span so far."""
        use = self._open.get(stream)
        if use is not None and use.first.event is not None and self._recording.fault is None:
            event = use.last.event if use.last is not None else None
            use.last = self._recording.clock.point_on(stream, event)

    def resolve(self, points: list[Point], starts: list[int], wait_s: float = WAIT_S) -> Columns:
        """Place and length of every span, relative to its segment's own event. Nulls where unresolved.

        Call it before the recording's events are released.
        """
        columns = Columns()
        deadline = time.monotonic() + wait_s
        for use in self.uses:
            offset, length = self._measure(use, points[use.at], deadline)
            columns.start_ns.append(starts[use.at])
            columns.device.append(use.first.device)
            columns.stream.append(use.first.stream)
            columns.offset_ns.append(offset)
            columns.length_ns.append(length)
            columns.copies.append(use.copies)
        return columns

    def _measure(self, use: Use, segment: Point, deadline: float) -> tuple[int | None, int | None]:
        last = use.last
        recording = self._recording
        if last is None or last.event is None or use.first.event is None or recording.fault is not None:
            return None, None
        try:
            if not recording.complete(last.event, deadline):
                return None, None
            offset = None
            if segment.event is not None and segment.device == use.first.device:
                offset = recording.clock.between_ns(segment.event, use.first.event)
            return offset, recording.clock.between_ns(use.first.event, last.event)
        except Exception:  # noqa: BLE001 (a broken device: the run's own events tell what happened)
            return None, None

    def release(self) -> list[Point]:
        """The events used, for the pool."""
        uses, self.uses, self._open = self.uses, [], {}
        return [point for use in uses for point in (use.first, use.last) if point is not None]
