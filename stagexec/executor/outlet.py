"""The server's event loop for the worker's thread: messages in a row wake it once, and leave together."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

from stagexec.record.guard import guarded

PAUSE_S = 0.002
"""After the first of several messages the server's thread is not woken again; it looks after so long."""

BURST = 20
"""So many messages in one look go out together: a packet for each wakes the client for each. Measured at 800
quick nodes: a sixth of what the server's thread does. The kernel lets go by itself after 0.2 s."""

CORK: int | None = getattr(socket, "TCP_CORK", None)  # Linux


class Outlet:
    """An event loop, for callers on other threads: many callbacks in a row wake it once.

    The first callback wakes the loop; for those that follow it looks every PAUSE_S, until none has come.
    Every callback runs, in the order given.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, sockets: Callable[[], Iterable[Any]] = tuple) -> None:
        self._loop = loop
        self._sockets = sockets
        """The clients' websockets, as they are now."""
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[Any, ...]] = []
        self._looks = False
        """Does the loop look by itself? Then it need not be woken."""
        self._lock = threading.RLock()  # a finalizer may send while its thread is in here

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> None:
        """As the loop's own. RuntimeError when the loop is closed."""
        if self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)  # which raises
        with self._lock:
            self._waiting.append((callback, args, context or contextvars.copy_context()))
            if self._looks:
                return
            self._looks = True
        self._loop.call_soon_threadsafe(self._look)

    def wake(self) -> None:
        """Do not let what waits wait any longer."""
        self._loop.call_soon_threadsafe(self._look)

    def deliver(self, seconds: float) -> bool:
        """Wait, on another thread than the loop's, until all callbacks have run and what they woke has, too.

        False when that took longer.
        """
        done = threading.Event()
        self.after_those_that_wait(done.set)
        self.wake()
        return done.wait(seconds)

    def after_those_that_wait(self, callback: Callable[[], Any]) -> None:
        """Call it when all callbacks so far have run, and what they woke has, too."""
        # Two more turns of the loop: in the first run those that wait, in the second what they have woken.
        self.call_soon_threadsafe(self._loop.call_soon, self._loop.call_soon, callback)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            found, self._waiting = self._waiting, []
            self._looks = bool(found)
        self._timer = self._loop.call_later(PAUSE_S, self._look) if found else None
        if len(found) >= BURST and (corked := cork(self._sockets)):
            self._loop.call_soon(self._loop.call_soon, uncork, corked)  # after what the callbacks wake
        turn = iter(found)
        try:
            for callback, args, context in turn:
                self._run(callback, args, context)
        finally:  # one has ended the loop: the others keep their turn, should it run again
            for callback, args, context in turn:
                self._loop.call_soon(callback, *args, context=context)

    def _run(self, callback: Callable[..., Any], args: tuple[Any, ...], context: contextvars.Context) -> None:
        """As the loop runs a callback, without a handle for each: there are two for every node."""
        try:
            context.run(callback, *args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 (the loop's own rule)
            message = f"Exception in callback {callback!r}"
            self._loop.call_exception_handler({"message": message, "exception": error})


@guarded
def cork(sockets: Callable[[], Iterable[Any]]) -> list[Any]:
    """Let the kernel hold small packets of these websockets. Gives the sockets below them, for `uncork`.

    Where the system knows no such thing, or a connection is of another kind, nothing is held.
    """
    corked = []
    for ws in list(sockets()) if CORK is not None else ():
        with contextlib.suppress(AttributeError, OSError):  # another kind of socket, or one that has gone
            below = ws.get_extra_info("socket")
            below.setsockopt(socket.IPPROTO_TCP, CORK, 1)
            corked.append(below)
    return corked


@guarded
def uncork(corked: list[Any]) -> None:
    """Let everything go."""
    for below in corked:
        with contextlib.suppress(OSError):  # closed meanwhile, and everything sent by that
            below.setsockopt(socket.IPPROTO_TCP, CORK, 0)
