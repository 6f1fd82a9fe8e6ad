"""What is known of the host's worker, the one thread that executes prompts: up, restarted, or dead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from stagexec.record.guard import guarded

Detail = dict[str, Any]
"""{exception_type, at, message, restarts} of a worker's end; the message only where text may be kept."""


class State:
    """The worker's state. `up` is None while no worker is under supervision."""

    def __init__(self) -> None:
        self.up: bool | None = None
        self.restarts = 0
        self.last_end: Detail | None = None
        self.last_end_wall_ns: int | None = None
        self.threads: set[int] = set()
        """Those under supervision."""
        self.listeners: list[Callable[[dict[str, Any]], None]] = []
        """Called at each restart and at the end, with what `describe` gives. They must not block."""

    def describe(self) -> dict[str, Any]:
        """For pages and programs: {up, restarts, exception_type, at, message, ended_wall_ns}."""
        end = self.last_end or {}
        return {
            "up": self.up,
            "restarts": self.restarts,
            "exception_type": end.get("exception_type"),
            "at": end.get("at"),
            "message": end.get("message"),
            "ended_wall_ns": self.last_end_wall_ns,
        }

    def is_here(self) -> bool:
        """Is the calling thread a worker under supervision?"""
        return threading.get_ident() in self.threads

    def begins(self) -> None:
        """A worker begins on the calling thread."""
        self.threads.add(threading.get_ident())
        self.up = True

    def ends(self, detail: Detail) -> None:
        """The worker on the calling thread is at its end; another may follow."""
        self.threads.discard(threading.get_ident())
        self.last_end, self.last_end_wall_ns = detail, time.time_ns()

    def tell(self, up: bool) -> None:
        """Another follows (`up`), or none does."""
        self.up = up
        self.restarts += up
        for listener in list(self.listeners):
            tell_one(listener, self.describe())


@guarded
def tell_one(listener: Callable[[dict[str, Any]], None], told: dict[str, Any]) -> None:
    """Tell one of the listeners."""
    listener(told)


state = State()
"""This process's."""


def missing() -> Detail | None:
    """How the worker ended, where it is dead: what a prompt waits for then never comes."""
    return state.last_end if state.up is False else None
