"""The device's clock: a timed event at every stage switch, resolved into nanoseconds after the run.

Nothing here waits for the device while a run is in execution. What an event cannot tell is null, and
one of REASONS says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from stagexec.record.guard import note
from stagexec.record.ledger import NO_DEPTH, Ledger

REASONS: dict[str, str] = {
    "graph_capture": "a device graph was being captured: an event there would become part of the graph",
    "device_changed": "the current device changed between the two events",
    "stream_changed": "the current stream changed between the two events",
    "fault": "the device reported an error",
    "not_complete": "the device had not come so far when the waiting time was over",
    "too_many": "the run switched stages more often than events are kept for",
    "last": "the last event of the run: nothing follows it",
}
"""Why a length of device time is null: the words in the journal's `device` event."""

MAX_POINTS = 50_000
"""Events kept for one run; a run with more switches has no device time beyond."""

WAIT_S = 2.0
"""After a run, wait so long for its last events to complete. By then the device is usually idle."""

POLL_S = 0.001


class Point(NamedTuple):
    """One stage switch as the device sees it. `event` is None where none was recorded, with a reason."""

    event: Any
    device: int | None
    stream: int | None
    reason: str | None


class DeviceClock(Protocol):
    """What a kind of device offers. One per process; `point` is called on the thread that executes."""

    kind: str
    """cuda, xpu, mps or none."""
    reason: str | None
    """Why there is no device time at all; None where there is."""

    def point(self) -> Point:
        """Record a timed event on the current stream of the current device. Never waits for the device.

        Raises whatever the device raises: a fault of the device is the caller's to keep.
        """
        ...

    def point_on(self, stream: Any, event: Any = None) -> Point:
        """The same on another stream; `event`, if given, is recorded again in place of a fresh one."""
        ...

    def done(self, event: Any) -> bool:
        """Has the device come past `event`? Never waits. Raises the device's own error after a fault."""
        ...

    def between_ns(self, first: Any, second: Any) -> int:
        """Nanoseconds between two completed events of one device, to the resolution of its clock."""
        ...

    def release(self, points: list[Point]) -> None:
        """Take the events back for reuse."""
        ...

    def elsewhere(self) -> AbstractContextManager[bool]:
        """Makes `done` and `between_ns` safe on a thread other than the executing one; gives False
        where they are not, and must be called on that thread."""
        ...


class NoDevice:
    """The clock of a process that computes on no device with timed events; `reason` says why."""

    kind = "none"

    def __init__(self, reason: str) -> None:
        self.reason: str | None = reason

    def point(self) -> Point:
        """No event."""
        return NO_POINT

    def point_on(self, stream: Any, event: Any = None) -> Point:
        """No event."""
        return NO_POINT

    def done(self, event: Any) -> bool:
        """There is nothing to wait for."""
        return True

    def between_ns(self, first: Any, second: Any) -> int:
        """There are no events to measure between."""
        raise TypeError(self.reason)

    def release(self, points: list[Point]) -> None:
        """Nothing to take back."""

    def elsewhere(self) -> AbstractContextManager[bool]:
        """Safe everywhere."""
        return contextlib.nullcontext(True)


NO_POINT = Point(None, None, None, None)


class DeviceLedger(Ledger):
    """A ledger that also tells a `switched` function of every boundary, by its host time.

    A subclass, so that the hot path of `baseline` stays what it is. `switched(start_ns)` runs right
    after the clock was read, so the event's place is the boundary's to a microsecond or so.
    """

    __slots__ = ("switched",)

    switched: Callable[[int], None]

    @classmethod
    def taking(cls, other: Ledger, switched: Callable[[int], None]) -> DeviceLedger:
        """A ledger that goes on where `other`, which must be used no more, has come to."""
        new = cls.__new__(cls)
        new.clock, new.open, new.stack = other.clock, other.open, other.stack
        new.pending, new.visit, new.switched = other.pending, other.visit, switched
        return new

    def enter(self, stage: str, part: str | None = None, seam: str | None = None) -> int:
        """As the base; a boundary unless it gave NO_DEPTH."""
        depth = super().enter(stage, part, seam)
        if depth != NO_DEPTH:
            self.switched(self.open[2])  # type: ignore[index]
        return depth

    def leave(self, depth: int) -> None:
        """As the base; a boundary when something was left."""
        before = self.open
        super().leave(depth)
        if self.open is not before and self.open is not None:
            self.switched(self.open[2])

    def carve(self, part: str, since_ns: int, of_node: bool = False) -> int:
        """Names nothing: no event of the device was recorded where the part began."""
        return since_ns

    def switch(self, stage: str, part: str | None = None, seam: str | None = None) -> None:
        """As the base; a boundary when something was open."""
        before = self.open
        super().switch(stage, part, seam)
        if self.open is not before and self.open is not None:
            self.switched(self.open[2])


@dataclasses.dataclass(slots=True)
class Columns:
    """The `device` event's columns: one entry for each stage switch of the run, in order."""

    start_ns: list[int] = dataclasses.field(default_factory=list)
    device: list[int | None] = dataclasses.field(default_factory=list)
    stream: list[int | None] = dataclasses.field(default_factory=list)
    device_ns: list[int | None] = dataclasses.field(default_factory=list)
    reason: list[str | None] = dataclasses.field(default_factory=list)


class Recording:
    """The events of one run. `switched` is called by the executing thread, `resolve` once, afterwards."""

    def __init__(self, clock: DeviceClock, most: int = MAX_POINTS) -> None:
        self.clock = clock
        self.starts: list[int] = []
        self.points: list[Point] = []
        self.most = most
        self.fault: str | None = None

    def switched(self, start_ns: int) -> None:
        """A stage begins at `start_ns` of the host's clock: mark the same place on the device's."""
        try:
            if self.fault is not None:
                point = Point(None, None, None, "fault")
            elif len(self.points) >= self.most:
                point = Point(None, None, None, "too_many")
            else:
                point = self.clock.point()
        except Exception as error:  # noqa: BLE001 (a device fault is the run's, and ends its device time)
            self._failed(error)
            point = Point(None, None, None, "fault")
        self.starts.append(start_ns)
        self.points.append(point)

    def resolve(self, wait_s: float = WAIT_S) -> Columns:
        """Lengths between neighbouring events. Waits at most `wait_s` seconds in all, by polling."""
        columns = Columns(self.starts)
        deadline = time.monotonic() + wait_s
        points = self.points
        for at, point in enumerate(points):
            following = points[at + 1] if at + 1 < len(points) else None
            length, reason = self._length(point, following, deadline)
            columns.device.append(point.device)
            columns.stream.append(point.stream)
            columns.device_ns.append(length)
            columns.reason.append(reason)
        self._release()
        return columns

    def _length(
        self, point: Point, following: Point | None, deadline: float
    ) -> tuple[int | None, str | None]:
        if point.reason is not None:
            return None, point.reason
        if following is None:
            return None, "last"
        if following.reason is not None:
            return None, following.reason
        if point.device != following.device:
            return None, "device_changed"
        if point.stream != following.stream:
            return None, "stream_changed"
        if self.fault is not None:
            return None, "fault"
        try:
            if not self.complete(following.event, deadline):
                return None, "not_complete"
            return self.clock.between_ns(point.event, following.event), None
        except Exception as error:  # noqa: BLE001 (whatever a broken device raises: the rest is null, with a reason)
            self._failed(error)
            return None, "fault"

    def complete(self, event: Any, deadline: float) -> bool:
        """Is `event` complete before `deadline` (of time.monotonic)? Raises the device's error."""
        while not self.clock.done(event):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def _failed(self, error: BaseException) -> None:
        text = str(error).splitlines()
        self.fault = f"{type(error).__name__}: {text[0] if text else ''}"[:300]

    def _release(self) -> None:
        points, self.points = self.points, []
        if self.fault is not None:  # events of a broken device are not used again
            return
        try:
            self.clock.release(points)
        except Exception as error:  # noqa: BLE001 (our own bookkeeping: noted)
            note("Recording.release", error)
