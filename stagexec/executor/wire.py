"""Messages on their way from the worker to the client: the same ones, at a smaller price for the worker.

Once planning is linear, messages are most of what a prompt of quick nodes takes. Measured at 200 nodes, 600
messages: three quarters of the time was `json.dumps` of the 400 progress states on the server's thread, which
shares the interpreter with the worker; 0.9 µs for each of 40,000 entries where msgspec takes 0.1 µs. Of the
rest, half was waking the server's thread, which takes the interpreter away from the worker each time.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import operator
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from stagexec.record import pauses
from stagexec.record.guard import guarded

JSON = "server:PromptServer.send_json"
SYNC = "server:PromptServer.send_sync"
EVENT = "progress_state"

PAUSE_S = 0.002
"""After the first of several messages the server's thread is not woken again; it looks after so long."""

COLLECTS_NS = 9_000_000_000
"""After a prompt the host collects garbage when the last time is more than 10 s ago. That takes 0.4 s with a
small model loaded and stops every thread, also the server's that has yet to tell the client of the end."""

AHEAD_S = 0.05
"""So long, at most, the worker waits before it, for the client to be told. The prompt is over by then."""

_encode = msgspec.json.Encoder().encode


def _changing(name: str) -> Any:
    method = getattr(dict, name)

    @functools.wraps(method)
    def change(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.text = None
        return method(self, *args, **kwargs)

    return change


class Told(dict[str, Any]):
    """A dict with its text as JSON beside it, for as long as nobody changes it. A copy is a mere dict."""

    __slots__ = ("text",)
    text: str | None

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return dict, (dict(self),)


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(Told, _name, _changing(_name))


class Entry(Told):
    """A node's entry of a progress state; its text begins with the node's id."""

    __slots__ = ()

    def __init__(self, fields: dict[str, Any], **changed: Any) -> None:
        super().__init__(fields, **changed)
        self.text = None

    def tell(self, node_id: str) -> None:
        """Make the text; it stays None where only the host's encoder can."""
        whole = encoded({node_id: self})
        self.text = whole[1:-1] if whole is not None else None


class States(Told):
    """The `nodes` of a progress state that we have made ourselves; for everybody else a dict.

    Its text is that of its entries, none of which is written anew for another node's sake: at 200 nodes,
    400 states have 40,000 entries, and 400 texts.
    """

    __slots__ = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.text = ""


_text_of = operator.attrgetter("text")


def text_of_state(message: dict[str, Any]) -> str | None:
    """JSON of `{"type": …, "data": {…, "nodes": States}}`; None where only the host's encoder can."""
    data = message["data"]
    nodes = data["nodes"]
    if type(nodes) is not States or nodes.text is None or next(reversed(data)) != "nodes":
        return encoded(message)
    frame = _frame(message, data)
    if frame is None:
        return encoded(message)
    try:
        try:
            entries = ",".join(map(_text_of, nodes.values()))
        except TypeError:  # some have no text yet
            for node_id, entry in nodes.items():
                if entry.text is None:
                    entry.tell(node_id)
            entries = ",".join(map(_text_of, nodes.values()))
    except (TypeError, AttributeError):  # one has none that we can make, or is a pack's own
        return encoded(message)
    return f"{frame}{entries}}}}}}}"


_frames: dict[Any, str | None] = {}


def _frame(message: dict[str, Any], data: dict[str, Any]) -> str | None:
    """All of the message's text that stands before its first node. The last one is remembered."""
    key = (tuple(message), message["type"], tuple(data), data.get("prompt_id"))
    known = len(data) == 2 and type(key[3]) is str
    if known and key in _frames:
        return _frames[key]
    whole = encoded({**message, "data": {**data, "nodes": {}}})
    frame = whole[:-3] if whole is not None and whole.endswith("{}}}") else None
    if known:
        _frames.clear()
        _frames[key] = frame
    return frame


def is_plain(number: Any) -> bool:
    """Do both encoders write this number alike? Not NaN, not infinity, nothing a pack has made up."""
    kind = type(number)
    return kind is int or kind is bool or (kind is float and math.isfinite(number))


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


def encoded(message: Any) -> str | None:
    """The message as JSON, or None when it holds something that only the host's encoder may judge."""
    try:
        return _encode(message).decode()
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):  # a pack has put something in
        return None


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


class Outlet:
    """An event loop, for callers on other threads: many callbacks in a row wake it once.

    The first callback wakes the loop; for those that follow it looks every PAUSE_S, until none has come.
    Every callback runs, in the order given.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
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
        # Two more turns of the loop: in the first run those that wait, in the second what they have woken.
        self.call_soon_threadsafe(self._loop.call_soon, self._loop.call_soon, done.set)
        self.wake()
        return done.wait(seconds)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            found, self._waiting = self._waiting, []
            self._looks = bool(found)
        self._timer = self._loop.call_later(PAUSE_S, self._look) if found else None
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
        with making:
            if last[0] is not server or last[1] is not loop:
                last = (server, loop, Ringing(server, Outlet(loop)))
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
