"""What this host is like, as named facts found by inspection; no version is compared anywhere else.

`doctor` prints them, the native loop's duties hang on them, and the journal keeps them.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

FACTS: dict[str, str] = {
    "async_loop": "the host's loop is a coroutine (PromptExecutor.execute_async)",
    "async_validation": "validate_prompt is a coroutine function",
    "visit_arguments": "how many arguments execution.execute takes",
    "progress_registry": "node progress goes through a registry of handlers",
    "preview_override": "a prompt may choose its own preview method",
    "cache_entry": "caches hold CacheEntry(ui, outputs)",
    "async_caches": "cache get and set are coroutines",
    "cache_providers": "external cache providers hear of each prompt",
    "send_cached_ui": "cached nodes are announced by execution._send_cached_ui",
    "intermediate_outputs": "nodes may show output in mid-graph (HAS_INTERMEDIATE_OUTPUT)",
    "asset_enrichment": "outputs are enriched with asset ids",
    "prompt_model_tracker": "the executor tracks which models a prompt touches",
    "output_link_callback": "ExecutionList takes a callback for linked outputs",
    "dynamic_vram": "the host can page weights inside a node (comfy_aimdo)",
    "prefetch_queues": "prefetch queues are cleaned after each node",
    "ram_poll": "the cache is polled for RAM after each node",
    "ram_release_callback": "the cache gives RAM back through a callback",
    "ram_extra_release": "RAM is given back after each node by extra_ram_release",
    "ram_inactive": "old workflows have a RAM headroom of their own",
    "ram_eviction_log": "the cache counts what it evicted for RAM",
    "interrupt_is_base_exception": "InterruptProcessingException is no Exception",
    "interrupt_if_running": "the queue can interrupt one prompt by its id",
    "sensitive_queue_item": "task_done takes process_item, and queue items a sixth element",
}

LOOP_SOURCES = (
    "PromptExecutor.__init__",
    "PromptExecutor.reset",
    "PromptExecutor.add_message",
    "PromptExecutor.handle_execution_error",
    "PromptExecutor.execute",
    "PromptExecutor.execute_async",
    "execute",
    "_send_cached_ui",
    "_is_intermediate_output",
)
"""Functions of `execution` that our loop stands for: their source is the loop's fingerprint."""


def facts_of(execution: ModuleType) -> dict[str, Any]:
    """The named facts of a host whose `execution` module has been imported.

    A name that this host does not have makes the facts about it false: it cannot be one that we know.
    """
    names = set(vars(execution))
    executor = getattr(execution, "PromptExecutor", None)
    queue = getattr(execution, "PromptQueue", None)
    scheduler = _named(execution, "ExecutionList.__init__")
    management = execution.comfy.model_management
    interrupt = getattr(management, "InterruptProcessingException", Exception)
    loop = source_of(execution, "PromptExecutor.execute_async")
    visit = source_of(execution, "execute")
    memory = getattr(execution.comfy, "memory_management", None)
    return {
        "async_loop": hasattr(executor, "execute_async"),
        "async_validation": inspect.iscoroutinefunction(_named(execution, "validate_prompt")),
        "visit_arguments": len(parameters(_named(execution, "execute"))),
        "progress_registry": "get_progress_state" in names,
        "preview_override": "set_preview_method" in names,
        "cache_entry": "CacheEntry" in names,
        "async_caches": inspect.iscoroutinefunction(_named(execution, "HierarchicalCache.get")),
        "cache_providers": hasattr(executor, "_notify_prompt_lifecycle"),
        "send_cached_ui": "_send_cached_ui" in names,
        "intermediate_outputs": "_is_intermediate_output" in names,
        "asset_enrichment": "enrich_output_with_assets" in names,
        "prompt_model_tracker": "prompt_model_tracker" in loop,
        "output_link_callback": "output_link_callback" in parameters(scheduler),
        "dynamic_vram": "aimdo_enabled" in visit and hasattr(memory, "aimdo_enabled"),
        "prefetch_queues": "cleanup_prefetch_queues" in visit,
        "ram_poll": ".poll(" in loop,
        "ram_release_callback": "set_ram_cache_release_state" in loop,
        "ram_extra_release": "extra_ram_release" in loop,
        "ram_inactive": "ram_inactive" in loop,
        "ram_eviction_log": "active_evictions" in loop,
        "interrupt_is_base_exception": not issubclass(interrupt, Exception),
        "interrupt_if_running": hasattr(queue, "interrupt_if_running"),
        "sensitive_queue_item": "process_item" in parameters(getattr(queue, "task_done", None)),
    }


def parameters(function: Any) -> set[str]:
    """Names of a function's parameters; none where there is no such function."""
    return set() if function is None else set(inspect.signature(unwrapped(function)).parameters)


def _named(module: ModuleType, qualname: str) -> Any:
    """The host's own function or class of that name, under all wrappers; None where it has none."""
    found: Any = module
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return unwrapped(found)


def unwrapped(function: Any) -> Any:
    """The function under our and others' wrappers."""
    return inspect.unwrap(function)


def source_of(module: ModuleType, qualname: str) -> str:
    """Source text of a function of the host; empty when there is none."""
    found = _named(module, qualname)
    if found is None:
        return ""
    try:
        return inspect.getsource(found)
    except (OSError, TypeError):
        return ""


def fingerprint(module: ModuleType, source: Callable[[ModuleType, str], str] = source_of) -> str:
    """SHA-256 (first 16 hex) of the host's loop: its source without blank lines, comments and indentation."""
    digest = hashlib.sha256()
    for qualname in LOOP_SOURCES:
        text = source(module, qualname)
        lines = [line.strip() for line in text.splitlines()]
        kept = [line for line in lines if line and not line.startswith("#")]
        digest.update("\n".join([qualname, *kept]).encode())
    return digest.hexdigest()[:16]
