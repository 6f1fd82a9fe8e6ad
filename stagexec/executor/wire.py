"""Messages on their way from the worker to the client: the same ones, at a smaller price for the worker.

Once planning is linear, messages are most of what a prompt of quick nodes takes. Measured at 200 nodes, 600
messages: three quarters of the time was `json.dumps` of the 400 progress states on the server's thread, which
shares the interpreter with the worker; 0.9 µs for each of 40,000 entries where msgspec takes 0.1 µs. Of the
rest, half was waking the server's thread, which takes the interpreter away from the worker each time.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

from stagexec.executor.outlet import Outlet
from stagexec.executor.states import States, text_of_state
from stagexec.record import pauses
from stagexec.record.guard import guarded

JSON = "server:PromptServer.send_json"
SYNC = "server:PromptServer.send_sync"
EVENT = "progress_state"

COLLECTS_NS = 9_000_000_000
"""After a prompt the host collects garbage when the last time is more than 10 s ago. That takes 0.4 s with a
small model loaded and stops every thread, also the server's that has yet to tell the client of the end."""

AHEAD_S = 0.05
"""So long, at most, the worker waits before it, for the client to be told. The prompt is over by then."""

told = threading.Event()
"""Does the last prompt's client know of its end? Until then our own threads leave the interpreter to the
server's: it has 1,600 messages to send after 800 quick nodes, and gives the interpreter away with each."""
told.set()


def make_send_json(_module: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """What takes the place of the server's `send_json(event, data, sid)`.

    The host's own is called as ever and chooses the sockets; for a state of ours it is shown sockets that
    encode the message themselves.
    """

    @functools.wraps(original)
    async def send_json(server: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) >= 2 and is_state(*args[:2]):
            server = Encoding(server)
        return await original(server, *args, **kwargs)

    return send_json


def is_state(event: Any, data: Any) -> bool:
    """Is this a progress state that we have made?"""
    return event == EVENT and type(data) is dict and type(data.get("nodes")) is States


class Encoding:
    """The server for one call of its `send_json`: its sockets are sent the message's text."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    @property
    def sockets(self) -> dict[Any, Any]:
        """The clients' sockets by client id, as they are now."""
        return {sid: EncodingSocket(ws) for sid, ws in self._server.sockets.items()}


class EncodingSocket:
    """A client's socket that makes JSON of a message itself."""

    def __init__(self, ws: Any) -> None:
        self._ws = ws

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ws, name)

    async def send_json(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        """Send the message; the socket's own is asked where ours makes no text of it."""
        text = text_of_state(message)
        if text is None:
            return await self._ws.send_json(message, *args, **kwargs)
        return await self._ws.send_str(text)


class Ringing:
    """The server for one call of its `send_sync`: its loop is an outlet."""

    def __init__(self, server: Any, outlet: Outlet) -> None:
        self._server = server
        self.loop = outlet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


def make_send_sync(_module: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """What takes the place of the server's `send_sync(event, data, sid)`: the host's own, on an outlet."""
    last: tuple[Any, Any, Any] = (None, None, None)
    making = threading.RLock()  # two outlets of one loop would let a thread's messages overtake each other

    def ringing_of(server: Any) -> Ringing | None:
        nonlocal last
        loop = getattr(server, "loop", None)
        known = last
        if known[0] is server and known[1] is loop:
            return known[2]  # type: ignore[no-any-return]
        if not isinstance(loop, asyncio.AbstractEventLoop):
            return None

        def sockets_of() -> Any:
            return server.sockets.values()

        with making:
            if last[0] is not server or last[1] is not loop:
                last = (server, loop, Ringing(server, Outlet(loop, sockets_of)))
            return last[2]  # type: ignore[no-any-return]

    @functools.wraps(original)
    def send_sync(server: Any, *args: Any, **kwargs: Any) -> Any:
        ringing = ringing_of(server)
        if ringing is None:
            return original(server, *args, **kwargs)
        result = original(ringing, *args, **kwargs)
        if ends_prompt(*args[:2]):
            tell_of_end(ringing.loop)
        return result

    return send_sync


def ends_prompt(event: Any = None, data: Any = None, *_more: Any) -> bool:
    """Is this the message that clients take for a prompt's end?"""
    return event == "executing" and isinstance(data, dict) and data.get("node", "") is None


@guarded
def tell_of_end(outlet: Outlet) -> None:
    """The end is not to wait: neither for the loop's next look, nor for a collection of garbage."""
    outlet.after_those_that_wait(told.set)
    if pauses.due(COLLECTS_NS) and not on_a_loop():
        outlet.deliver(AHEAD_S)
    else:
        outlet.wake()


def on_a_loop() -> bool:
    """Does an event loop run on the calling thread? It must not wait for itself."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
