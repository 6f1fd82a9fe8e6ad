"""What a visit shares with the loop that asked for it: the prompt in execution, the arguments by name, the
visit's record, and how both make their calls."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

from stagexec.executor import failure
from stagexec.executor.duties import Duties
from stagexec.executor.growth import is_output
from stagexec.executor.steps import Step
from stagexec.record import live
from stagexec.record.guard import guarded, note
from stagexec.record.ledger import NO_DEPTH
from stagexec.record.run import Run

NAMES = (
    "server",
    "dynprompt",
    "caches",
    "current_item",
    "extra_data",
    "executed",
    "prompt_id",
    "execution_list",
    "pending_subgraph_results",
    "pending_async_nodes",
    "ui_outputs",
)
"""The arguments of the host's `execute`, in the host's order."""


class Lane:
    """One prompt in execution: whose it is, and the run that it fills.

    `shielded`: the host's worker waits for it and must outlive it, so an error that the host lets through
    ends the prompt only. A pack that executes prompts by itself gets every error, as from the host's own.
    """

    __slots__ = (
        "_token",
        "direct",
        "duties",
        "executor",
        "own_loop",
        "plain_caches",
        "run",
        "shielded",
        "taken",
        "ui_outputs",
    )

    def __init__(self, executor: Any, run: Run | None, *, shielded: bool, direct: bool) -> None:
        self.executor = executor
        self.duties = Duties(executor.api, executor)
        self.run = run
        self.shielded = shielded
        self.direct = direct
        self.own_loop = False
        """Is the event loop this prompt's alone, and ends with it?"""
        self.taken = False
        self.plain_caches = False
        self.ui_outputs: dict[str, Any] = {}
        self._token: Any = None

    def enter(self) -> Lane:
        """Visits asked for in this context belong to it from now on."""
        self.taken = True
        self._token = _lane.set(self)
        return self

    def leave(self) -> None:
        """The prompt is over."""
        _lane.reset(self._token)


_lane: contextvars.ContextVar[Lane | None] = contextvars.ContextVar("stagexec_lane", default=None)
_handed: contextvars.ContextVar[Lane | None] = contextvars.ContextVar("stagexec_handed", default=None)
_kept: set[Any] = set()


def current() -> Lane | None:
    """The prompt that the calling context executes in a loop of ours. Packs run some beside each other."""
    return _lane.get()


@contextlib.contextmanager
def handed(lane: Lane) -> Iterator[None]:
    """What `execute` has begun, for the `execute_async` that it calls."""
    token = _handed.set(lane)
    try:
        yield
    finally:
        _handed.reset(token)


def claim(executor: Any, start: Callable[[], Run | None]) -> Lane:
    """The lane of an `execute_async` that begins: the one handed down, else one of its own.

    A pack may call it without `execute`, on a loop of its own, from a node, or several at a time. Of those on
    one thread only the first fills a run: the others are part of what that one does.
    """
    given = _handed.get()
    if given is not None and given.executor is executor and not given.taken:
        return given.enter()
    run = live.current_for_thread()
    if run is None:
        return Lane(executor, start(), shielded=False, direct=True).enter()
    return Lane(executor, run if run.task is None else None, shielded=False, direct=False).enter()


def keep(task: asyncio.Task[Any]) -> None:
    """The event loop holds tasks weakly: hold this one until it is done."""
    _kept.add(task)
    task.add_done_callback(_kept.discard)


class Given:
    """The arguments of one visit, by the host's names."""

    __slots__ = NAMES

    server: Any
    dynprompt: Any
    caches: Any
    current_item: str
    extra_data: dict[str, Any]
    executed: set[str]
    prompt_id: str
    execution_list: Any
    pending_subgraph_results: dict[str, Any]
    pending_async_nodes: dict[str, Any]
    ui_outputs: dict[str, Any]

    def __init__(self, *args: Any) -> None:
        (
            self.server,
            self.dynprompt,
            self.caches,
            self.current_item,
            self.extra_data,
            self.executed,
            self.prompt_id,
            self.execution_list,
            self.pending_subgraph_results,
            self.pending_async_nodes,
            self.ui_outputs,
        ) = args


def send_cached_ui(api: Any, given: Given, node_id: str, display: str, cached: Any) -> Iterator[Any]:
    """Announce a cached node, the way this host does it: steps."""
    if api.facts["send_cached_ui"]:
        announce = api.execution._send_cached_ui
        yield Step(announce, given.server, node_id, display, cached, given.prompt_id, given.ui_outputs)
        return
    if given.server.client_id is None:  # hosts without that function keep history to connected clients
        return
    shown = (cached.ui or {}).get("output", None)
    message = {"node": node_id, "display_node": display, "output": shown, "prompt_id": given.prompt_id}
    yield Step(given.server.send_sync, "executed", message, given.server.client_id)
    if cached.ui is not None:
        given.ui_outputs[node_id] = cached.ui


class VisitRecord:
    """What the ledger keeps of one visit. Without a run every method does nothing."""

    number = 0
    stage = "node_other"
    part: str | None = None
    origin = "none"
    hint: str | None = None
    kind = "failed"
    start_ns = 0
    calls = 0
    mapped = False
    list_index: int | None = None
    _node_class = ""
    _parent: str | None = None
    _is_output = False
    _ui = False
    _blocks: tuple[dict[str, Any], ...] = ()
    _depth = 0
    # what the host's loop fills in
    executed_before: Any = ()
    outputs: Any = None
    is_called = False
    """Does the node's function run now?"""
    growth: Any = None

    def __init__(self, run: Run | None, node_id: str) -> None:
        self.run = run
        self.node_id = node_id

    @guarded
    def begin(self, api: Any, node_class: str, class_def: Any, dynprompt: Any) -> None:
        """The visit begins: its number, and the stage that its class and its place in the graph stand for."""
        run = self.run
        if run is None:
            return
        self._node_class = node_class
        self._parent = dynprompt.get_parent_node_id(self.node_id)
        self.stage, self.part, self.origin, self.hint = api.node_stages.of_visit(
            node_class, class_def, dynprompt, self.node_id, api.nodes.NODE_CLASS_MAPPINGS
        )
        self._is_output = is_output(class_def)
        run.trail.began(self.node_id, self._is_output)
        self.number = run.next_visit(self.node_id, node_class)
        self._depth = run.ledger.depth()
        run.ledger.switch("executor_overhead")
        self.start_ns = run.clock()

    def now(self) -> int:
        """The run's clock, for `part_ended`; 0 without a run."""
        return self.run.clock() if self.run is not None else 0

    def part_ended(self, part: str, since_ns: int) -> int:
        """A part of the loop's own work is done that began at `since_ns`; gives when that was."""
        return self.run.ledger.carve(part, since_ns) if self.run is not None else 0

    def enter(self) -> int:
        """The node's own code is about to run; gives what `leave` wants."""
        run = self.run
        if run is None or not self.number:
            return NO_DEPTH
        depth = run.enter(self.stage, self.part)
        live.show_open(run)
        return depth

    def leave(self, depth: int) -> None:
        """It has run."""
        if self.run is not None:
            self.run.leave(depth)

    @contextlib.contextmanager
    def node_stage(self) -> Iterator[None]:
        """Meanwhile the node's own code runs. For what does not happen at every visit."""
        depth = self.enter()
        try:
            yield
        finally:
            self.leave(depth)

    @guarded
    def take_inputs(self, api: Any, inputs: dict[str, Any] | None) -> None:
        """Keep the tensors that go into a saver, to look for non-finite values after the run."""
        run = self.run
        if run is None or inputs is None:
            return
        for values in inputs.values():
            if isinstance(values, list) and len(values) > 1:
                self.mapped = True
                break
        run.tensors.keep_taken(self.node_id, (v for values in inputs.values() for v in values))
        if self._is_output:
            run.tensors.keep_saved(self.node_id, (v for values in inputs.values() for v in values))

    @guarded
    def call(self, index: int) -> None:
        """The node's function is about to be called for item `index` of its input lists."""
        self.calls += 1
        self.list_index = index

    @guarded
    def blocked(self, message: str | None) -> None:
        """A blocker kept the node's function from being called."""
        if self.run is None:
            return
        text = message if message is None or live.record_text else "(text not recorded)"
        row = {"visit": self.number, "node_id": self.node_id, "node_class": self._node_class, "message": text}
        self._blocks = (*self._blocks, row)
        self.run.blocked.append(row)
        self.run.mark("blocked", row, source="loop", visit=self.number, node_id=self.node_id)

    def was_blocked(self) -> bool:
        """Did blockers keep every call from happening?"""
        return bool(self._blocks) and self.calls == 0

    @guarded
    def announced(self, has_ui: bool) -> None:
        """The node's own output went to the client and to history."""
        self._ui = has_ui
        if self.run is not None:
            self.run.ready_ns[self.node_id] = self.run.clock()

    @guarded
    def made(self, api: Any, outputs: Any) -> None:
        """Remember weakly which tensors came out."""
        run = self.run
        if run is None:
            return
        run.executed_nodes.add(self.node_id)
        run.trail.made(run.run_id, self.node_id, outputs, self._blocks)
        if outputs:
            run.tensors.keep_made(run.run_id, self.node_id, self._node_class, outputs)

    @guarded
    def served(self, outputs: Any) -> None:
        """The node was served from the cache. What blocked it when its entry was made blocks it still."""
        run = self.run
        kept = run.trail.served(self.node_id, outputs) if run is not None else None
        if run is None or kept is None or not kept.blocked:
            return
        for row in kept.blocked:
            run.blocked.append({**row, "visit": self.number, "node_id": self.node_id, "cached": True})

    @guarded
    def failed(self, api: Any, error: BaseException) -> None:
        """The visit ended with an exception."""
        if self.run is not None:
            failure.failed(
                api,
                self.run,
                error,
                stage=self.stage,
                node_id=self.node_id,
                node_class=self._node_class,
                visit=self.number,
                list_index=self.list_index if self.mapped else None,
            )

    def end(self) -> None:
        """The visit is over."""
        run = self.run
        if run is None or not self.number:
            return
        try:
            run.ledger.level(self._depth)
            end = run.clock()
            run.stopped_ns = end
            run.trail.ended(self.node_id, self.start_ns, end)
            run.end_visit()
            run.ledger.switch("executor_overhead")
            row = (
                self.number,
                self.node_id,
                self._node_class,
                self.kind,
                self.list_index if self.mapped else None,
                self.calls,
                self._parent,
                self.start_ns,
                end,
                self.stage,
                self.origin,
                self._ui,
                self.hint,
            )
            run.pending_visits.append(row)
        except Exception as error:  # noqa: BLE001 (guarded in line: it has to end the visit first)
            note("VisitRecord.end", error)
