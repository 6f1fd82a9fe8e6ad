"""The device that the host computes on, its identity, and what of its work our events cannot see."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stagexec.record import live, memory, nvml
from stagexec.record.guard import note

OFFLOAD_STREAMS = "comfy.model_management:get_offload_stream"
JOIN_STREAM = "comfy.model_management:sync_stream"

GPU_FIELDS = ("gpu_uuid", "gpu_model", "gpu_vram_bytes", "gpu_power_limit_mw", "gpu_clocks_policy", "driver")
"""Fields of a condition that speak of the device."""

_watching = False


def management() -> Any:
    """comfy.model_management, once the host has imported it."""
    return sys.modules.get("comfy.model_management")


def kind() -> str | None:
    """torch's type of the device that the host computes on: cuda (ROCm too), xpu, mps, cpu …"""
    host = management()
    return None if host is None else str(host.get_torch_device().type)


def unseen() -> list[str]:
    """What device events cannot see in this process, in words."""
    host = management()
    found = ["other devices than the one that is current at a stage switch", "streams that packs make"]
    streams = int(getattr(host, "NUM_STREAMS", 0) or 0)
    if streams and not _watching:
        found.append(f"copies of offloaded weights on {streams} streams of their own")
    if getattr(sys.modules.get("comfy.memory_management"), "aimdo_enabled", False):
        found.append("pages of dynamic VRAM that the driver moves by itself")
    return found


def dynamic_vram_bytes() -> int | None:
    """What the host's dynamic VRAM holds on the device; None where it is not in use."""
    if not getattr(sys.modules.get("comfy.memory_management"), "aimdo_enabled", False):
        return None
    control = sys.modules.get("comfy_aimdo.control")
    ask = getattr(control, "get_total_vram_usage", None)
    return int(ask()) if ask is not None else None


def identity() -> dict[str, Any]:
    """GPU_FIELDS as far as NVML and torch know them; empty on a CPU."""
    if kind() != "cuda":
        return {}
    torch = sys.modules["torch"]
    device = management().get_torch_device()
    known = torch.cuda.get_device_properties(device)
    uuid = getattr(known, "uuid", None)
    handle = nvml.handle_of(None if uuid is None else str(uuid), device.index or 0)
    told = nvml.facts(handle) if handle is not None else {}
    return {
        "gpu_uuid": told.get("uuid") or (f"GPU-{uuid}" if uuid else None),
        "gpu_model": told.get("name") or known.name,
        "gpu_vram_bytes": told.get("memory_bytes") or known.total_memory,
        "gpu_power_limit_mw": told.get("power_limit_mw"),
        "gpu_clocks_policy": told.get("clocks_policy"),
        "driver": told.get("driver"),
    }


def identity_reasons() -> dict[str, str]:
    """Why GPU_FIELDS may be null."""
    if kind() != "cuda":
        return dict.fromkeys(GPU_FIELDS, "no device in use")
    _, reason = nvml.library()
    return dict.fromkeys(GPU_FIELDS, reason or "the driver does not tell")


def tell() -> None:
    """Let the recorder know the host's device."""
    live.device_kind, live.unseen = kind, unseen
    memory.dynamic_vram = dynamic_vram_bytes


def watched(handed_out: bool) -> Callable[[ModuleType, Any], Any]:
    """A factory for the functions that hand out offload streams and join them: ours tells the run.

    Plain functions, because torch.compile traces through them: what is ours is left out of the trace.
    """

    def factory(_module: ModuleType, original: Any) -> Any:
        global _watching
        _watching = True
        compiling = sys.modules["torch"].compiler.is_compiling

        if handed_out:

            def get_offload_stream(*args: Any, **kwargs: Any) -> Any:
                stream = original(*args, **kwargs)
                if not compiling() and stream is not None:
                    tell_offload(True, stream)
                return stream

            get_offload_stream.__wrapped__ = original  # type: ignore[attr-defined]
            return get_offload_stream

        def sync_stream(*args: Any, **kwargs: Any) -> Any:
            if not compiling():
                stream = args[1] if len(args) > 1 else kwargs.get("stream")
                if stream is not None:
                    tell_offload(False, stream)
            return original(*args, **kwargs)

        sync_stream.__wrapped__ = original  # type: ignore[attr-defined]
        return sync_stream

    return factory


def tell_offload(handed_out: bool, stream: Any) -> None:
    """Tell the run in execution on this thread that `stream` was handed out, or is joined."""
    run = live.current_for_thread()
    if run is None or run.instruments is None or run.instruments.offload is None:
        return
    try:
        offload = run.instruments.offload
        (offload.handed_out if handed_out else offload.joined)(stream)
    except Exception as error:  # noqa: BLE001 (once per copied weight: a fence in line)
        note("tell_offload", error)


def offload_places(timing: str) -> dict[str, Callable[[ModuleType, Any], Any]]:
    """What takes the place of the offload functions: nothing in `baseline`, where no event would be kept."""
    if timing == "baseline":
        return {}
    return {OFFLOAD_STREAMS: watched(True), JOIN_STREAM: watched(False)}
