"""What is in use at run time, for a run's condition: filled field by field from the host and the machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

from stagexec.host import devices
from stagexec.record import condition, live


class Conditions:
    """Makes the condition of each accepted prompt. What the process holds fixed is looked up once."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self._fixed: dict[str, Any] | None = None
        self._stored: set[str] = set()

    def of(
        self, prompt: dict[str, Any], extra_data: dict[str, Any], outputs: list[str]
    ) -> tuple[str, dict[str, Any]]:
        """(condition id, {prompt_hash, seeds}) of a prompt; the manifest goes to the ledger once."""
        prompt_hash, seeds = condition.api_prompt_hash(prompt)
        workflow, reason = condition.workflow_hash(extra_data, seeds)
        if self._fixed is None:
            self._fixed = self._look()
        fields = {
            **self._fixed,
            "api_prompt_hash": prompt_hash,
            "workflow_hash": workflow,
            "selected_outputs": sorted(outputs),
            "timing_mode": live.next_timing(),
        }
        reasons = devices.identity_reasons()
        if reason:
            reasons["workflow_hash"] = reason
        whole = condition.manifest(fields, reasons)
        found = condition.condition_id(whole)
        if found not in self._stored and live.journal is not None:
            self._stored.add(found)
            live.journal.put_condition(whole)
        return found, {"prompt_hash": prompt_hash, "seeds": seeds}

    def _look(self) -> dict[str, Any]:
        management = self.api.model_management
        args = self.api.execution.args
        torch = self.api.torch
        return {
            **devices.identity(),
            "host_version": self.api.version(),
            "frontend_version": package("comfyui-frontend-package"),
            "cpu": f"{platform.processor() or platform.machine()}, {os.cpu_count()} logical cores",
            "ram_bytes": int(getattr(management, "total_ram", 0) * 1024**2) or None,
            "torch": str(torch.__version__),
            "cuda": torch.version.cuda if str(management.cpu_state).endswith("GPU") else None,
            "python": platform.python_version(),
            "os": f"{platform.system()} {platform.release()} {platform.machine()}",
            "vram_mode": str(management.vram_state).rsplit(".", 1)[-1],
            "cache_mode": cache_mode(args),
            "preview_mode": str(getattr(args, "preview_method", None)),
            "executor": self.api.executor_used,
            "queue_policy": "priority number, then first come",
            "concurrency": 1,
        }


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
