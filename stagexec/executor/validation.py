"""The host's own `validate_inputs`, each node once, without recursion: nested calls are awaited on a stack.

The host validates a node's inputs by calling itself for each linked node, as deep as the graph. Here each
such call is a coroutine that hands its node to a driver and waits; the driver runs the host's function for
one node at a time and wakes whoever asked. The host's code, memo, order and errors are untouched.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import Any

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

    def __await__(self) -> Generator[Any, Any, Any]:
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
            except BaseException as raised:  # it belongs to whoever asked
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


def make_validate_inputs(original: Callable[..., Any], takes_path: bool) -> Callable[..., Any]:
    """`execution.validate_inputs` for a host whose own calls it by its global name for each linked node.

    `takes_path`: the host hands down the list of nodes in validation as a fifth argument, and finds cycles by
    it. Without, it finds one by RecursionError; here that is raised when a node is asked for within itself.
    """
    validate_node = original if takes_path else _once_within_itself(original)

    @functools.wraps(original)
    async def validate_inputs(*args: Any, **kwargs: Any) -> Any:
        task = asyncio.current_task()
        if _driven.get() is task:
            return await Ask(validate_node(*args, **kwargs))
        if takes_path and len(args) < 5 and "visiting" not in kwargs:
            args = (*args, Path())
        token = _driven.set(task)
        try:
            return await Driver(validate_node(*args, **kwargs))
        finally:
            _driven.reset(token)

    return validate_inputs


def _once_within_itself(original: Callable[..., Any]) -> Callable[..., Any]:
    place = list(inspect.signature(original).parameters).index("item")
    open_: dict[tuple[asyncio.Task[Any] | None, str], bool] = {}

    async def validate_node(*args: Any, **kwargs: Any) -> Any:
        here = asyncio.current_task(), args[place] if len(args) > place else kwargs["item"]
        if here in open_:
            raise RecursionError("maximum recursion depth exceeded")
        open_[here] = True
        try:
            return await original(*args, **kwargs)
        finally:
            del open_[here]

    return validate_node
