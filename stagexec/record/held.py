"""The time of a run that has been executed: it stands still while nothing is done that is the run's work.

The host collects its whole heap after a prompt, which stops the thread that checks the run's files; and a
check may have to wait for a thread of ours. Neither is in the run: what is checked afterwards is told that
much earlier. How much it was is filed with the run's end (`held_ns`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagexec.record import after, clock, pauses


class Held:
    """The clock of one executed run. All are called under the run's `closing` lock."""

    __slots__ = ("_frozen_ns", "_more_ns", "_over_ns", "start_ns")

    def __init__(self) -> None:
        self.start_ns = clock.now_ns()
        self._more_ns = self.start_ns - pauses.going_ns()
        self._frozen_ns: int | None = None
        self._over_ns: int | None = None

    def now_ns(self) -> int:
        """The run's own time: the process's monotonic clock less all that the run was held up."""
        frozen = self._frozen_ns
        return pauses.going_ns() + self._more_ns if frozen is None else frozen

    def hold(self) -> None:
        """From now on the run waits for what is no work of its."""
        if self._frozen_ns is None:
            self._frozen_ns = self.now_ns()

    def go(self) -> None:
        """It does so no longer."""
        if self._frozen_ns is not None:
            self._more_ns = self._frozen_ns - pauses.going_ns()
            self._frozen_ns = None

    def waits(self, waiting: bool, counted: bool) -> int:
        """Hold, or go on; in the time that was held too if it is `counted` after all. Gives the own time."""
        if waiting:
            self.hold()
        elif counted:
            self._frozen_ns = None
        else:
            self.go()
        return self.now_ns()

    def is_over(self, with_files: bool) -> None:
        """All is checked: the run ends now, or, where it has no files, as it was filed."""
        self._over_ns = self.now_ns() if with_files else self.start_ns

    def end_ns(self) -> int:
        """When the run ended, or ends if all of it is over now."""
        return self.now_ns() if self._over_ns is None else self._over_ns


def begin(run: Any) -> Held:
    """The clock of `run`, which has just been executed and filed by the host."""
    if run.held is None:
        run.held = Held()
    found: Held = run.held
    return found


def aside(run: Any, what: str, work: Callable[[], Any]) -> None:
    """Do a work of ours for an executed run, on the thread that executed it, outside of the run's time."""
    held = begin(run)
    start_ns = clock.now_ns()
    with run.closing:
        held.hold()
    try:
        work()
    finally:
        with run.closing:
            held.go()
        after.file(run.run_id, what, start_ns, clock.now_ns())


def waits(run: Any, waiting: bool) -> None:
    """From now on an executed run waits for a thread of ours, or does so no longer."""
    with run.closing:
        held = begin(run)
        if waiting:
            held.hold()
        else:
            held.go()


def over(run: Any, with_files: bool) -> None:
    """Nothing is left to check of an executed run."""
    with run.closing:
        begin(run).is_over(with_files)


def end_of(run: Any) -> tuple[int, int | None]:
    """(when a run that is being closed ended, by how much it had been held up by then, in ns).

    The second is None of one that was not executed.
    """
    if run.held is None:
        return clock.now_ns(), None
    end_ns = run.held.end_ns()
    return end_ns, clock.now_ns() - end_ns
