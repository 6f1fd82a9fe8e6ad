"""Encoder processes that failed in a run: what decides how it ended."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from stagexec.record.run import Run


@dataclass
class ChildFailure:
    """One encoder process that failed. `stderr` holds the last lines it wrote, as far as they may be kept.

    `phase` is spawn (it never ran), open (its command, encoder or files were refused), encode (it died
    in mid-work) or close (its input had ended already). `recovered`: what it was
    to write was really written later in the same visit.
    """

    program: str
    phase: str
    exit_code: int | None
    visit: int | None
    node_id: str | None
    node_class: str | None
    disk_full: bool = False
    recovered: bool = False
    stopped_by_node: bool = False
    stderr: list[str] = field(default_factory=list)

    @property
    def cause(self) -> str:
        """encode_failed, or disk_full when that is what the process said."""
        return "disk_full" if self.disk_full else "encode_failed"

    def text(self) -> str:
        """One line for a person."""
        ended = "could not be started" if self.exit_code is None else f"ended with code {self.exit_code}"
        said = f": {self.stderr[-1]}" if self.stderr else ""
        return f"{self.program} {ended} in phase {self.phase}{said}"


_failed: weakref.WeakKeyDictionary[Run, list[ChildFailure]] = weakref.WeakKeyDictionary()


def add(run: Run, failure: ChildFailure) -> None:
    """Keep a failure with its run."""
    _failed.setdefault(run, []).append(failure)


def of_run(run: Run) -> list[ChildFailure]:
    """All failures of a run, in order."""
    return list(_failed.get(run, ()))


def of_visit(run: Run, visit: int | None) -> ChildFailure | None:
    """The last failure of a visit that nothing made good, or None."""
    found = [one for one in of_run(run) if one.visit == visit and not one.recovered]
    return found[-1] if found and visit is not None else None


def unanswered(run: Run) -> ChildFailure | None:
    """The first failure in a visit of the run that was neither made good nor brought about by its node.

    A process that another thread started need not be the run's at all: it decides nothing.
    """
    counted = (one for one in of_run(run) if one.visit is not None)
    return next((one for one in counted if not one.recovered and not one.stopped_by_node), None)
