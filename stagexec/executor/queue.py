"""The host's queue, with our ledger's view of it: accepted, taken, deleted, done."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from stagexec.executor import turn, until
from stagexec.executor.growth import is_output
from stagexec.executor.loop import executed_fields
from stagexec.record import live
from stagexec.record.guard import guarded

validated: OrderedDict[str, int] = OrderedDict()
"""prompt_id -> duration of its validation, ns, until it is accepted."""

MAX_VALIDATED = 1000
WARMUP = "stagexec.warmup"
"""In a prompt's extra data: true for a run that only warms up. It is marked `warmup` in the journal."""

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
        given = args[0] if args else kwargs.get("item")
        item, stop = stopped_early(self.api, given) or (given, NO_STOP)
        accept(self.api, item, stop)
        if item is given:
            return super().put(*args, **kwargs)  # type: ignore[misc]
        return super().put(item)  # type: ignore[misc]

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """Hand the next prompt to the worker: its execution starts."""
        turn.over()
        taken = super().get(*args, **kwargs)  # type: ignore[misc]
        if taken is not None:
            take(taken)
        return taken

    def task_done(self, *args: Any, **kwargs: Any) -> Any:
        """File a prompt's result."""
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


@guarded
def stopped_early(api: Any, item: Any) -> tuple[Any, dict[str, Any]] | None:
    """The item with the nodes that its stop point leaves, and what to keep of that; None without one."""
    prompt, extra_data, outputs = item[2:5]
    point = until.asked(extra_data)
    if point is None:
        return None
    classes = api.nodes.NODE_CLASS_MAPPINGS
    targets, left_out = until.cut(
        prompt, list(outputs), point, lambda name: str(api.stage_of(name, classes.get(name))[0])
    )
    return (*item[:4], targets, *item[5:]), {"until": point, "left_out": left_out}


@guarded
def accept(api: Any, item: Any, stop: dict[str, Any]) -> None:
    """Begin a run for a queue item: (number, prompt_id, prompt, extra_data, outputs, …)."""
    number, prompt_id, prompt, extra_data, outputs = item[:5]
    fields = describe(api, prompt, list(outputs))
    condition_id, more = condition_of(api, prompt, extra_data, list(outputs)) or NO_CONDITION
    fields.update(more, **stop, number=number, validate_ns=validated.pop(str(prompt_id), None))
    run = live.accept(str(prompt_id), fields, condition_id)
    if run is not None:
        if isinstance(extra_data, dict) and extra_data.get(WARMUP):
            run.mark("warmup", {}, source="queue")
        api.keep_condition(run, prompt, extra_data, list(outputs), fields)


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
def take(taken: Any) -> None:
    """The worker took (item, item_id)."""
    live.start(str(taken[0][1]))


@guarded
def done(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The host filed (item_id, history_result, status)."""
    run = live.current_for_thread()
    if run is None:
        return
    history = (args[1] if len(args) > 1 else kwargs.get("history_result")) or {}
    status = args[2] if len(args) > 2 else kwargs.get("status")
    live.finish(run, executed_fields(run, getattr(status, "status_str", None), history), history)


@guarded
def forget_missing(queue: Any) -> None:
    """Close the runs whose items are no longer in the queue."""
    with queue.mutex:
        live.forget([str(item[1]) for item in queue.queue])


@guarded
def keep_validation(prompt_id: Any, duration_ns: int) -> None:
    """Remember how long a prompt's validation took, until it is accepted."""
    validated[str(prompt_id)] = duration_ns
    while len(validated) > MAX_VALIDATED:
        validated.popitem(last=False)
