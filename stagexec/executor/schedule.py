"""Which node is next: the host's order of preference, from a heap instead of a scan of all that is pending.

An `ExecutionList`, because nodes and packs may hold it. The host looks through every pending node at every
step; here a node enters the heap when nothing blocks it any more, and moves up when a later link shows that
it leads to an output.

The host's own methods add, link, block and remove nodes: packs see who calls INPUT_TYPES, and a method of
ours round one of theirs would be one frame more. What they do is read from the dicts they write into, and
so is what a pack writes there by itself.
"""

from __future__ import annotations

import functools
import heapq
import inspect
from typing import Any

from stagexec.executor import asked
from stagexec.record import clock

OUTPUT, FEEDS_OUTPUT, NEAR_OUTPUT, OTHER = range(4)
"""The host's order of preference: an output or async node; what an output waits for; what that waits for."""


_put, _take = dict.__setitem__, dict.__delitem__
"""Found once: these are called for every node and link."""


class Notes(list[Any]):
    """What was put into a dict since the last look."""

    by_hand = False
    """Was the dict changed in a way that the host never does? From then on the host's scan decides."""


class Noting(dict[str, Any]):
    """A dict that tells what is put into it, in `noted`. A copy is a mere dict."""

    __slots__ = ("noted",)
    noted: Notes

    def __init__(self, noted: Notes) -> None:
        super().__init__()
        self.noted = noted

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return dict, (dict(self),)


def _by_hand(name: str) -> Any:
    method = getattr(dict, name)

    @functools.wraps(method)
    def change(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.noted.by_hand = True
        return method(self, *args, **kwargs)

    return change


for _name in ("__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(Noting, _name, _by_hand(_name))


class Pending(Noting):
    """The host's `pendingNodes`: notes each node that is added."""

    __slots__ = ()

    def __setitem__(self, node_id: str, value: Any) -> None:
        if node_id not in self:
            self.noted.append(node_id)
        _put(self, node_id, value)


class Counts(Noting):
    """The host's `blockCount`: notes each node that waits for nothing."""

    __slots__ = ()

    def __setitem__(self, node_id: str, count: Any) -> None:
        _put(self, node_id, count)
        if count == 0:
            self.noted.append(node_id)


class Links(Noting):
    """The host's `blocking`: by node, those that wait for it. Notes each node that goes, too."""

    __slots__ = ("gone",)
    gone: Notes

    def __delitem__(self, source: str) -> None:
        _take(self, source)
        self.gone.append(source)

    def __setitem__(self, source: str, targets: Any) -> None:
        waiting = Waiting(self.noted)
        waiting.source = source
        _put(self, source, waiting)
        for target in targets:
            waiting[target] = targets[target]


class Waiting(Noting):
    """Those that wait for one node: notes each new one with it."""

    __slots__ = ("source",)
    source: str

    def __setitem__(self, target: str, sockets: Any) -> None:
        if target not in self:
            self.noted.append((self.source, target))
        _put(self, target, sockets)

    def __delitem__(self, target: str) -> None:
        self.noted.by_hand = True
        super().__delitem__(target)


class Asked:
    """Stands for a node class while the host reads its inputs: the class is asked once.

    The class's own function is called from C, so that it sees the host's frame as its caller.
    """

    def __init__(self, class_def: Any) -> None:
        self._class_def = class_def
        self.INPUT_TYPES = functools.cache(class_def.INPUT_TYPES)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._class_def, name)


def _own(host: type, name: str) -> Any:
    """The host's own method; None where a pack came first and put its own there."""
    method = getattr(host, name)
    own = getattr(method, "__globals__", {}).get("__name__") == host.__module__
    return method if own else None


REPLACEABLE = ("get_ready_nodes", "stage_node_execution", "ux_friendly_pick_node")
"""What packs replace, on the host's class or ours, to choose the next node by themselves."""


class Schedule:
    """Mixed into a subclass of the host's `ExecutionList`. Costs O(log n) a node and O(1) a link."""

    api: Any = None
    dynprompt: Any
    pendingNodes: dict[str, Any]  # noqa: N815 (the host's names)
    blockCount: dict[str, int]  # noqa: N815
    blocking: dict[str, dict[str, Any]]
    externalBlocks: int  # noqa: N815
    staged_node_id: str | None
    _host: Any
    _hosts: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "_hosts"):
            host = cls.__mro__[cls.__mro__.index(Schedule) + 1]
            cls._host = host
            cls._hosts = {name: _own(host, name) for name in ("get_input_info", *REPLACEABLE)}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._heap: list[tuple[int, int, str]] = []
        self._number: dict[str, int] = {}
        self._count = 0
        self._waits_for: dict[str, list[str]] = {}
        self._feeds_output: set[str] = set()
        self._near_output: set[str] = set()
        self._first: dict[str, bool] = {}
        self._outputs: dict[str, bool] = {}
        self._types: dict[str, Any] = {}
        self._info: dict[tuple[str, str], Any] = {}
        self._handed: str | None = None
        self._added, self._freed, self._linked, self._gone = Notes(), Notes(), Notes(), Notes()
        self.pendingNodes = Pending(self._added)
        self.blockCount = Counts(self._freed)
        self.blocking = links = Links(self._linked)
        links.gone = self._gone

    def get_input_info(self, unique_id: str, input_name: str) -> Any:
        """(type, category, options) of an input; a class is asked for its inputs once a prompt.

        What a class answers may hang on who asks: packs look for the host's function of this name as their
        caller, and for this one as its. Where the answer lacks the name, the class is asked again for each
        link, as the host asks.
        """
        if self._host.get_input_info is not self._hosts["get_input_info"]:
            return super().get_input_info(unique_id, input_name)  # type: ignore[misc]  # a pack's own
        class_type = self.dynprompt.get_node(unique_id)["class_type"]
        found = self._info.get((class_type, input_name))
        if found is not None:
            return found
        class_def = self.api.nodes.NODE_CLASS_MAPPINGS[class_type]
        get_input_info = self.api.graph.get_input_info
        known = self._types.get(class_type)
        if known:
            found = get_input_info(class_def, input_name, known)
            if found[1] is None:
                return get_input_info(class_def, input_name)
        else:
            once, begun_ns = Asked(class_def), clock.now_ns()
            found = get_input_info(once, input_name)
            self._types[class_type] = once.INPUT_TYPES()  # what it has just answered
            took_ns = clock.now_ns() - begun_ns
            if took_ns >= asked.LEAST_NS:
                asked.tell_in_run("INPUT_TYPES", unique_id, class_type, took_ns)
        if found[1] is not None:
            self._info[class_type, input_name] = found
        return found

    async def stage_node_execution(self) -> Any:
        """(node id, error, exception), as the host's; that one is asked when nothing is ready or awaited."""
        assert self.staged_node_id is None
        if self.is_empty():  # type: ignore[attr-defined]
            return None, None, None
        if not self._decides() or not self._takes_noted():
            return await super().stage_node_execution()  # type: ignore[misc]
        node_id = self._next()
        while node_id is None and self.externalBlocks > 0:
            await self.unblockedEvent.wait()  # type: ignore[attr-defined]
            self.unblockedEvent.clear()  # type: ignore[attr-defined]
            if not self._decides() or not self._takes_noted():
                return await super().stage_node_execution()  # type: ignore[misc]
            node_id = self._next()
        if node_id is None:
            return await super().stage_node_execution()  # type: ignore[misc]
        self.staged_node_id = self._handed = node_id
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

    def _decides(self) -> bool:
        """Is the next node ours to choose? Not where a pack has put its own choice, or dicts of its own."""
        hosts, host, own = self._hosts, self._host, self.__dict__
        kind: Any = type(self)
        return (
            host.stage_node_execution is hosts["stage_node_execution"]
            and kind.get_ready_nodes is hosts["get_ready_nodes"]
            and kind.ux_friendly_pick_node is hosts["ux_friendly_pick_node"]
            and "get_ready_nodes" not in own
            and "ux_friendly_pick_node" not in own
            and type(self.pendingNodes) is Pending
            and type(self.blockCount) is Counts
            and type(self.blocking) is Links
            and not (self._added.by_hand or self._freed.by_hand or self._linked.by_hand)
        )

    def _next(self) -> str | None:
        while self._heap:
            _, number, node_id = heapq.heappop(self._heap)
            if self._number.get(node_id) != number or self.blockCount.get(node_id) != 0:
                continue  # done meanwhile, or has to wait again
            if node_id in self.pendingNodes:
                return node_id  # of a node that has moved up, the higher entry comes first
        return None

    def _takes_noted(self) -> bool:
        """Take in what was noted. False where a node cannot be ranked: the host says so in its own time."""
        if self._handed in self.pendingNodes:  # it came back: has to wait, or is asked again
            self._freed.append(self._handed)
        self._handed = None
        try:
            self._take_noted()
        except Exception:  # noqa: BLE001 (an unknown class or node, a pack's own types)
            self._added.by_hand = True
        return not self._added.by_hand

    def _take_noted(self) -> None:
        pending, counts, blocking, number = self.pendingNodes, self.blockCount, self.blocking, self._number
        for node_id in self._added:
            if node_id in number:  # one that was done and came back since is a new one
                self._waits_for.pop(node_id, None)
                self._feeds_output.discard(node_id)
                self._near_output.discard(node_id)
            number[node_id] = self._count
            self._count += 1
        for source, target in self._linked:
            if target in blocking.get(source, ()):
                self._take_link(source, target)
        for node_id in self._gone:
            for source in self._waits_for.get(node_id, ()):
                if node_id in blocking.get(source, ()) and node_id not in blocking:
                    self._added.by_hand = True  # what it waits for names one that is gone: the host stumbles
        for node_id in self._freed:
            if counts.get(node_id) == 0 and node_id in pending and node_id in number:
                heapq.heappush(self._heap, (self._rank(node_id), number[node_id], node_id))
        for noted in (self._added, self._linked, self._gone, self._freed):
            if noted:
                noted.clear()

    def _take_link(self, source: str, target: str) -> None:
        if target not in self.blocking:
            self._added.by_hand = True
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
        self._freed += moved  # those that are ready enter the heap a second time, higher

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
