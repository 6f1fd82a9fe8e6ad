"""Our routes on the host's server, the event `stagexec.run`, and the key `stagexec` in the history."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from stagexec.host import doors
from stagexec.record import live, worker
from stagexec.record.guard import guarded, note
from stagexec.record.run import Run
from stagexec.record.safe import log

TARGET = "server:PromptServer.add_routes"

_feed: Any = None


def add_routes(_module: ModuleType, original: Any) -> Any:
    """What takes the place of the host's `add_routes`: ours are in the table before it is read."""

    @functools.wraps(original)
    def with_ours(server: Any, *args: Any, **kwargs: Any) -> Any:
        register(server)
        return original(server, *args, **kwargs)

    return with_ours


@guarded
def register(server: Any) -> None:
    """Put our routes into the server's table, from which the host makes those under /api, and listen."""
    global _feed
    from stagexec.web import setup

    doors.watch(server.app)
    warn = functools.partial(log.warning, "stagexec: %s")
    site, feed = setup.make(ledger, journal_path, note, warn, told_to_listen, worker.state.describe)
    worker.state.listeners[:] = feed.worker_listeners
    for path, handler in site.routes():
        server.routes.get(path)(handler)
    feed.listeners += [functools.partial(tell_history, server), functools.partial(tell_clients, server)]
    if _feed is None:
        live.closed_callbacks.append(told)
    _feed = feed
    feed.start()


def ledger() -> Path | None:
    """The folder that this process keeps its ledger in."""
    return live.journal.folder if live.journal is not None else None


def told_to_listen() -> list[str]:
    """The names and addresses that the host was told to listen at."""
    args = getattr(sys.modules.get("comfy.cli_args"), "args", None)
    return [word.strip() for word in str(getattr(args, "listen", None) or "").split(",")]


def journal_path() -> Path | None:
    """The file that this process writes; None before the first event."""
    return live.journal.path if live.journal is not None else None


def told(run: Run, _outcome: str, _cause: str | None) -> None:
    """A run was closed, on whichever thread."""
    _feed.closed(run.run_id)


def tell_history(server: Any, closed: Any) -> None:
    """A key of ours in the prompt's history entry; the rest of it stays the host's."""
    from stagexec.web.feed import brief

    queue = getattr(server, "prompt_queue", None)
    if queue is None:
        return
    keep = getattr(queue, "keep_brief", None)
    if keep is not None:
        keep(closed.row["prompt_id"], brief(closed))


def tell_clients(server: Any, closed: Any) -> None:
    """The event `stagexec.run` to every client."""
    from stagexec.web.feed import brief

    server.send_sync("stagexec.run", {**brief(closed), "prompt_id": closed.row["prompt_id"]})
