"""Device clocks by kind of device, and the one for the device that the host computes on."""

from __future__ import annotations

import sys

from stagexec.record.device import DeviceClock, NoDevice

ON_CPU = "the host computes on the CPU, which has no device time"


def clock_for(kind: str | None) -> DeviceClock:
    """The clock for torch's device type `kind` (cuda, xpu, mps, cpu …); torch must be imported already.

    Never raises for a device it cannot time: it gives a NoDevice that says why.
    """
    torch = sys.modules.get("torch")
    if kind is None or torch is None:
        return NoDevice("the host's device is not known")
    if kind == "cpu":
        return NoDevice(ON_CPU)
    from stagexec.record.devices import events

    make = events.BACKENDS.get(kind)
    if make is None:
        return NoDevice(f"torch offers no timed events for devices of type {kind}")
    try:
        return events.EventClock(make(torch))
    except AttributeError as missing:
        return NoDevice(f"this torch offers no timed events for {kind}: {missing}")
