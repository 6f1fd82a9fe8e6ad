"""The partition of one run's main lane into segments: a stack of stages, exactly one open.

The hot path is `enter` and `leave`: no dictionaries, no JSON, no locks, no I/O. Every boundary is one
reading of the clock that ends one segment and begins the next, so the sum is exact by construction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from stagexec.record.guard import note

Open = tuple[str, "str | None", int, "int | None", "str | None"]
"""(stage, part, start_ns, visit, seam) of the open segment; replaced whole: other threads read it whole."""

Segment = tuple[Open, int]
"""(what was open, end_ns)."""

LEAST_NS = 1_000_000
"""A part of the loop's own time that is named afterwards took at least this."""

NO_DEPTH = -1
"""What `enter` gives back when it faulted: `leave` then does nothing."""


class Ledger:
    """Segments of one run. Only the thread that executes the run may call `enter`, `leave`, `switch`."""

    __slots__ = ("clock", "open", "pending", "stack", "visit")

    def __init__(self, stage: str, start_ns: int, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.open: Open | None = (stage, None, start_ns, None, None)
        self.stack: list[Open] = []
        self.pending: deque[Segment] = deque()
        self.visit: int | None = None

    def enter(self, stage: str, part: str | None = None, seam: str | None = None) -> int:
        """Close the open segment and open one of `stage`. Gives the depth that `leave` wants."""
        try:
            stack = self.stack
            open_ = self.open
            if open_ is None:
                return NO_DEPTH  # closed already: a straggler after the run's end
            now = self.clock()
            self.pending.append((open_, now))
            self.open = (stage, part, now, self.visit, seam)
            stack.append(open_)
            return len(stack)
        except Exception as error:
            note("Ledger.enter", error)
            return NO_DEPTH

    def enter_again(self, stage: str, part: str | None, seam: str, within_ns: int) -> int:
        """As `enter`. Where this seam's last segment ended at most `within_ns` ago and no other came between,
        that one goes on. For calls by the thousand; with device events each is a segment of its own."""
        try:
            open_, pending = self.open, self.pending
            if type(self) is Ledger and open_ is not None and pending:
                last, end = pending[-1]
                same = last[4] == seam and last[0] == stage and last[3] == self.visit and open_[2] == end
                if same and self.clock() - end <= within_ns:
                    pending.pop()  # the writer may have taken it: then it is empty, which raises
                    self.stack.append(open_)
                    self.open = last
                    return len(self.stack)
        except IndexError:  # taken by the writer: it is closed
            return self.enter(stage, part, seam)
        except Exception as error:
            note("Ledger.enter_again", error)
        return self.enter(stage, part, seam)

    def leave(self, depth: int) -> None:
        """Close the segment that `enter` opened at `depth` and reopen the stage that was open before."""
        try:
            stack = self.stack
            open_ = self.open
            if depth == NO_DEPTH or open_ is None:
                return
            if len(stack) != depth and not self._unwind(depth):
                return
            now = self.clock()
            before = stack.pop()  # before anything is changed: it raises when depth 0 is left
            self.pending.append((open_, now))
            self.open = (before[0], before[1], now, before[3], before[4])
        except Exception as error:
            note("Ledger.leave", error)

    def switch(self, stage: str, part: str | None = None, seam: str | None = None) -> None:
        """Close the open segment and open one of `stage` in its place, at the same depth."""
        try:
            open_ = self.open
            if open_ is None:
                return
            now = self.clock()
            self.pending.append((open_, now))
            self.open = (stage, part, now, self.visit, seam)
        except Exception as error:
            note("Ledger.switch", error)

    def carve(self, part: str, since_ns: int, of_node: bool = False) -> int:
        """Name what has passed since `since_ns` of the clock as a part of `executor_overhead`; gives now.

        Nothing is named that was short, or is another stage's by now; `of_node`: unless that is the stage of
        a node which was open all the time. For what comes with every node and seldom takes long: one reading
        of the clock, and no segment of its own.
        """
        now = since_ns
        try:
            now = self.clock()
            if now - since_ns < LEAST_NS:
                return now
            open_ = self.open
            if open_ is None:
                return now
            stage, before, start, visit, seam = open_
            mine = stage == "executor_overhead" and before is None
            if not mine and not (of_node and seam is None and start <= since_ns):
                return now
            named: Open = ("executor_overhead", part, max(start, since_ns), visit, seam)
            rest = ((open_, named[2]),) if start < named[2] else ()
            self.pending.extend((*rest, (named, now)))
            self.open = (stage, before, now, visit, seam)
        except Exception as error:
            note("Ledger.carve", error)
        return now

    def rebase(self, stage: str, part: str | None, seam: str | None, now: int) -> None:
        """Make the lowest stage that is open this one from `now` on, or from when what is above it is left.

        For a run that no thread executes any more; the caller holds its `closing` lock.
        """
        try:
            open_ = self.open
            if open_ is None:
                return
            if self.stack:
                below = self.stack[0]
                self.stack[0] = (stage, part, below[2], below[3], seam)
            elif (open_[0], open_[1], open_[4]) != (stage, part, seam):
                if now > open_[2]:
                    self.pending.append((open_, now))
                self.open = (stage, part, max(now, open_[2]), open_[3], seam)
        except Exception as error:
            note("Ledger.rebase", error)

    def depth(self) -> int:
        """How many stages are suspended below the open one."""
        return len(self.stack)

    def level(self, depth: int) -> None:
        """Drop what was entered above `depth` and never left; a node that was torn out leaves such."""
        try:
            if len(self.stack) > depth:
                self.leave(depth + 1)
        except Exception as error:
            note("Ledger.level", error)

    def inside(self, seam: str) -> bool:
        """Is a segment that `seam` opened open or suspended now?"""
        open_ = self.open
        if open_ is not None and open_[4] == seam:
            return True
        return any(below[4] == seam for below in self.stack)

    def inside_any(self, seams: Collection[str]) -> bool:
        """Is a segment that one of `seams` opened open or suspended now?"""
        open_ = self.open
        if open_ is not None and open_[4] in seams:
            return True
        for below in self.stack:  # noqa: SIM110 (a generator costs more than the stack is deep)
            if below[4] in seams:
                return True
        return False

    def close(self, end_ns: int) -> None:
        """End the last segment at `end_ns`. Nothing can be entered afterwards."""
        open_ = self.open
        if open_ is None:
            return
        self.pending.append((open_, end_ns))
        self.open = None
        self.stack.clear()

    def _unwind(self, depth: int) -> bool:
        """Leaves out of order: drop what is above `depth`. False when that depth is gone already."""
        stack = self.stack
        if not 1 <= depth <= len(stack):
            note("Ledger.leave", RuntimeError(f"left depth {depth}, but only {len(stack)} is open"))
            return False
        del stack[depth:]
        return True
