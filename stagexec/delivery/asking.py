"""Ask a disk something on a run's way: a disk that gives no answer holds the run up for a moment only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

WAIT_S = 1.0
MOST_HANGING = 4
"""So many questions may be without an answer; while they are, no further one is asked."""

T = TypeVar("T")

_lock = threading.Lock()
_hanging = 0


def ask(
    work: Callable[[], T],
    otherwise: T,
    wait_s: float | None = None,
    late: Callable[[T], None] = lambda _: None,
) -> T:
    """What `work` gives on a thread of its own, or `otherwise` where it gives nothing in time.

    Raises what `work` raises. `late` gets an answer that came too late.
    """
    global _hanging
    with _lock:
        if _hanging >= MOST_HANGING:
            return otherwise
        _hanging += 1
    question = _Question(work, late)
    try:
        threading.Thread(target=question.put, name="stagexec-ask", daemon=True).start()
    except RuntimeError:  # the system gives no more threads
        question.over()
        return otherwise
    if not question.answer_within(WAIT_S if wait_s is None else wait_s):
        return otherwise
    if question.error is not None:
        raise question.error
    found: T = question.answer
    return found


class _Question:
    def __init__(self, work: Callable[[], Any], late: Callable[[Any], None]) -> None:
        self.answer: Any = None
        self.error: Exception | None = None
        self._work, self._late = work, late
        self._answered = threading.Event()
        self._lock = threading.Lock()
        self._given_up = False

    def put(self) -> None:
        """On the thread that the disk may hold."""
        try:
            self.answer = self._work()
        except Exception as error:  # noqa: BLE001 (raised where the answer is waited for)
            self.error = error
        finally:
            self.over()
        with self._lock:
            self._answered.set()
            too_late = self._given_up
        if too_late and self.error is None:
            self._late(self.answer)

    def over(self) -> None:
        """It hangs no longer."""
        global _hanging
        with _lock:
            _hanging -= 1

    def answer_within(self, wait_s: float) -> bool:
        """Wait so long for the answer."""
        self._answered.wait(wait_s)
        with self._lock:
            self._given_up = not self._answered.is_set()
            return not self._given_up
