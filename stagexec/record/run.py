"""What is kept of one run while it lives: its ledger, and what waits to be written."""

from __future__ import annotations

import contextvars
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from stagexec.record import words
from stagexec.record.guard import guarded
from stagexec.record.ledger import Ledger
from stagexec.record.tensors import TensorRefs
from stagexec.record.trail import Asked, Trail

MAX_SEAM_NOTES = 100_000
"""A run that saves more files than this keeps the first ones' names only."""


VISIT: contextvars.ContextVar[tuple[Run, int, str, str | None] | None] = contextvars.ContextVar(
    "stagexec_visit", default=None
)
"""(run, visit number, stage, part) of the visit whose node function runs; its tasks inherit it."""


UNDESCRIBED: dict[str, Any] = {
    "number": None,
    "validate_ns": None,
    "selected_outputs": [],
    "nodes": [],
    "classes": [],
    "links": [],
    "output_nodes": [],
    "seeds": [],
    "prompt_hash": None,
    "number_of_nodes": None,
    "until": None,
    "left_out": [],
}
"""`run_accepted` of a prompt that no queue of ours saw."""


class Run:
    """One accepted prompt. The thread that executes it calls everything but `pending_*` readers."""

    ended_ns: int | None = None
    held: Any = None
    """Its clock once it has been executed; see held.py."""
    held_ns: int | None = None
    on_loop: Any = None
    """What its nodes began on the event loop; see executor/leftover.py."""

    def __init__(self, prompt_id: str, accepted_ns: int, clock: Callable[[], int]) -> None:
        self.run_id = str(uuid.uuid4())
        self.prompt_id = prompt_id
        self.condition_id: str | None = None
        self.clock = clock
        self.accepted_ns = accepted_ns
        self.ledger = Ledger("queue_wait", accepted_ns, clock)
        self.use_ledger(self.ledger)
        self.thread: int | None = None
        self.worker: Any = None
        self.alone = True
        self.task: Any = None
        self.item: Any = None
        """The host's queue item, while it waits there."""
        self.queued = True
        """False while the queue is being given the item."""
        self.started = self.executed = False
        self.cancel_ns: int | None = None
        self.stopped_ns: int | None = None
        self.closing = threading.Lock()
        self.filed = False
        self.error: dict[str, Any] | None = None
        self.blocked: list[dict[str, Any]] = []
        self.visits = 0
        self.visit_no_of: dict[str, int] = {}
        self.node_of: list[str] = []
        self.node: tuple[str, str] | None = None
        self.pending_visits: deque[tuple[Any, ...]] = deque()
        self.pending_spans: deque[tuple[Any, ...]] = deque()
        self.watched = Watched()
        self.segments_written = 0
        self.outputs: list[str] = []
        self.until: str | None = None
        self.class_of: dict[str, str] = {}
        self.graph: tuple[Any, Any] = ((), ())
        self.ready_ns: dict[str, int] = {}
        self.executed_nodes: set[str] = set()
        self.cached: set[str] = set()
        self.save_folders: list[tuple[str, str, int]] = []
        self.promised: list[tuple[str, str | None, int]] = []
        self.tensors = TensorRefs()
        self.trail = Trail()
        self.escaped_from: tuple[int, str, int, str] | None = None
        self._failing: tuple[int, type, str] | None = None
        self.timing = "baseline"
        self.instruments: Any = None
        self.attention: dict[str, int] = {}
        self.compiled_before: dict[str, int] = {}

    def use_ledger(self, ledger: Ledger) -> None:
        """Go on in `ledger`, which has taken over what the old one holds."""
        self.ledger = ledger
        self.enter, self.leave = ledger.enter, ledger.leave
        self.inside = ledger.inside
        self.inside_any, self.enter_again = ledger.inside_any, ledger.enter_again

    @property
    def visit(self) -> int | None:
        """Number of the visit in execution, or None between visits."""
        return self.ledger.visit

    @property
    def stage(self) -> str | None:
        """The stage that is open now."""
        open_ = self.ledger.open
        return open_[0] if open_ is not None else None

    @property
    def part(self) -> str | None:
        """The part that is open now."""
        open_ = self.ledger.open
        return open_[1] if open_ is not None else None

    def next_visit(self, node_id: str, node_class: str) -> int:
        """Begin a visit: what is entered from now on belongs to it. Gives its number, from 1."""
        self.visits += 1
        self.node = (node_id, node_class)
        self.visit_no_of[node_id] = self.visits
        self.node_of.append(node_id)
        self.ledger.visit = self.visits
        return self.visits

    def end_visit(self) -> None:
        """No visit is in execution any more."""
        if self.watched.seen is not None:
            self.watched.file()
        self.ledger.visit = None
        self.node = None

    @guarded
    def span(
        self,
        lane: str,
        name: str,
        start_ns: int,
        end_ns: int,
        stage: str | None = None,
        visit: int | None = None,
        detail: dict[str, Any] | None = None,
    ) -> None:
        """Keep an interval of another lane. Spans may overlap; they are never added to the ledger."""
        self.pending_spans.append((words.lane(lane), stage, name, visit, start_ns, end_ns, detail))

    @guarded
    def mark(self, name: str, detail: dict[str, Any], **fields: Any) -> None:
        """Keep a fact of an instant, such as `model_load` or `blocked`."""
        from stagexec.record import live

        live.journal_event(
            self, "mark", source=fields.pop("source", "seam"), name=name, detail=detail, **fields
        )

    def describe_graph(self, fields: Mapping[str, Any]) -> None:
        """Keep of the submitted graph what `run_accepted` tells: see there."""
        nodes = fields.get("nodes", ())
        self.graph = (nodes, fields.get("links", ()))
        self.class_of = dict(zip(nodes, fields.get("classes", ()), strict=False))

    def ancestors(self, node_id: str) -> set[str]:
        """What a node of the submitted graph takes inputs from, and they in turn; without itself."""
        nodes, links = self.graph
        place = {node: at for at, node in enumerate(nodes)}
        found: set[str] = set()
        waiting = [node_id]
        while waiting:
            at = place.get(waiting.pop())
            for position in links[at] if at is not None and at < len(links) else ():
                if nodes[position] not in found:
                    found.add(nodes[position])
                    waiting.append(nodes[position])
        return found

    def node_here(self) -> str | None:
        """The node that the calling context works for: that of its visit, else the one in execution."""
        at = VISIT.get()
        if at is not None and at[0] is self:
            return self.node_of[at[1] - 1]
        return self.node[0] if self.node is not None else None

    @guarded
    def save_folder(self, folder: str, prefix: str, counter: Any = None) -> None:
        """A saver asked the host where to write: files that appear there belong to this run."""
        if len(self.save_folders) < MAX_SEAM_NOTES:
            now = self.clock()
            self.save_folders.append((str(folder), str(prefix), now))
            number = counter if isinstance(counter, int) else None
            self.trail.asks(Asked(self.node_here(), str(folder), str(prefix), number, now))

    @guarded
    def writes(self, path: Any) -> None:
        """The node in execution is about to write a file."""
        self.trail.writes(self.run_id, self.node_here(), path, self.clock())

    @guarded
    def promise(self, path: str, node_id: str | None) -> None:
        """A node names a file it delivers (stagexec.artifact)."""
        if len(self.promised) < MAX_SEAM_NOTES:
            self.promised.append((path, node_id, self.clock()))

    def failed_in(self, error: BaseException | None, stage: str) -> None:
        """Remember the innermost stage that an exception came out of; the first to say so wins.

        Only its identity is kept: its traceback would hold the tensors of every frame alive while the host
        frees memory and tries again.
        """
        if error is not None and (self._failing is None or self._failing[:2] != (id(error), type(error))):
            self._failing = (id(error), type(error), stage)

    def failing_stage(self, error: BaseException) -> str | None:
        """The stage `failed_in` was told for this very exception."""
        found = self._failing
        return found[2] if found is not None and found[:2] == (id(error), type(error)) else None

    def on_main_lane(self) -> bool:
        """Is the caller on the thread that executes this run?"""
        return threading.get_ident() == self.thread


KEPT_NS = 200_000_000
"""Of a visit of which less than this was unnamed, what ran is not filed."""

MOST_NAMES = 8
"""Names that are filed of one visit; all others together have none."""


class Watched:
    """What the thread beside the runs has seen of one (watching.py): columns that wait to be written."""

    def __init__(self) -> None:
        self.seen: tuple[int, dict[str, list[int]]] | None = None
        self.samples: deque[tuple[int, str | None, int, int]] = deque()
        self.cpu: deque[tuple[int, int, int | None, int | None]] = deque()
        self.cpu_at_ns: int | None = None

    def saw(self, visit: int, name: str, ns: int) -> None:
        """A visit ran `name`, which stands for `ns`. Called by the thread beside."""
        seen = self.seen
        if seen is None or seen[0] != visit:
            if seen is not None:
                self.file()
            seen = self.seen = (visit, {})
        one = seen[1].setdefault(name, [0, 0])
        one[0] += 1
        one[1] += ns

    @guarded
    def file(self) -> None:
        """The visit is over: what was seen of it is written, if it is worth a line."""
        seen, self.seen = self.seen, None
        if seen is None:
            return
        visit, names = seen[0], sorted(seen[1].items(), key=lambda item: -item[1][1])
        if sum(ns for _, (_, ns) in names) < KEPT_NS:
            return
        rows: list[tuple[int, str | None, int, int]]
        rows = [(visit, name, count, ns) for name, (count, ns) in names[:MOST_NAMES]]
        rest = [told for _, told in names[MOST_NAMES:]]
        if rest:
            rows.append((visit, None, sum(one[0] for one in rest), sum(one[1] for one in rest)))
        self.samples.extend(rows)


def take_segments(run: Run) -> tuple[list[Any], Any]:
    """All closed segments of a run and the open one, as one consistent reading from another thread."""
    pending = run.ledger.pending
    taken: list[Any] = []
    while True:
        taken += [pending.popleft() for _ in range(len(pending))]
        open_ = run.ledger.open
        if not pending:
            break
    if taken and open_ is not None and taken[-1][0] is open_:
        # Caught between the two steps of a switch: the segment counts as open still, and is taken next time.
        pending.appendleft(taken.pop())
    return taken, open_
