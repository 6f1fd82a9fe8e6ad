"""The host's own `validate_inputs`, each node once, without recursion: nested calls are awaited on a stack.

The host validates a node's inputs by calling itself for each linked node, as deep as the graph. It does so
here until that is deep. Below, each such call is a coroutine that hands its node to a driver and waits; the
driver runs the host's function for one node at a time and wakes the caller. The host's code, memo, order
and errors are untouched.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import sys
import weakref
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from stagexec.executor.asked import watch_node
from stagexec.executor.steps import Frameless

_driven: contextvars.ContextVar[asyncio.Task[Any] | None] = contextvars.ContextVar(
    "stagexec_driven", default=None
)
"""The task that a driver runs in: calls from within it are nested ones."""


class Ask:
    """Awaited by a nested call: asks the driver to run `coroutine` and to answer with its result."""

    __slots__ = ("coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self)


class Driver:
    """Awaitable: runs a coroutine and all that it asks for, on an explicit stack."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._stack = [coroutine]

    def validate_inputs(self) -> Generator[Any, Any, Any]:
        """What is awaited. Packs see the name, as the host's own in every frame of its recursion."""
        stack = self._stack
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                if error is not None:
                    pending, error = error, None
                    asked = stack[-1].throw(pending)
                else:
                    asked = stack[-1].send(value)
            except StopIteration as done:
                del stack[-1]
                value = done.value
                if not stack:
                    return value
                continue
            except BaseException as raised:  # it belongs to the caller
                del stack[-1]
                if not stack:
                    raise
                value, error = None, raised
                continue
            if isinstance(asked, Ask):
                stack.append(asked.coroutine)
                value = None
                continue
            try:
                value = yield asked  # the event loop's own business
            except BaseException as raised:  # noqa: BLE001 (a cancellation goes to the coroutine that waits)
                value, error = None, raised

    __await__ = validate_inputs


class Path(list[str]):
    """The host's list of nodes in validation, searched at every step: this one knows what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self._held: set[str] = set()

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._held

    def append(self, node_id: str) -> None:
        """One deeper."""
        super().append(node_id)
        self._held.add(node_id)

    def pop(self, *place: Any) -> str:
        """One back."""
        node_id = super().pop(*place)
        self._held.discard(node_id)
        return node_id


SHALLOW = 64
"""So deep the host's own recursion goes, and a class that is asked for its inputs sees the host's frames."""

FRAMES = 160
"""The same where the host hands down no path to measure: frames on the stack, the server's own with them."""


class ValidateInputs(Frameless):
    """`execution.validate_inputs`, as the host's own calls it by its global name for each linked node."""

    deep: Callable[..., Coroutine[Any, Any, Any]]
    within: Callable[..., Coroutine[Any, Any, Any]]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The coroutine: the host's own, or where the graph is deep, one that has it driven."""
        driven = _driven.get()
        inside = driven is not None and driven is _current_task()
        coroutine = (self.within if inside else self.undriven)(*args, **kwargs)
        watch_node(coroutine, args, kwargs)
        return coroutine

    def undriven(self, *args: Any, **kwargs: Any) -> Any:
        """The same for a call from outside a driver, on a host that hands down a path."""
        if len(args) < 5 and "visiting" not in kwargs:
            return self.func(*args, visiting=Path(), **kwargs)
        path = args[4] if len(args) > 4 else kwargs["visiting"]
        deep = isinstance(path, list) and len(path) >= SHALLOW
        return (self.deep if deep else self.func)(*args, **kwargs)


class WithoutPath(ValidateInputs):
    """The same for a host that finds a cycle by RecursionError: here it is raised when a node is asked for
    within itself."""

    open: dict[Any, Any]
    place: int

    def where(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call is known by while it is open."""
        return _current_task(), args[self.place] if len(args) > self.place else kwargs.get("item")

    def undriven(self, *args: Any, **kwargs: Any) -> Any:
        """See above."""
        if _stack_is_deep():
            return self.deep(*args, **kwargs)
        here = self.where(args, kwargs)
        if here in self.open:
            raise RecursionError("maximum recursion depth exceeded")
        coroutine, open_ = self.func(*args, **kwargs), self.open
        open_[here] = weakref.ref(coroutine, lambda _: open_.pop(here, None))  # it goes when it has ended
        return coroutine

    async def once(self, *args: Any, **kwargs: Any) -> Any:
        """The host's function for one node, in a driver."""
        here = self.where(args, kwargs)
        if here in self.open:
            raise RecursionError("maximum recursion depth exceeded")
        self.open[here] = True
        try:
            return await self.func(*args, **kwargs)
        finally:
            del self.open[here]


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop: the caller runs the coroutine later
        return None


def _stack_is_deep() -> bool:
    frame: Any = sys._getframe(1)
    for _ in range(FRAMES):
        frame = frame.f_back
        if frame is None:
            return False
    return True


def make_validate_inputs(original: Callable[..., Any], takes_path: bool) -> Callable[..., Any]:
    """`execution.validate_inputs` for a host whose own calls it by its global name for each linked node.

    `takes_path`: the host hands down the list of nodes in validation as a fifth argument, and finds cycles by
    it. Without, it finds one by RecursionError.
    """
    one: Any = (ValidateInputs if takes_path else WithoutPath)(original)
    validate_node = original if takes_path else one.once
    if not takes_path:
        one.open, one.place = {}, list(inspect.signature(original).parameters).index("item")

    async def validate_inputs(*args: Any, **kwargs: Any) -> Any:
        token = _driven.set(asyncio.current_task())
        try:
            return await Driver(validate_node(*args, **kwargs))
        finally:
            _driven.reset(token)

    async def asked(*args: Any, **kwargs: Any) -> Any:
        return await Ask(validate_node(*args, **kwargs))

    one.deep, one.within = validate_inputs, asked
    made: Callable[..., Any] = one
    return made
