"""Which node is next: the host's order of preference, from a heap instead of a scan of all that is pending.

An `ExecutionList`, because nodes and packs may hold it. The host looks through every pending node at every
step; here a node enters the heap when nothing blocks it any more, and moves up when a later link shows that
it leads to an output.
"""

from __future__ import annotations

import heapq
import inspect
from typing import Any

OUTPUT, FEEDS_OUTPUT, NEAR_OUTPUT, OTHER = range(4)
"""The host's order of preference: an output or async node; what an output waits for; what that waits for."""


class Schedule:
    """Mixed into a subclass of the host's `ExecutionList`. Costs O(log n) a node and O(1) a link."""

    api: Any = None
    dynprompt: Any
    pendingNodes: dict[str, Any]  # noqa: N815 (the host's names)
    blockCount: dict[str, int]  # noqa: N815
    blocking: dict[str, dict[str, Any]]
    externalBlocks: int  # noqa: N815
    staged_node_id: str | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._heap: list[tuple[int, int, str]] = []
        self._number: dict[str, int] = {}
        self._count = 0
        self._waits_for: dict[str, list[str]] = {}
        self._adding = 0
        self._feeds_output: set[str] = set()
        self._near_output: set[str] = set()
        self._first: dict[str, bool] = {}
        self._outputs: dict[str, bool] = {}
        self._types: dict[str, Any] = {}
        self._info: dict[tuple[str, str], Any] = {}

    def get_input_info(self, unique_id: str, input_name: str) -> Any:
        """(type, category, options) of an input; a class is asked for its inputs once a prompt."""
        class_type = self.dynprompt.get_node(unique_id)["class_type"]
        found = self._info.get((class_type, input_name))
        if found is None:
            class_def = self.api.nodes.NODE_CLASS_MAPPINGS[class_type]
            if class_type not in self._types:
                self._types[class_type] = class_def.INPUT_TYPES()
            found = self.api.input_info(class_def, input_name, self._types[class_type])
            self._info[class_type, input_name] = found
        return found

    def add_node(self, node_unique_id: str, *args: Any, **kwargs: Any) -> Any:
        """Add a node and what it needs; new nodes are numbered in the order in which the host adds them."""
        self._adding += 1  # the host's function comes back here for each link
        try:
            return super().add_node(node_unique_id, *args, **kwargs)  # type: ignore[misc]
        finally:
            self._adding -= 1
            if not self._adding:
                self._take_new()

    def add_strong_link(self, from_node_id: str, from_socket: Any, to_node_id: str) -> None:
        """Let one node wait for another, unless that is cached."""
        known = to_node_id in self.blocking.get(from_node_id, ())
        super().add_strong_link(from_node_id, from_socket, to_node_id)  # type: ignore[misc]
        if not known and to_node_id in self.blocking.get(from_node_id, ()):
            self._linked(from_node_id, to_node_id)

    def add_external_block(self, node_id: str) -> Any:
        """Let a node wait for something outside the graph; call what is returned to release it."""
        unblock = super().add_external_block(node_id)  # type: ignore[misc]

        def release(*args: Any, **kwargs: Any) -> Any:
            result = unblock(*args, **kwargs)
            self._ready_if_free(node_id)
            return result

        return release

    def pop_node(self, unique_id: str) -> None:
        """A node is done: what waited for it alone is ready."""
        waiting = list(self.blocking[unique_id])
        super().pop_node(unique_id)  # type: ignore[misc]
        self._number.pop(unique_id, None)
        self._waits_for.pop(unique_id, None)
        self._feeds_output.discard(unique_id)
        self._near_output.discard(unique_id)
        for node_id in waiting:
            self._ready_if_free(node_id)

    def unstage_node_execution(self) -> None:
        """The staged node goes back: it has something to wait for, or is asked again."""
        node_id = self.staged_node_id
        super().unstage_node_execution()  # type: ignore[misc]
        if node_id is not None:
            self._ready_if_free(node_id)

    async def stage_node_execution(self) -> Any:
        """(node id, error, exception), as the host's; that one is asked when nothing is ready or awaited."""
        assert self.staged_node_id is None
        if self.is_empty():  # type: ignore[attr-defined]
            return None, None, None
        node_id = self._next()
        while node_id is None and self.externalBlocks > 0:
            await self.unblockedEvent.wait()  # type: ignore[attr-defined]
            self.unblockedEvent.clear()  # type: ignore[attr-defined]
            node_id = self._next()
        if node_id is None:
            return await super().stage_node_execution()  # type: ignore[misc]
        self.staged_node_id = node_id
        return node_id, None, None

    def get_nodes_in_cycle(self) -> list[str]:
        """The pending nodes that wait for each other, in the order in which they were added."""
        waits: dict[str, set[str]] = {node_id: set() for node_id in self.pendingNodes}
        for source, targets in self.blocking.items():
            for target, sockets in targets.items():
                if True in sockets.values():
                    waits[target].add(source)
        free = [node_id for node_id, sources in waits.items() if not sources]
        while free:
            source = free.pop()
            del waits[source]
            for target in self.blocking.get(source, ()):
                if target in waits and source in waits[target]:
                    waits[target].discard(source)
                    if not waits[target]:
                        free.append(target)
        return list(waits)

    def _next(self) -> str | None:
        while self._heap:
            _, number, node_id = heapq.heappop(self._heap)
            if self._number.get(node_id) != number or self.blockCount.get(node_id) != 0:
                continue  # done meanwhile, or has to wait again
            return node_id  # of a node that has moved up, the higher entry comes first
        return None

    def _take_new(self) -> None:
        added = []
        for node_id in reversed(self.pendingNodes):  # the new ones are the last ones
            if node_id in self._number:
                break
            added.append(node_id)
        for node_id in reversed(added):
            self._number[node_id] = self._count
            self._count += 1
            self._ready_if_free(node_id)

    def _linked(self, source: str, target: str) -> None:
        self._waits_for.setdefault(target, []).append(source)
        moved = []
        if self._is_output(target) and source not in self._feeds_output:
            self._feeds_output.add(source)
            moved = [source]
            for node_id in self._waits_for.get(source, ()):
                # One that was done and came back since, evicted, need not lead here again.
                if node_id not in self._near_output and source in self.blocking.get(node_id, ()):
                    self._near_output.add(node_id)
                    moved.append(node_id)
        if target in self._feeds_output and source not in self._near_output:
            self._near_output.add(source)
            moved.append(source)
        for node_id in moved:
            self._ready_if_free(node_id)

    def _ready_if_free(self, node_id: str) -> None:
        number = self._number.get(node_id)
        if number is not None and self.blockCount.get(node_id) == 0 and node_id != self.staged_node_id:
            heapq.heappush(self._heap, (self._rank(node_id), number, node_id))

    def _rank(self, node_id: str) -> int:
        class_type = self.dynprompt.get_node(node_id)["class_type"]
        first = self._first.get(class_type)
        if first is None:
            first = self._first[class_type] = self._is_output(node_id) or self._is_async(node_id)
        if first:
            return OUTPUT
        if node_id in self._feeds_output:
            return FEEDS_OUTPUT
        return NEAR_OUTPUT if node_id in self._near_output else OTHER

    def _is_output(self, node_id: str) -> bool:
        class_type = self.dynprompt.get_node(node_id)["class_type"]
        found = self._outputs.get(class_type)
        if found is None:
            class_def = self.api.nodes.NODE_CLASS_MAPPINGS[class_type]
            found = getattr(class_def, "OUTPUT_NODE", False) == True  # noqa: E712 (as the host compares)
            self._outputs[class_type] = found
        return found

    def _is_async(self, node_id: str) -> bool:
        class_def = self.api.nodes.NODE_CLASS_MAPPINGS[self.dynprompt.get_node(node_id)["class_type"]]
        return inspect.iscoroutinefunction(getattr(class_def, class_def.FUNCTION))
