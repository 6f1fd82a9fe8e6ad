"""The host's queue, with our ledger's view of it: accepted, taken, deleted, done."""

from __future__ import annotations

import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from stagexec.executor import asked, failure, turn, until
from stagexec.executor.growth import is_output
from stagexec.executor.prompt import executed_fields
from stagexec.executor.steps import Frameless
from stagexec.record import after, clock, live
from stagexec.record.guard import guarded
from stagexec.record.run import Run

validated: OrderedDict[str, Validation] = OrderedDict()
"""prompt_id -> its validation, until it is accepted."""

MAX_VALIDATED = 1000
WARMUP = "stagexec.warmup"
"""In a prompt's extra data: true for a run that only warms up. It is marked `warmup` in the journal."""

by_code: Callable[[], bool] = lambda: False  # noqa: E731
"""Is it certain that no person asks for what the caller does now? Set by host/hooks.py."""

NO_STOP: dict[str, Any] = {}
MAX_BRIEFS = 10_000
"""As many as the host keeps history entries."""

NO_CONDITION: tuple[str | None, dict[str, Any]] = (None, {})


class QueueView:
    """Mixed into a subclass of the host's `PromptQueue` by host/hooks.py."""

    api: Any = None
    queue: list[Any]

    def put(self, *args: Any, **kwargs: Any) -> Any:
        """Accept a prompt."""
        called(self, "put")
        given = args[0] if args else kwargs.get("item")
        item, stop = stopped_early(self.api, given) or (given, NO_STOP)
        run = back_again(item) or accept(self.api, item, stop)
        try:
            if item is given:
                return super().put(*args, **kwargs)  # type: ignore[misc]
            return super().put(item)  # type: ignore[misc]
        finally:
            if run is not None:
                run.queued = True

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Hand the next prompt to the worker: its execution starts."""
        after.ends()
        called(self, "get")
        forget_missing(self)
        turn.over()
        taken = super().get(*args, **kwargs)  # type: ignore[misc]
        if taken is not None:
            take(self.api, taken)
        else:
            after.goes_on()
        return taken

    def task_done(self, *args: Any, **kwargs: Any) -> Any:
        """File a prompt's result."""
        called(self, "task_done")
        result = super().task_done(*args, **kwargs)  # type: ignore[misc]
        done(args, kwargs)
        return result

    def keep_brief(self, prompt_id: str, brief: dict[str, Any]) -> None:
        """What to show under `stagexec` in the history entry of a prompt whose run is closed."""
        kept = vars(self).setdefault("_stagexec_briefs", OrderedDict())
        kept[prompt_id] = brief
        while len(kept) > MAX_BRIEFS:
            kept.popitem(last=False)

    def get_history(self, *args: Any, **kwargs: Any) -> Any:
        """The host's history. An entry that is asked for by its id says what the ledger knows of it.

        The whole list stays the host's, byte for byte: runs are closed a moment after the host has filed
        them, and two looks at the list must not differ by that.
        """
        found = super().get_history(*args, **kwargs)  # type: ignore[misc]
        add_brief(self, found, args, kwargs)
        return found

    def wipe_queue(self, *args: Any, **kwargs: Any) -> Any:
        """Drop all that waits."""
        result = super().wipe_queue(*args, **kwargs)  # type: ignore[misc]
        forget_missing(self)
        return result

    def delete_queue_item(self, *args: Any, **kwargs: Any) -> Any:
        """Drop one that waits."""
        result = super().delete_queue_item(*args, **kwargs)  # type: ignore[misc]
        forget_missing(self)
        return result


class Item(NamedTuple):
    """What we read of a queue item, `(number, prompt_id, prompt, extra_data, outputs, …)`."""

    number: Any
    prompt_id: str
    prompt: dict[str, Any]
    extra_data: dict[str, Any]
    outputs: list[str]


def item_of(item: Any) -> Item | None:
    """The item as we read it. None for one that holds no prompt: packs put there what only they take out."""
    if not isinstance(item, (tuple, list)) or len(item) < 3 or not is_prompt(item[2]):
        return None
    extra_data = item[3] if len(item) > 3 and isinstance(item[3], dict) else {}
    outputs = item[4] if len(item) > 4 and isinstance(item[4], (list, tuple, set)) else ()
    number = item[0] if isinstance(item[0], (int, float)) else None
    return Item(number, str(item[1]), item[2], extra_data, [str(one) for one in outputs])


def is_prompt(prompt: Any) -> bool:
    """Is it a graph of nodes that can be described?"""
    return isinstance(prompt, dict) and all(
        isinstance(node, dict) and isinstance(node.get("inputs", {}), dict) for node in prompt.values()
    )


@guarded
def stopped_early(api: Any, item: Any) -> tuple[Any, dict[str, Any]] | None:
    """The item with the nodes that its stop point leaves, and what to keep of that; None without one."""
    read = item_of(item)
    point = until.asked(read.extra_data) if read is not None and len(item) > 4 else None
    if read is None or point is None:
        return None
    classes = api.nodes.NODE_CLASS_MAPPINGS
    targets, left_out = until.cut(
        read.prompt, read.outputs, point, lambda name: str(api.stage_of(name, classes.get(name))[0])
    )
    return (*item[:4], targets, *item[5:]), {"until": point, "left_out": left_out}


@guarded
def accept(
    api: Any, item: Any, stop: dict[str, Any], *, late: bool = False, direct: bool = False
) -> Run | None:
    """Begin a run for a queue item. `late`: it came past `put`, and is in hand as its execution starts."""
    read = item_of(item)
    if read is None:
        return None
    fields, condition_id = description(api, read, stop)
    accepted_ns = queued_since(read.extra_data) if late and not direct else None
    run = live.accept(
        read.prompt_id,
        fields,
        condition_id,
        direct,
        item=item,
        waits=not (late or direct),
        accepted_ns=accepted_ns,
    )
    if run is not None:
        keep(api, run, read, fields)
    return run


def description(api: Any, read: Item, stop: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """(the fields of `run_accepted`, the condition's id) of a queue item."""
    fields = describe(api, read.prompt, read.outputs)
    condition_id, more = condition_of(api, read.prompt, read.extra_data, read.outputs) or NO_CONDITION
    took = validated.pop(read.prompt_id, None)
    fields.update(more, **stop, number=read.number, validate_ns=took.duration_ns() if took else None)
    return fields, condition_id


def keep(api: Any, run: Run, read: Item, fields: dict[str, Any]) -> None:
    """What is done once a run is known by its item."""
    if read.extra_data.get(WARMUP):
        run.mark("warmup", {}, source="queue")
    asked.accepted(run, read.prompt_id, read.prompt)
    api.keep_condition(run, read.prompt, read.extra_data, read.outputs, fields)


def queued_since(extra_data: dict[str, Any]) -> int | None:
    """When the host's server accepted a prompt, by what it writes beside it: on our clock, or None.

    Only an instant since this process began: one from before was another process's, and a wait does not go
    over from one clock to another.
    """
    created_ms = extra_data.get("create_time")
    if not isinstance(created_ms, int) or isinstance(created_ms, bool):
        return None
    now_ns, age_ns = clock.now_ns(), time.time_ns() - created_ms * 1_000_000
    accepted_ns = now_ns - age_ns
    return accepted_ns if clock.ANCHOR_MONO_NS <= accepted_ns <= now_ns else None


@guarded
def condition_of(
    api: Any, prompt: Any, extra_data: Any, outputs: list[str]
) -> tuple[str | None, dict[str, Any]]:
    """The condition's id and what is kept beside it: (id, {prompt_hash, seeds})."""
    found: tuple[str | None, dict[str, Any]] = api.condition_of(prompt, extra_data, outputs)
    return found


def describe(api: Any, prompt: dict[str, Any], outputs: list[str]) -> dict[str, Any]:
    """The submitted graph without its constants: ids, classes, links."""
    classes = api.nodes.NODE_CLASS_MAPPINGS
    place = {node_id: index for index, node_id in enumerate(prompt)}
    links = [
        sorted({place[v[0]] for v in node.get("inputs", {}).values() if is_link(v) and v[0] in place})
        for node in prompt.values()
    ]
    names = [str(node.get("class_type")) for node in prompt.values()]
    marked = {name for name in set(names) if is_output(classes.get(name))}
    return {
        "selected_outputs": outputs,
        "nodes": list(prompt),
        "classes": names,
        "links": links,
        "output_nodes": [node_id for node_id, name in zip(prompt, names, strict=True) if name in marked],
        "number_of_nodes": len(prompt),
    }


def is_link(value: Any) -> bool:
    """Is this input a link, [node id, socket]?"""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], (int, float))
    )


@guarded
def add_brief(queue: Any, found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Add our key to the one entry that was asked for; the host gives a copy of it."""
    prompt_id = args[0] if args else kwargs.get("prompt_id")
    mapped = args[3] if len(args) > 3 else kwargs.get("map_function")
    brief = vars(queue).get("_stagexec_briefs", {}).get(prompt_id)
    if brief is not None and mapped is None and isinstance(found.get(prompt_id), dict):
        found[prompt_id]["stagexec"] = brief


@guarded
def take(api: Any, taken: Any) -> None:
    """The worker took (item, item_id)."""
    after.drop()
    item = taken[0]
    read = item_of(item)
    if read is None:
        return
    run = live.start(read.prompt_id, item, lambda: accept(api, item, NO_STOP, late=True))
    if run is not None and run.item is not item:  # a pack has put another in its place meanwhile
        describe_again(api, run, read)
    if run is not None:
        run.item = None  # the prompt is not ours to keep


@guarded
def describe_again(api: Any, run: Run, read: Item) -> None:
    """The item that is executed is not the one that was accepted: the run is recorded as what it is."""
    fields, condition_id = description(api, read, {"until": run.until} if run.until else {})
    live.describe(run, fields, condition_id)
    keep(api, run, read, fields)


@guarded
def begin(
    executor: Any, prompt: Any, prompt_id: Any, extra_data: Any = None, execute_outputs: Any = ()
) -> Run | None:
    """Start the run of a prompt that no queue of ours handed over: a pack has its own, or none at all."""
    after.drop()
    item = (None, prompt_id, prompt, extra_data or {}, execute_outputs)
    direct = not is_running(executor, prompt_id)
    return live.start(
        str(prompt_id), None, lambda: accept(executor.api, item, NO_STOP, late=True, direct=direct)
    )


def is_running(executor: Any, prompt_id: Any) -> bool:
    """Does a queue say that this prompt is being executed?"""
    running = getattr(getattr(executor.server, "prompt_queue", None), "currently_running", None)
    if not isinstance(running, dict):
        return False
    return any(
        isinstance(item, (tuple, list)) and len(item) > 1 and item[1] == prompt_id
        for item in list(running.values())
    )


@guarded
def back_again(item: Any) -> Run | None:
    """The run of an item that was taken and is put back before anything was done: it waits on."""
    read = item_of(item)
    run = live.current_for_thread()
    if read is None or run is None or run.prompt_id != read.prompt_id or run.task is not None or run.visits:
        return None
    live.put_back(run)
    run.item = item
    return run


@guarded
def called(queue: Any, name: str) -> None:
    """Note what stands in place of our method on the instance as ours is called: that calls ours, in whatever
    way that a look at its code may not show."""
    vars(queue).setdefault("_stagexec_called", {})[name] = vars(queue).get(name)


def is_called(queue: Any) -> Callable[[str], bool]:
    """Tells of a method whether what stands in its place on the instance was seen to call ours."""
    seen = vars(queue).get("_stagexec_called", {})
    return lambda name: name in seen and seen[name] is vars(queue).get(name)


@guarded
def done(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The host filed (item_id, history_result, status)."""
    run = live.current_for_thread()
    if run is None:
        return
    history = (args[1] if len(args) > 1 else kwargs.get("history_result")) or {}
    status = args[2] if len(args) > 2 else kwargs.get("status")
    failure.name_as_told(run, getattr(status, "messages", ()))
    live.finish(run, executed_fields(run, getattr(status, "status_str", None), history), history)
    after.begins(run.run_id)


@guarded
def forget_missing(queue: Any) -> None:
    """Close the runs whose items are no longer in the queue."""
    if not live.waiting:
        return
    with queue.mutex:
        running = getattr(queue, "currently_running", None)
        left = [*queue.queue, *(running.values() if isinstance(running, dict) else ())]
    known = [(str(one[1]), one) for one in left if isinstance(one, (tuple, list)) and len(one) > 1]
    live.forget(known, by_code())


class Validation:
    """How long a prompt's validation took: until the coroutine that did it is gone."""

    __slots__ = ("_coroutine", "end_ns", "start_ns")

    def __init__(self) -> None:
        self.start_ns = clock.now_ns()
        self.end_ns: int | None = None
        self._coroutine: Any = None

    def of(self, coroutine: Any) -> None:
        """The end is when this one is done, and its caller lets go of it."""
        self._coroutine = weakref.ref(coroutine, lambda _: self._ended())

    def _ended(self) -> None:
        self.end_ns = clock.now_ns()

    def duration_ns(self) -> int:
        """Until now, where the caller keeps what it has awaited."""
        return (self.end_ns or clock.now_ns()) - self.start_ns


class TimedValidation(Frameless):
    """`validate_prompt` with its duration kept for the run that it leads to."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The host's own coroutine."""
        validation, prompt_id = Validation(), args[0] if args else kwargs.get("prompt_id")
        asked.validation_begins(prompt_id)
        coroutine = self.func(*args, **kwargs)
        keep_validation(prompt_id, validation, coroutine)
        return coroutine


@guarded
def keep_validation(prompt_id: Any, validation: Validation, coroutine: Any) -> None:
    """Remember how long a prompt's validation took, until it is accepted."""
    if not isinstance(prompt_id, str):
        return
    validation.of(coroutine)
    validated[prompt_id] = validation
    while len(validated) > MAX_VALIDATED:
        validated.popitem(last=False)
