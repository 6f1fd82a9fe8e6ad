"""How our loop makes its calls: from a coroutine with the host's name, and from no frame that the host lacks.

Packs look at the stack: a node's INPUT_TYPES asks whether `get_input_info` called it, a saver walks up to
`execute`. What decides on the calls is a generator, `Steps`; the coroutine that packs see makes each of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from types import CoroutineType
from typing import Any

Step = functools.partial
"""A step: a call from the coroutine's own frame. A partial has no frame itself."""


class Await(functools.partial):  # type: ignore[type-arg]
    """A step whose result may have to be awaited; the host's caches became coroutines in 0.18."""


def to_await(value: Any) -> bool:
    """Has this to be awaited?"""
    return type(value) is CoroutineType or inspect.isawaitable(value)


def now(call: Callable[..., Any], *args: Any) -> Any:
    """The result of a call that may be a coroutine, from here: only where nothing in it waits."""
    value = call(*args)
    if type(value) is not CoroutineType:
        return value
    try:
        value.send(None)
    except StopIteration as done:
        return done.value
    value.close()
    raise RuntimeError("a cache of the host's own waited for something")


class Frameless(functools.partial):  # type: ignore[type-arg]
    """What takes the place of a coroutine function and is no frame while that runs.

    A subclass looks at the call and gives the coroutine itself. It passes for a coroutine function, as every
    partial of one does.
    """

    def __new__(cls, original: Any, *args: Any, **kwargs: Any) -> Any:
        """`original`: the function whose name and signature it shows."""
        one = super().__new__(cls, original, *args, **kwargs)
        return functools.update_wrapper(one, original)


class Steps:
    """What a coroutine of ours does, step by step: each step is a call that it makes from its own frame.

    A node's code sees the host's frames above it: its call comes from the coroutine that has the host's
    name, and what decides on the next call is no frame between them.
    """

    trace: Any = None
    thrown: BaseException | None = None
    """The error that is being thrown in, with its traceback as the coroutine's own `except` has it: a
    generator that StopIteration leaves makes another error of that."""

    def __init__(self) -> None:
        self._steps = self.steps()
        self.send = self._steps.send
        """Gives the next step after one that gave a value; StopIteration holds the result."""

    def steps(self) -> Generator[Any, Any, Any]:
        """The steps, each a callable; what it gives or raises comes back at the `yield`."""
        raise NotImplementedError

    def throw(self, error: BaseException) -> Any:
        """The same after a step that raised."""
        self.thrown, self.trace = error, error.__traceback__
        try:
            return self._steps.throw(error)
        finally:
            self.thrown = self.trace = None
