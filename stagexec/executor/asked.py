"""Which node's class took long to answer a question of the host's, and which pack's handler held up a prompt.

The host asks classes: INPUT_TYPES, VALIDATE_INPUTS, IS_CHANGED, check_lazy_status. An answer comes in
microseconds; one that takes long is marked in its run, with the node: in validation beside the run, else in
it. Packs see who calls them, so nothing of ours is a frame while they answer: the coroutine that asks is the
host's own, and its end is when its caller lets go of it.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from stagexec.executor.steps import Frameless
from stagexec.record import clock, live, words
from stagexec.record.guard import guarded

LEAST_NS = 5_000_000
"""An answer that took less is not filed: 20,000 nodes are to stay cheap."""

QUESTIONS = frozenset(
    {"IS_CHANGED", "fingerprint_inputs", "VALIDATE_INPUTS", "validate_inputs", "check_lazy_status"}
)
"""Functions of a class that the host calls besides the node's own."""

IN_VALIDATION = frozenset({"VALIDATE_INPUTS", "validate_inputs"})

MOST_PROMPTS = 1000

Answer = tuple[str, "str | None", "str | None", int, "str | None"]
"""(what, node id, class name, ns, handler)"""


class Validation:
    """One prompt in validation: its nodes that are being validated, inside each other, and long answers."""

    __slots__ = ("answers", "nodes")

    def __init__(self, handlers: list[tuple[Any, int]]) -> None:
        self.nodes: list[Node] = []
        self.answers: list[Answer] = [
            ("on_prompt", None, None, ns, words.function_name(one)) for one, ns in handlers if ns >= LEAST_NS
        ]


_validations: OrderedDict[str, Validation] = OrderedDict()
"""prompt_id -> its validation, until it is accepted."""

_kept: set[Any] = set()
"""Holds what hangs on a coroutine's end until then."""

_latest: contextvars.ContextVar[Question | None] = contextvars.ContextVar("stagexec_question", default=None)
"""The question that the calling task asked last."""

_handlers: contextvars.ContextVar[list[tuple[Any, int]] | None] = contextvars.ContextVar(
    "stagexec_handlers", default=None
)
"""(handler, ns) of each prompt handler that was called in this request."""


class Timed:
    """Something that begins now and ends when a coroutine is done, and its caller lets go of it."""

    __slots__ = ("_reference", "start_ns")

    def __init__(self) -> None:
        self.start_ns = clock.now_ns()

    def until(self, coroutine: Any) -> None:
        """It ends with this one."""
        self._reference = weakref.ref(coroutine, self._over)
        _kept.add(self)

    def _over(self, _reference: Any) -> None:
        _kept.discard(self)
        self.ended(clock.now_ns() - self.start_ns)

    def ended(self, ns: int) -> None:
        """It took so long."""
        raise NotImplementedError


class Question(Timed):
    """A question to the class of one node."""

    __slots__ = ("kind", "node_id", "ns", "prompt_id", "what")

    def __init__(self, prompt_id: Any, node_id: Any, kind: str, what: str) -> None:
        super().__init__()
        self.prompt_id, self.node_id, self.kind, self.what = prompt_id, node_id, kind, what
        self.ns = 0

    @guarded
    def ended(self, ns: int) -> None:
        """It was answered, or its tasks were begun."""
        self.ns += ns
        if self.what not in IN_VALIDATION:
            if ns >= LEAST_NS:
                tell_in_run(self.what, self.node_id, self.kind, ns)
            return
        found = _validations.get(self.prompt_id)
        if found is None:
            return
        if found.nodes:
            found.nodes[-1].others_ns += ns
        if ns >= LEAST_NS:
            found.answers.append((self.what, self.node_id, self.kind, ns, None))


class More(Timed):
    """The tasks of a question to an async function."""

    __slots__ = ("question",)

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question

    def ended(self, ns: int) -> None:
        """They are done."""
        self.question.ended(ns)


class Node(Timed):
    """One node in validation: what is not its inputs' and not VALIDATE_INPUTS is INPUT_TYPES."""

    __slots__ = ("_validation", "kind", "node_id", "others_ns")

    def __init__(self, validation: Validation, node_id: Any, kind: Any) -> None:
        super().__init__()
        self._validation, self.node_id, self.kind = validation, node_id, kind
        self.others_ns = 0
        validation.nodes.append(self)

    @guarded
    def ended(self, ns: int) -> None:
        """It is validated."""
        nodes = self._validation.nodes
        while nodes and nodes.pop() is not self:
            pass
        if nodes:
            nodes[-1].others_ns += ns
        if ns - self.others_ns >= LEAST_NS:
            self._validation.answers.append(
                ("INPUT_TYPES", self.node_id, self.kind, ns - self.others_ns, None)
            )


class WatchedMap(Frameless):
    """`execution._async_map_node_over_list`: calls a function of a node, or asks its class."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The host's own coroutine."""
        what = args[4] if len(args) > 4 else kwargs.get("func")
        coroutine = self.func(*args, **kwargs)
        if what in QUESTIONS:
            _ask(coroutine, what, args, kwargs)
        return coroutine


@guarded
def _ask(coroutine: Any, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    prompt_id, node_id, asked = (
        args[place] if len(args) > place else kwargs.get(name)
        for place, name in enumerate(("prompt_id", "unique_id", "obj"))
    )
    if getattr(asked, "FUNCTION", None) == what:
        return  # the node's own function has that name
    kind = asked if isinstance(asked, type) else type(asked)
    one = Question(prompt_id, node_id, words.short_name(kind), what)
    _latest.set(one)
    one.until(coroutine)


class WatchedResults(Frameless):
    """`execution.resolve_map_node_over_list_results`: waits for the tasks of an async answer."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The host's own coroutine."""
        coroutine = self.func(*args, **kwargs)
        results = args[0] if args else kwargs.get("results")
        if isinstance(results, list) and any(isinstance(one, asyncio.Task) for one in results):
            _wait(coroutine)
        return coroutine


@guarded
def _wait(coroutine: Any) -> None:
    question = _latest.get()
    if question is not None:
        More(question).until(coroutine)


def latest_ns(node_id: Any) -> int:
    """How long the last question of the calling task took, if it was to this node."""
    question = _latest.get()
    return question.ns if question is not None and question.node_id == node_id else 0


@guarded
def tell_in_run(what: str, node_id: Any, node_class: str | None, ns: int) -> None:
    """Mark a long answer in the run that the calling thread executes."""
    run = live.current_for_thread()
    if run is not None:
        _mark(run, (what, node_id, node_class, ns, None), "run")


def _mark(run: Any, answer: Answer, when: str) -> None:
    what, node_id, node_class, ns, handler = answer
    detail = {"what": what, "ns": ns, "when": when, **({} if handler is None else {"handler": handler})}
    run.mark(
        "asked",
        detail,
        source="loop" if when == "run" else "queue",
        node_id=None if node_id is None else str(node_id),
        node_class=run.class_of.get(str(node_id), node_class),
    )


# ---- validation ------------------------------------------------------------------------------------------


@guarded
def validation_begins(prompt_id: Any) -> None:
    """A prompt is about to be validated, in the request that brought it."""
    handlers = _handlers.get()
    if handlers is not None:
        _handlers.set(None)
    if isinstance(prompt_id, str):
        _validations[prompt_id] = Validation(handlers or [])
        while len(_validations) > MOST_PROMPTS:
            _validations.popitem(last=False)


@guarded
def watch_node(coroutine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`coroutine` validates one node: `validate_inputs(prompt_id, prompt, item, validated)`."""
    if len(args) < 4:
        names = ("prompt_id", "prompt", "item", "validated")
        args = (*args, *(kwargs.get(name) for name in names[len(args) :]))
    prompt_id, prompt, node_id, done = args[:4]
    if done is None or node_id in done:  # as for every further link to a node
        return
    validation = _validations.get(prompt_id)
    if validation is None:
        return
    kind = prompt[node_id].get("class_type") if prompt is not None and node_id in prompt else None
    Node(validation, node_id, kind).until(coroutine)


class WatchedValidateInputs(Frameless):
    """`execution.validate_inputs` where the host's own loop runs the prompts."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The host's own coroutine."""
        coroutine = self.func(*args, **kwargs)
        watch_node(coroutine, args, kwargs)
        return coroutine


@guarded
def accepted(run: Any, prompt_id: str, prompt: dict[str, Any]) -> None:
    """A prompt became a run: mark there what its validation found, and the answers that came with it."""
    found = _validations.pop(prompt_id, None)
    for answer in found.answers if found is not None else ():
        _mark(run, answer, "validation")
    brought = [node_id for node_id, node in prompt.items() if "is_changed" in node]
    if brought:
        run.mark("is_changed_brought", {"nodes": brought}, source="queue")


# ---- handlers of prompts -----------------------------------------------------------------------------------


class Handlers(list[Any]):
    """The server's list of prompt handlers, which notes how long each of them takes while it is gone through.

    The host calls each from its own frame; packs append to the list and look into it as ever.
    """

    def __iter__(self) -> Iterator[Any]:
        told: list[tuple[Any, int]] = []
        _handlers.set(told)
        for handler in super().__iter__():
            start_ns = clock.now_ns()
            yield handler
            told.append((handler, clock.now_ns() - start_ns))

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return list, (list(super().__iter__()),)


@guarded
def watch_handlers(server: Any) -> None:
    """Note from now on how long the server's prompt handlers take."""
    if type(getattr(server, "on_prompt_handlers", None)) is list:
        server.on_prompt_handlers = Handlers(server.on_prompt_handlers)


PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "execution:_async_map_node_over_list": lambda _module, original: WatchedMap(original),
    "execution:resolve_map_node_over_list_results": lambda _module, original: WatchedResults(original),
}
"""What takes the place of which function of the host's."""
