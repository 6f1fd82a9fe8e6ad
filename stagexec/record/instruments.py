"""What is attached to one run in the timing modes `events` and `profile`, and filed after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stagexec.format import MEMORY_COLUMNS
from stagexec.record import after, device, offload
from stagexec.record.device import DeviceClock, DeviceLedger, NoDevice, Recording
from stagexec.record.guard import guarded
from stagexec.record.memory import Samples
from stagexec.record.offload import Offload
from stagexec.record.profile import Profile
from stagexec.record.run import Run

WORKER_WAIT_S = 0.25
"""Where events can be resolved on the worker only, the next run waits for them no longer than this."""

File = Callable[..., None]
"""File an event of a run: `file(run, event_type, **fields)`."""


class Instruments:
    """Device events, memory samples and, for a profile, torch's profiler: all of one run."""

    def __init__(self, run: Run, clock: DeviceClock, folder: Path | None) -> None:
        self.run = run
        self.clock = clock
        self.recording = None if clock.reason is not None else Recording(clock)
        self.offload = None if self.recording is None else Offload(self.recording)
        self.memory = Samples(clock.kind)
        self.profile = None
        if run.timing == "profile" and folder is not None:
            self.profile = Profile(run.run_id, folder, run.clock)
        self._columns: tuple[device.Columns, offload.Columns | None] | None = None

    def attach(self) -> None:
        """From here on every stage switch of the run is seen. On the thread that executes it."""
        if self.profile is not None:
            self.profile.start()
        self.run.use_ledger(DeviceLedger.taking(self.run.ledger, self._switched()))

    def _switched(self) -> Callable[[int], None]:
        """What a stage switch calls: only what this run needs."""
        sample = self.memory.boundary
        if self.recording is None and self.profile is None:
            return sample
        record = self.recording.switched if self.recording is not None else None
        run, profile = self.run, self.profile

        def switched(start_ns: int) -> None:
            if record is not None:
                record(start_ns)
            sample(start_ns)
            if profile is not None:
                open_ = run.ledger.open
                profile.range(open_[0] if open_ else "-", run.node[0] if run.node else None)

        return switched

    @guarded
    def detach(self) -> None:
        """Execution is over. On the thread that executed; nothing here waits for the device where the
        events can be resolved elsewhere."""
        if self.profile is not None:
            self.profile.stop()
        if self.recording is not None:
            with self.clock.elsewhere() as safe:
                pass
            if not safe:
                self._columns = self._resolve(WORKER_WAIT_S)

    def _resolve(self, wait_s: float) -> tuple[device.Columns, offload.Columns | None]:
        assert self.recording is not None
        assert self.offload is not None
        # The spans first: they are measured against the segments' own events.
        spans = self.offload.resolve(self.recording.points, self.recording.starts, wait_s)
        columns = self.recording.resolve(wait_s)
        if self.recording.fault is None:
            self.clock.release(self.offload.release())
        return columns, spans if spans.start_ns else None

    @guarded
    def settle(self, file: File) -> None:
        """Resolve what is not, and file it. Off the worker, after the run's last segment was closed."""
        if self.recording is not None:
            if self._columns is None:
                with self.clock.elsewhere():
                    self._columns = self._resolve(device.WAIT_S)
            columns, spans = self._columns
            fault = self.recording.fault
            file(self.run, "device", source="loop", fault=fault, **dataclasses.asdict(columns))
            if spans is not None:
                file(self.run, "device_spans", source="seam", **dataclasses.asdict(spans))
        if self.memory.rows:
            rows = zip(*self.memory.rows, strict=True)
            named = dict(zip(MEMORY_COLUMNS, map(list, rows), strict=True))
            file(self.run, "memory", source="loop", **named)
        if self.profile is not None:
            self._file_profile(self.profile, file)

    def _file_profile(self, profile: Profile, file: File) -> None:
        for path in profile.write() or ():
            file(
                self.run,
                "artifact",
                source="process",
                artifact=path.relative_to(profile.ledger).as_posix(),
                bytes=path.stat().st_size,
                sha256=None,
                state="unverified",
                reason="written by stagexec's profile",
                media="profile",
                orphan=False,
                cached=False,
                ready_mono_ns=None,
                first_bad=None,
            )
        for problem in profile.problems:
            file(self.run, "mark", source="process", name="profile_problem", detail={"what": problem})


@guarded
def attach(run: Run, clock: DeviceClock | None, folder: Path | None) -> None:
    """Give `run` the instruments of its timing mode. On the thread that will execute it."""
    made = Instruments(run, clock or NoDevice("the host's device is not known"), folder)
    begun_ns = run.clock()
    made.attach()
    run.instruments = made
    if made.profile is not None:
        after.file(None, after.PROFILE, begun_ns, run.clock())


def reason_of(run: Run) -> tuple[str | None, str | None]:
    """(kind of device, None), or (None, why there is no device time): the fields of `run_started`."""
    made: Any = run.instruments
    if made is None:
        return None, f"no device events in timing mode {run.timing}"
    if made.clock.reason is not None:
        return None, made.clock.reason
    return made.clock.kind, None
