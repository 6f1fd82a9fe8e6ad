"""What the host wants done once per prompt and once per node, each behind the fact that says so.

The host's loop gained such duties at least ten times; a fact is a name in host/facts.py, found by
inspection. A duty whose fact is absent is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from stagexec.executor.steps import Step


class Duties:
    """The duties of one executor on one host. `api` is the host as host/api.py shows it."""

    def __init__(self, api: Any, executor: Any) -> None:
        self.api = api
        self.facts = api.facts
        self.executor = executor
        self.headroom = 0
        self.inactive_headroom = 0
        self._old_entries = True

    def before_prompt(self, prompt_id: str, extra_data: dict[str, Any], cancelled: bool) -> Iterator[Any]:
        """Everything the host does between taking a prompt and looking at its graph, in its order: steps."""
        if self.facts["preview_override"]:
            self.api.execution.set_preview_method(extra_data.get("preview_method"))
        if not cancelled:  # a cancel that came since the worker took this prompt counts: keep the flag
            self.api.nodes.interrupt_processing(False)
        if self.facts["prompt_model_tracker"]:
            self.executor.prompt_model_tracker.start()
        server = self.executor.server
        server.client_id = extra_data.get("client_id")
        self.executor.status_messages = []
        message = {"prompt_id": prompt_id}
        yield Step(self.executor.add_message, "execution_start", message, broadcast=False)
        if self.facts["cache_providers"]:
            yield Step(self.executor._notify_prompt_lifecycle, "start", prompt_id)
        self._hold_ram()

    def after_prompt(self, prompt_id: str) -> Iterator[Any]:
        """What must happen however the prompt ended: steps."""
        execution, executor = self.api.execution, self.executor
        if self.facts["ram_eviction_log"] and self._ram_pressure():
            cache = executor.caches.outputs
            execution.detail(
                "RAM cache evictions: prompt=%s active=%s full=%s",
                prompt_id,
                cache.active_evictions,
                cache.full_evictions,
            )
        if self.facts["ram_release_callback"]:
            self.api.memory_management.set_ram_cache_release_state(None, 0)
        if self.facts["prompt_model_tracker"]:
            executor.prompt_model_tracker.end()
        if self.facts["cache_providers"]:
            yield Step(executor._notify_prompt_lifecycle, "end", prompt_id)

    def has_node_cleanup(self) -> bool:
        """Is there anything to do after a node's function?"""
        return bool(self.facts["dynamic_vram"] and self.api.memory_management.aimdo_enabled)

    def after_node_function(self) -> None:
        """Dynamic VRAM: give back cast buffers and prefetch queues after each node's function."""
        aimdo = self.api.aimdo
        if self.api.debug_logging():
            aimdo.control.analyze()
        self.api.model_management.reset_cast_buffers()
        if self.facts["prefetch_queues"]:
            self.api.model_prefetch.cleanup_prefetch_queues()
        aimdo.model_vbar.vbars_reset_watermark_limits()

    def after_node(self) -> None:
        """RAM pressure: let the cache give memory back between two nodes."""
        facts, executor = self.facts, self.executor
        if facts["ram_poll"]:
            executor.caches.outputs.poll(ram_headroom=executor.cache_args["ram"])
        elif not facts["ram_release_callback"] or not self._ram_pressure():
            return
        elif facts["ram_extra_release"]:
            self.api.model_management.free_memory(
                0, None, pins_required=self.headroom, ram_required=self.headroom
            )
            self.api.memory_management.extra_ram_release(self.headroom)
        else:
            self._release_ram()

    def link_callback(self) -> tuple[Any, ...]:
        """Further positional arguments of ExecutionList."""
        return (self.executor.prompt_model_tracker.add,) if self.facts["output_link_callback"] else ()

    def _ram_pressure(self) -> bool:
        kind = getattr(self.api.execution.CacheType, "RAM_PRESSURE", None)
        return kind is not None and self.executor.cache_type == kind

    def _hold_ram(self) -> None:
        if not self.facts["ram_release_callback"]:
            return
        args = self.executor.cache_args
        self.headroom = int(args["ram"] * 1024**3)
        if self.facts["ram_inactive"]:
            self.inactive_headroom = int(args["ram_inactive"] * 1024**3)
        release = self.executor.caches.outputs.ram_release if self._ram_pressure() else None
        self.api.memory_management.set_ram_cache_release_state(release, self.headroom)

    def _release_ram(self) -> None:
        """Old workflows' entries first; then, short of memory, large live ones, pinned memory, the rest."""
        release = self.executor.caches.outputs.ram_release
        management = self.api.model_management
        if self._old_entries:
            release(self.inactive_headroom)
        available = self.api.available_ram()
        if available < self.inactive_headroom:
            # All of them are gone: what this prompt stores is in use, so no later look can find any. The
            # host looks through its whole cache after every node, which is quadratic.
            self._old_entries = False
        short = self.headroom - available
        if short > 0:
            short -= release(
                self.headroom,
                free_active=True,
                min_entry_size=self.api.execution.RAM_CACHE_LARGE_INTERMEDIATE,
            )
        if not management.should_free_pins_for_ram_pressure(short):
            return
        freed = management.free_pins(short + 512 * 1024**2)
        if freed < short:
            if freed > 64 * 1024**2:
                time.sleep(0.05)  # freed pages show up late in the system's own figure
            release(self.headroom, free_active=True)
