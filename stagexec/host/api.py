"""The host as the executor sees it: modules looked up late, and answers that differ between hosts."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from stagexec.host import facts as host_facts
from stagexec.host.condition import Conditions
from stagexec.host.node_stage import NodeStages
from stagexec.host.tables import Tables


class HostApi:
    """One per process, made when the host's `execution` module has been imported."""

    def __init__(self, execution: ModuleType, tables: Tables) -> None:
        self.execution = execution
        self.facts = host_facts.facts_of(execution)
        self.fingerprint = host_facts.fingerprint(execution)
        self.node_stages = NodeStages(tables.nodes)
        self.stage_of = self.node_stages.stage_of
        self.choices = self.node_stages.choices
        self.conditions = Conditions(self)
        self.condition_of = self.conditions.of
        self.keep_condition = self.conditions.keep
        self.executor_used = "native"
        self.timing = "baseline"

    def version(self) -> str | None:
        """See `version`."""
        return version()

    @property
    def torch(self) -> Any:
        """torch, which the host has imported."""
        return sys.modules["torch"]

    @property
    def nodes(self) -> Any:
        """The host's module `nodes`, with its class table."""
        return self.execution.nodes

    @property
    def graph(self) -> Any:
        """The host's module of graphs and of the order of execution."""
        return sys.modules["comfy_execution.graph"]

    @property
    def model_management(self) -> Any:
        """comfy.model_management."""
        return self.execution.comfy.model_management

    @property
    def memory_management(self) -> Any:
        """comfy.memory_management, on hosts that have it."""
        return self.execution.comfy.memory_management

    @property
    def model_prefetch(self) -> Any:
        """comfy.model_prefetch, on hosts that have it."""
        return self.execution.comfy.model_prefetch

    @property
    def aimdo(self) -> Any:
        """comfy_aimdo, on hosts with dynamic VRAM."""
        return sys.modules["comfy_aimdo"]

    @property
    def interrupt_exception(self) -> Any:
        """The exception by which an interrupt travels."""
        return self.model_management.InterruptProcessingException

    def is_oom(self, error: BaseException) -> bool:
        """Does this host take `error` for an out-of-memory error?"""
        judge = getattr(self.model_management, "is_oom", None)
        if judge is not None:
            return bool(judge(error))
        return isinstance(error, self.model_management.OOM_EXCEPTION)

    def has_lazy_check(self, class_def: Any, node_object: Any) -> bool:
        """Does this node decide at run time which of its inputs it needs?"""
        internal = getattr(self.execution, "_ComfyNodeInternal", None)
        if internal is not None and issubclass(class_def, internal):
            return self.execution.first_real_override(class_def, "check_lazy_status") is not None
        return getattr(node_object, "check_lazy_status", None) is not None

    @property
    def caching(self) -> Any:
        """The host's module of caches and their keys."""
        return sys.modules["comfy_execution.caching"]

    def has_plain_caches(self, caches: Any) -> bool:
        """Are a prompt's caches the host's own, with nothing in them that waits or is a pack's?"""
        if self.facts["cache_providers"] and self.execution._has_cache_providers():
            return False
        host = vars(self.caching)
        methods = (getattr(type(cache), name) for cache in caches.all for name in ("get", "set"))
        return all(getattr(method, "__globals__", None) is host for method in methods)

    def debug_logging(self) -> bool:
        """Does the console show DEBUG, by this host's own arguments?"""
        level = getattr(self.execution, "get_console_log_level", None)
        verbose = self.execution.args.verbose
        shown: Any = level(verbose) if level is not None else verbose
        return bool(shown == "DEBUG")

    def available_ram(self) -> int:
        """Bytes of memory that the host takes for available."""
        available: int = self.execution.psutil.virtual_memory().available
        return available

    def directory_of(self, kind: str) -> str | None:
        """Absolute folder of output, temp or input files, as the host has it now."""
        folders = sys.modules.get("folder_paths")
        found = folders.get_directory_by_type(kind) if folders is not None else None
        return None if found is None else str(found)


def version() -> str | None:
    """The host's version text. It does not identify the code; the facts and the fingerprint do."""
    try:
        module: Any = importlib.import_module("comfyui_version")
    except ImportError:  # trees before 0.3.28 keep it elsewhere
        return None
    found = getattr(module, "__version__", None)
    return str(found) if found is not None else None
