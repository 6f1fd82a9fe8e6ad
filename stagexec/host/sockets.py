"""What output nodes deliver by their clients' sockets: binary messages that are no previews of progress."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stagexec.record import live
from stagexec.record.guard import guarded
from stagexec.record.run import VISIT

TEXT = 3
"""The host's number of a binary message that holds text beside a node: progress, and no delivery."""

PREVIEWS = ("sampling",)
"""Stages in which pictures are sent to look at meanwhile."""

Factory = Callable[[ModuleType, Any], Any]


def noting(factory: Factory) -> Factory:
    """`factory` of what takes the place of the server's `send_sync`, with a look at each message in front."""

    def make(module: ModuleType, original: Any) -> Any:
        inner = factory(module, original)

        @functools.wraps(original)
        def send_sync(server: Any, *args: Any, **kwargs: Any) -> Any:
            if live.run is not None:
                look(server, *args, **kwargs)
            return inner(server, *args, **kwargs)

        return send_sync

    return make


def look(server: Any, event: Any = None, data: Any = None, sid: Any = None, *_: Any, **__: Any) -> None:
    """See a message on its way; the host's arguments. Costs nothing for those that are text."""
    if type(event) is str and not isinstance(data, (bytes, bytearray, memoryview)):
        return
    _note(server, event, sid)


def sent(_run: Any, arguments: dict[str, Any]) -> None:
    """The server's `send` or `send_bytes` is called on the run's thread."""
    look(_server(), arguments["event"], arguments["data"], arguments["sid"])


def sent_picture(_run: Any, arguments: dict[str, Any]) -> None:
    """The server's `send_image` is called on the run's thread."""
    look(_server(), 1, None, arguments["sid"])


@guarded
def _note(server: Any, event: Any, sid: Any) -> None:
    run = live.here()
    if run is None or event == TEXT or server is None or _is_servers_own(server):
        return
    node = _node_here(run)
    if node is None or node not in run.trail.output_nodes or run.stage in PREVIEWS:
        return
    run.trail.sends(node, clients(server, sid))


def _node_here(run: Any) -> str | None:
    """The node that sends: by our context, the host's, else the one in execution."""
    if VISIT.get() is None:
        ask = getattr(sys.modules.get("comfy_execution.utils"), "get_executing_context", None)
        context = ask() if ask is not None else None
        if context is not None:
            return str(context.node_id)
    node: str | None = run.node_here()
    return node


def _is_servers_own(server: Any) -> bool:
    """Is the caller the server's own loop, which sends on what was sent before?"""
    try:
        return asyncio.get_running_loop() is getattr(server, "loop", None)
    except RuntimeError:
        return False


def clients(server: Any, sid: Any) -> int:
    """How many open sockets a message for the client `sid` goes to; without one it is for all."""
    known = server.sockets
    found = list(known.values()) if sid is None else [known[sid]] if sid in known else []
    return sum(not getattr(one, "closed", False) for one in found)


def _server() -> Any:
    return getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
