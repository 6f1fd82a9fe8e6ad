"""By which door something was asked of the host: a person's request, or code that runs in this process.

A person has no way in but a request to the server. So what happens inside one is a person's, whatever pack
answers it, unless the request came from this very process: then a node sent it. All else is code.
"""

from __future__ import annotations

import contextvars
import functools
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from stagexec.record import live
from stagexec.record.guard import guarded
from stagexec.record.run import VISIT

USER, CODE = "user", "code"

HOST_MODULES = ("server", "app", "api_server", "aiohttp", "stagexec")
"""First words of the modules whose handlers do not hand work to threads that ask for a cancel."""


class Request(NamedTuple):
    """The two ends of a request's connection; a context that outlives the request holds no more of it."""

    peer: Any
    own: Any


_request: contextvars.ContextVar[Request | None] = contextvars.ContextVar("stagexec_request", default=None)

_watching = False
_open_of_packs = 0


@guarded
def watch(app: Any) -> None:
    """Know from now on what is done inside a request of this server."""
    global _watching
    from aiohttp import web

    app.middlewares.insert(0, web.middleware(inside_request))
    _watching = True


async def inside_request(request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
    """A middleware that answers as `handler` does."""
    global _open_of_packs
    token, counts = _request.set(ends_of(request)), is_packs(request) or 0
    _open_of_packs += counts
    try:
        return await handler(request)
    finally:
        _open_of_packs -= counts
        _request.reset(token)


@guarded
def ends_of(request: Any) -> Request | None:
    """Both ends of the connection that a request came by."""
    ask = getattr(request.transport, "get_extra_info", None)
    return Request(ask("peername"), ask("sockname")) if ask is not None else Request(None, None)


@guarded
def is_packs(request: Any) -> bool:
    """Does a pack's own route answer this? A socket is open all the time and tells nothing."""
    if request.headers.get("Upgrade"):
        return False
    handler = request.match_info.handler
    while isinstance(handler, functools.partial):
        handler = handler.func
    module = str(getattr(handler, "__module__", None))
    return module.split(".", maxsplit=1)[0] not in HOST_MODULES


def asked_by() -> tuple[str, str]:
    """(USER or CODE, the door: request, own_request, visit, server, thread) of the caller."""
    request = _request.get()
    if request is not None:
        return (CODE, "own_request") if is_own(request) else (USER, "request")
    if VISIT.get() is not None or live.current_for_thread() is not None:
        return CODE, "visit"
    if threading.current_thread() is threading.main_thread():
        return (CODE, "server") if _watching else (USER, "request")
    if _open_of_packs:  # a pack's route has handed it to a thread
        return USER, "request"
    return CODE, "thread"


def by_code() -> bool:
    """Is it certain that no person asks for what the caller does now?"""
    return bool(is_code())


@guarded
def is_code() -> bool:
    """See `by_code`."""
    return asked_by()[1] in ("visit", "own_request")


def is_own(request: Request) -> bool:
    """Does the other end of this connection belong to this process?"""
    return bool(own_end(request))


@guarded
def own_end(request: Request) -> bool:
    """See `is_own`. Only a peer at this machine's own address is looked for."""
    peer, own = place_of(request.peer), place_of(request.own)
    if peer is None or own is None or (peer[0] != own[0] and not peer[0].startswith("127.")):
        return False
    psutil = sys.modules.get("psutil")  # every ComfyUI imports it
    if psutil is None:
        return False
    process = psutil.Process()
    look = getattr(process, "net_connections", None) or process.connections  # its name before psutil 6
    return any(place_of(one.laddr) == peer for one in look(kind="tcp"))


def place_of(address: Any) -> tuple[str, int] | None:
    """(address, port), an IPv4 address in IPv6 clothes as itself; None for what is no such pair."""
    if not isinstance(address, tuple) or len(address) < 2:
        return None
    return str(address[0]).removeprefix("::ffff:"), int(address[1])
