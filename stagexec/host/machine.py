"""What this machine and process hold fixed: versions, modes, storage, encoder."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from stagexec.delivery import ffmpeg
from stagexec.delivery.errors import EncodeFailed
from stagexec.host import devices, packs

FFMPEG_S = 10.0


def fixed(api: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """(fields, reasons) of what does not change while the process lives."""
    management, args, torch = api.model_management, api.execution.args, api.torch
    reasons = {
        **devices.identity_reasons(),
        "host_commit": "the host's folder is no checkout",
        "frontend_version": "the frontend package is not installed",
        "cuda": "no device in use",
        "ram_bytes": "the machine does not tell",
        "final_storage": "the output folder is not known",
        "temp_storage": "the temporary folder is not known",
        "filesystem": "the output folder's file system is not known",
    }
    on_cpu = str(management.cpu_state).endswith("CPU")
    output = storage(api, api.directory_of("output"))
    temp = storage(api, api.directory_of("temp"))
    fields = {
        **devices.identity(),
        "host_version": api.version(),
        "host_commit": packs.commit(Path(api.execution.__file__).parent),
        "frontend_version": package("comfyui-frontend-package"),
        "cpu": f"{cpu_name()}, {os.cpu_count()} logical cores",
        "ram_bytes": int(getattr(management, "total_ram", 0) * 1024**2) or None,
        "torch": str(torch.__version__),
        "cuda": None if on_cpu else torch.version.cuda or getattr(torch.version, "hip", None),
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "vram_mode": vram_mode(management),
        "cache_mode": cache_mode(args),
        "executor": api.executor_used,
        "queue_policy": "priority number, then first come",
        "concurrency": 1,
        "final_storage": output[0],
        "filesystem": output[1],
        "temp_storage": temp[0],
    }
    return fields, reasons


def vram_mode(management: Any) -> str:
    """The host's memory mode; dynamic where it pages weights."""
    mode = str(management.vram_state).rsplit(".", 1)[-1]
    aimdo = getattr(sys.modules.get("comfy.memory_management"), "aimdo_enabled", False)
    return f"{mode}, dynamic" if aimdo else mode


def preview_mode() -> str | None:
    """How previews are made, as the host has it now: a prompt may change it."""
    preview = sys.modules.get("latent_preview")
    args = getattr(preview, "args", None)
    method = getattr(args, "preview_method", None)
    return None if method is None else str(getattr(method, "value", method))


def cache_mode(args: Any) -> str:
    """The host's cache between prompts, by its own arguments."""
    if getattr(args, "cache_none", False):
        return "none"
    if getattr(args, "cache_lru", 0):
        return f"lru {args.cache_lru}"
    if getattr(args, "cache_classic", False):
        return "classic"
    ram = getattr(args, "cache_ram", None)
    return f"ram {ram}" if ram else "default"


def package(name: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """The processor's model name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            named = next((line for line in lines if line.startswith("model name")), "")
    except OSError:  # no Linux
        named = ""
    return named.partition(":")[2].strip() or platform.processor() or platform.machine()


def storage(api: Any, folder: str | None) -> tuple[str | None, str | None]:
    """(device and mount point, file system) of a folder."""
    if folder is None:
        return None, None
    psutil = getattr(api.execution, "psutil", None)
    partitions = psutil.disk_partitions(all=True) if psutil is not None else []
    path = os.path.realpath(folder)
    over = [one for one in partitions if _is_under(path, one.mountpoint)]
    if not over:
        return None, None
    best = max(over, key=lambda one: len(one.mountpoint))
    return f"{best.device} on {best.mountpoint}", best.fstype or None


def _is_under(path: str, mount: str) -> bool:
    return path == mount or path.startswith(mount.rstrip(os.sep) + os.sep)


@functools.lru_cache(maxsize=8)
def encoder_program() -> tuple[str | None, str | None, str | None]:
    """(version, hash of the build's configuration, reason) of the ffmpeg program that our nodes start."""
    try:
        binary = ffmpeg.find()
        told = subprocess.run(
            [binary, "-hide_banner", "-version"], capture_output=True, timeout=FFMPEG_S, check=True
        ).stdout.decode("utf-8", "replace")
    except (EncodeFailed, OSError, subprocess.SubprocessError):
        return None, None, "no ffmpeg program answers"
    lines = told.splitlines()
    version = lines[0].split(" ")[2] if lines and len(lines[0].split(" ")) > 2 else told[:80]
    return f"ffmpeg {version}", hashlib.sha256(told.encode()).hexdigest()[:16], None


def encoder_library() -> tuple[str | None, str | None, str | None]:
    """The same of the libraries in PyAV, with which the host's own nodes encode."""
    av = sys.modules.get("av")
    versions = getattr(av, "library_versions", None)
    if versions is None:
        return None, None, "PyAV is not loaded"
    named = ", ".join(f"{name} {'.'.join(map(str, number))}" for name, number in sorted(versions.items()))
    return f"PyAV {getattr(av, '__version__', '')}", hashlib.sha256(named.encode()).hexdigest()[:16], None
