"""Which prompt an executor of ours took up last on a thread: what is left to tell when that thread dies."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from stagexec.record.guard import guarded

_last: dict[int, Turn] = {}
"""By thread."""


class Turn:
    """One call of `PromptExecutor.execute`."""

    __slots__ = ("executor", "prompt_id", "returned")

    def __init__(self, executor: Any, prompt_id: str) -> None:
        self.executor = weakref.ref(executor)
        self.prompt_id = prompt_id
        self.returned = False


@guarded
def begin(executor: Any, prompt_id: Any) -> None:
    """An executor takes up a prompt on the calling thread."""
    _last[threading.get_ident()] = Turn(executor, str(prompt_id))


@guarded
def returned() -> None:
    """It has come back from it."""
    last = _last.get(threading.get_ident())
    if last is not None:  # a node may have asked the queue for a prompt meanwhile
        last.returned = True


def over() -> Turn | None:
    """The thread asks for its next prompt, or dies: its last turn, which is forgotten."""
    return _last.pop(threading.get_ident(), None)
