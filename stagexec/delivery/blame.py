"""Which node first made what is not finite: from a saver's tensor back along those that went into it."""

from __future__ import annotations

from typing import Any

from stagexec.delivery import artifacts
from stagexec.record.run import Run
from stagexec.record.tensors import Maker, maker_of


def first_bad(run: Run, tensors: list[Any]) -> str | None:
    """The node to blame for the non-finite ones of `tensors`, which went into a saver; None: not known.

    It may have been executed by an earlier run, and its output come from the cache; or be a node that another
    one expanded into.
    """
    bad = next((tensor for tensor in tensors if artifacts.finite([tensor]) is False), None)
    last: Maker | None = None
    seen: set[int] = set()
    while bad is not None and id(bad) not in seen:
        seen.add(id(bad))
        maker = maker_of(bad)
        if maker is None:
            break
        last = maker
        bad = _bad_input(maker, seen)
    if last is None:
        return _first_made(run, None)
    run.class_of.setdefault(last.node_id, last.node_class)
    if not last.inputs and last.run_id == run.run_id:  # it may have been given something else than tensors
        return _first_made(run, last.node_id) or last.node_id
    return last.node_id


def _bad_input(maker: Maker, seen: set[int]) -> Any:
    """An input that is not finite either; a passed-through tensor has no other input."""
    for reference in maker.inputs:
        tensor = reference()
        if tensor is not None and id(tensor) not in seen and artifacts.finite([tensor]) is False:
            return tensor
    return None


def _first_made(run: Run, before: str | None) -> str | None:
    """The first node in order of execution whose output is not finite; of those that `before` depends on."""
    among = None if before is None else run.ancestors(before)
    for node_id, refs in run.tensors.made:
        if among is not None and node_id not in among:
            continue
        alive = [tensor for reference in refs if (tensor := reference()) is not None]
        if artifacts.finite(alive) is False:
            return node_id
    return None
