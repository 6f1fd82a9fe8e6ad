"""What is kept of one run while it lives: its ledger, and what waits to be written."""

from __future__ import annotations

import contextvars
import sys
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stagexec.record import words
from stagexec.record.guard import guarded
from stagexec.record.ledger import Ledger

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
        self.enter = self.ledger.enter
        self.leave = self.ledger.leave
        self.inside = self.ledger.inside
        self.thread: int | None = None
        self.worker: Any = None
        self.alone = True
        self.task: Any = None
        self.item: Any = None
        """The host's queue item, while it waits there."""
        self.queued = True
        """False while the queue is being given the item."""
        self.started = False
        self.executed = False
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
        self.segments_written = 0
        self.outputs: list[str] = []
        self.until: str | None = None
        self.class_of: dict[str, str] = {}
        self.ready_ns: dict[str, int] = {}
        self.executed_nodes: set[str] = set()
        self.cached: set[str] = set()
        self.save_folders: list[tuple[str, str, int]] = []
        self.promised: list[tuple[str, str | None, int]] = []
        self.tensors = TensorRefs()
        self.escaped_from: tuple[int, str, int, str] | None = None
        self._failing: tuple[int, type, str] | None = None
        self.timing = "baseline"
        self.instruments: Any = None
        self.attention: dict[str, int] = {}
        self.compiled_before: dict[str, int] = {}

    def use_ledger(self, ledger: Ledger) -> None:
        """Go on in `ledger`, which has taken over what the old one holds."""
        self.ledger = ledger
        self.enter, self.leave, self.inside = ledger.enter, ledger.leave, ledger.inside

    @property
    def visit(self) -> int | None:
        """Number of the visit in execution, or None between visits."""
        return self.ledger.visit

    @property
    def stage(self) -> str | None:
        """The stage that is open now."""
        open_ = self.ledger.open
        return open_[0] if open_ is not None else None

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

    @guarded
    def save_folder(self, folder: str, prefix: str) -> None:
        """A saver asked the host where to write: files that appear there belong to this run."""
        if len(self.save_folders) < MAX_SEAM_NOTES:
            self.save_folders.append((str(folder), str(prefix), self.clock()))

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


class TensorRefs:
    """Which tensors went into the savers, and weakly which came out of every visit: to find non-finite ones.

    Strong references are bounded in bytes, because the check happens after the run.
    """

    MAX_BYTES = 2 * 1024**3

    def __init__(self) -> None:
        self.saved: dict[str, list[Any]] = {}
        self.made: list[tuple[str, list[Any]]] = []
        self.bytes = 0

    def keep_saved(self, node_id: str, values: Iterable[Any]) -> None:
        """Keep the CPU tensors among `values` (also a latent's `samples`) that go into a saver."""
        for tensor in tensors_in(values):
            size = tensor.numel() * tensor.element_size()
            if tensor.device.type == "cpu" and self.bytes + size <= self.MAX_BYTES:
                self.bytes += size
                self.saved.setdefault(node_id, []).append(tensor)

    def keep_made(self, node_id: str, outputs: Iterable[Any], weak: Callable[[Any], Any]) -> None:
        """Keep weak references to the tensors in a visit's outputs, a list of lists."""
        refs: list[Any] = []
        for values in outputs:
            if isinstance(values, (list, tuple)):
                refs.extend(map(weak, tensors_in(values)))
        if refs:
            self.made.append((node_id, refs))

    def clear(self) -> None:
        """Let go of everything."""
        self.saved.clear()
        self.made.clear()
        self.bytes = 0


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """The torch tensors among `values`, and those that latents and audio carry. Never imports torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            for key in ("samples", "waveform"):
                if isinstance(value.get(key), torch.Tensor):
                    yield value[key]
