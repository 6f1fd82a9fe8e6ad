"""What else happened on the machine meanwhile: times of a busy, throttled or warming machine mislead."""

from __future__ import annotations

import os
import time
from typing import Any

from stagexec.bench import room


class Meter:
    """Counts from when it is made. What this process and its descendants use is not others'."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy, self._ours = _busy_seconds(), _our_seconds()

    def others(self) -> float:
        """The share of all processors' time that went to other programs, of 1."""
        passed = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        others = _busy_seconds() - self._busy - (_our_seconds() - self._ours)
        return others / passed if passed > 0 else 0.0

    def around(self) -> dict[str, Any]:
        """What went on around a run that ended just now, for the raw record.

        `others_cpu` (share of 1), `cpu_mhz` (mean of the processors, None where the system does not tell),
        and `devices`: uuid -> `sm_mhz`, `celsius`.
        """
        return {
            "others_cpu": round(self.others(), 4),
            "cpu_mhz": _cpu_mhz(),
            "devices": room.device_state(),
        }


def _busy_seconds() -> float:
    import psutil  # type: ignore[import-untyped]

    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "interrupt", "dpc")
    return sum(float(getattr(times, name, 0.0)) for name in names)


def _cpu_mhz() -> float | None:
    import psutil

    try:
        found = psutil.cpu_freq()
    except (OSError, NotImplementedError, AttributeError, RuntimeError):
        return None  # virtual machines and some systems do not tell
    return round(float(found.current), 1) if found and found.current else None


def _our_seconds() -> float:
    import psutil

    me = psutil.Process()
    return sum(_seconds(one) for one in (me, *me.children(recursive=True)))


def _seconds(process: Any) -> float:
    import psutil

    try:
        return float(sum(process.cpu_times()[:4]))  # its own, and of children that have ended
    except psutil.Error:
        return 0.0  # it ended just now; its parent has its time, or soon will
