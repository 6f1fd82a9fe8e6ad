"""Containers that PyAV writes in this process: closing one is the mux, and tells what was encoded."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

import wrapt

from stagexec.delivery import children
from stagexec.delivery.asking import ask
from stagexec.public import in_other_task
from stagexec.record import live
from stagexec.record.guard import guarded
from stagexec.record.ledger import NO_DEPTH
from stagexec.record.run import Run

SEAM = "av_open"

_ObjectProxy: Any = wrapt.ObjectProxy


def watched_open(_module: ModuleType, original: Any) -> Any:
    """`av.open` that hands out a watched container when it is opened for writing in a run's node."""

    @functools.wraps(original)
    def open(*args: Any, **kwargs: Any) -> Any:  # noqa: A001 (it takes that function's place)
        container = original(*args, **kwargs)
        if live.run is None:
            return container
        return watched(live.here(), container, args[0] if args else kwargs.get("file")) or container

    return open


@guarded
def watched(run: Run | None, container: Any, target: Any) -> Any:
    """A stand-in for an output container of the run's main lane; None for any other."""
    writes = hasattr(container, "mux") and hasattr(container, "add_stream")
    if not writes or run is None or not run.on_main_lane() or in_other_task(run):
        return None
    run.writes(target)
    return WatchedContainer(container, run, target)


class WatchedContainer(_ObjectProxy):  # type: ignore[misc]
    """A PyAV output container, and the counts of what goes through it. All calls reach the container itself.

    The classes of PyAV are C types whose methods cannot be replaced, so the container is handed out
    behind this proxy, which is an instance of the container's class for `isinstance`.
    """

    def __init__(self, container: Any, run: Run, target: Any) -> None:
        super().__init__(container)
        self._self_target = target
        self._self_run = run
        self._self_packets: dict[int, int] = {}
        self._self_mux_ns = 0
        self._self_opened_ns = run.clock()
        self._self_filed = False

    def __enter__(self) -> Any:
        self.__wrapped__.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._self_closing(lambda: self.__wrapped__.__exit__(*error), failed=error[0] is not None)

    def close(self) -> Any:
        """Close the container."""
        return self._self_closing(self.__wrapped__.close, failed=False)

    def mux(self, packets: Any) -> Any:
        """Write packets."""
        return self._self_muxing(self.__wrapped__.mux, packets)

    def mux_one(self, packet: Any) -> Any:
        """Write one packet."""
        return self._self_muxing(self.__wrapped__.mux_one, packet)

    def _self_muxing(self, call: Any, packets: Any) -> Any:
        start = self._self_run.clock()
        try:
            return call(packets)
        finally:
            self._self_mux_ns += self._self_run.clock() - start
            count(self._self_packets, packets)

    def _self_closing(self, call: Any, failed: bool) -> Any:
        run = self._self_run
        if self._self_filed or not run.on_main_lane():
            return call()
        self._self_filed = True
        detail = facts(self.__wrapped__, self._self_packets) or {}
        inside = run.enter("encode_mux", "mux", SEAM) if not in_other_task(run) else NO_DEPTH
        done = False
        try:
            result = call()
            done = True
            return result
        finally:
            run.leave(inside)
            times = {"opened_mono_ns": self._self_opened_ns, "packet_write_ns": self._self_mux_ns}
            file(run, self._self_target, {**detail, **times, "whole": done and not failed})


@guarded
def count(counts: dict[int, int], packets: Any) -> None:
    """Add packets to the count of their streams."""
    for packet in packets if isinstance(packets, (list, tuple)) else (packets,):
        stream = getattr(packet, "stream", None)
        if stream is not None:
            counts[stream.index] = counts.get(stream.index, 0) + 1


@guarded
def facts(container: Any, packets: dict[int, int]) -> dict[str, Any]:
    """What a container that is about to be closed holds."""
    streams = [_stream(stream, packets) for stream in container.streams]
    frames = next((one["packets"] for one in streams if one["type"] == "video"), None)
    return {"container": container.format.name, "frames": frames, "streams": streams}


def _stream(stream: Any, packets: dict[int, int]) -> dict[str, Any]:
    context = stream.codec_context
    found: dict[str, Any] = {
        "type": stream.type,
        "codec": getattr(context, "name", None),
        "packets": packets.get(stream.index, 0),
    }
    if stream.type == "video" and context is not None:
        rate = stream.average_rate or getattr(context, "framerate", None)
        found |= {"width": context.width, "height": context.height, "pixel_format": context.pix_fmt}
        found["fps"] = None if rate is None else f"{rate.numerator}/{rate.denominator}"
    elif stream.type == "audio" and context is not None:
        found |= {"sample_rate": context.sample_rate, "channels": context.layout.nb_channels}
    return found


@guarded
def file(run: Run, target: Any, detail: dict[str, Any]) -> None:
    """File what was encoded as a mark of the visit. No name of the file: its artifact has that."""
    node_id, node_class = run.node or (None, None)
    detail = {**detail, "bytes": _size(target)}
    if detail["bytes"] and detail.get("whole"):
        children.made_otherwise(run, run.visit, target)
    run.mark("encoded", detail, visit=run.visit, node_id=node_id, node_class=node_class)


def _size(target: Any) -> int | None:
    if isinstance(target, (str, os.PathLike)):
        try:
            return ask(lambda: os.stat(target).st_size, None)
        except OSError:  # no file of that name: a pipe or a network address, or it could not be made
            return None
    tell = getattr(target, "getbuffer", None)
    return len(tell()) if tell is not None else None
