"""Drives a class of the host's and ours by the same calls, drawn by chance, and compares what comes of it.

The calls are of every public name that inspection finds on the host's class: a name that has no arguments
here fails, so that a host's new method is not left out in silence.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from world import API, EXPLORE, OurKeys, OurList, OurProgress, execution

from stagexec.executor.execution import make_execute
from stagexec.executor.loop import NativeLoop
from stagexec.executor.queue import QueueView
from stagexec.executor.validation import make_validate_inputs
from stagexec.record import guard

HostQueue, HostExecutor = execution.PromptQueue, execution.PromptExecutor
OurQueue = type("PromptQueue", (QueueView, HostQueue), {"api": API, "__module__": "execution"})
OurExecutor = type("PromptExecutor", (NativeLoop, HostExecutor), {"api": API, "__module__": "execution"})

OURS = {
    "CacheKeySetInputSignature": OurKeys,
    "ExecutionList": OurList,
    "WebUIProgressHandler": OurProgress,
    "execute": make_execute(API, execution.execute),
    "validate_inputs": make_validate_inputs(execution.validate_inputs, True),
}

ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")


class Call:
    """One call: a name, and how to make it. `apply` gets the world and gives what is compared."""

    def __init__(self, name: str, apply: Callable[[Any], Any]) -> None:
        self.name = name
        self.apply = apply


Draw = Callable[[random.Random], Callable[[Any], Any]]


def public(kind: type) -> set[str]:
    """The public methods of a class."""
    return {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}


def undrawn(kind: type, draws: dict[str, Draw], leave: tuple[str, ...] = ()) -> set[str]:
    """Public methods that no calls are drawn of."""
    return public(kind) - {name.partition(" ")[0] for name in draws} - set(leave)


def sequence(seed: int, draws: dict[str, Draw], length: int) -> list[Call]:
    """Calls drawn from `draws`."""
    chance = random.Random(seed)
    names = [chance.choice(sorted(draws)) for _ in range(length)]
    return [Call(name, draws[name](chance)) for name in names]


def outcome(call: Call, world: Any) -> Any:
    """What a call gives or raises, as text."""
    try:
        return call.name, plain(call.apply(world))
    except BaseException as error:  # noqa: BLE001 (SystemExit and the like are compared too)
        return call.name, type(error).__name__, plain(str(error))


def plain(value: Any) -> str:
    """A value as text that two worlds have in common."""
    return ADDRESS.sub("<address>", value if isinstance(value, str) else repr(value))


def played(make: Callable[[], Any], state: Callable[[Any], Any], calls: list[Call]) -> list[Any]:
    """What a world gives, call by call, and its state after each."""
    world = make()
    seen: list[Any] = []
    for call in calls:
        seen += [outcome(call, world), plain(state(world))]
    return seen


def same(
    host: Callable[[], Any],
    ours: Callable[[], Any],
    state: Callable[[Any], Any],
    draws: dict[str, Draw],
    seeds: int,
    length: int,
) -> int:
    """Play many sequences on both; fail at the first difference. Gives how many calls returned something."""
    returned = 0
    for seed in range(EXPLORE or seeds):
        expected = played(host, state, sequence(seed, draws, length))
        guard.faults.clear()
        found = played(ours, state, sequence(seed, draws, length))
        for at, (one, other) in enumerate(zip(expected, found, strict=True)):
            before = expected[max(at - 4, 0) : at]
            assert other == one, f"seed {seed}, step {at // 2}: {other} for {one}, after {before}"
        assert guard.faults == [], f"seed {seed}: hand-made objects are no fault of ours"
        returned += sum(len(one) == 2 for one in expected[::2])
    return returned


@contextmanager
def ours_in_place() -> Iterator[None]:
    """Our parts on the host's module, where the host's code looks them up."""
    before = {name: getattr(execution, name) for name in OURS}
    vars(execution).update(OURS)
    try:
        yield
    finally:
        vars(execution).update(before)
