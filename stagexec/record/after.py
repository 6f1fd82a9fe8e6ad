"""What the host does between two prompts: in no run, recorded by itself, with the runs that it delays.

When a prompt is filed and its client told, the host's worker collects its heap, empties caches, unloads what
was asked, and asks its queue again. That stretch is a phase of the worker's thread.
"""

from __future__ import annotations

import threading
from typing import Any

from stagexec.record import clock, live
from stagexec.record.guard import guarded

LEAST_NS = 5_000_000
"""What took less is not filed."""

MOST_DELAYED = 20
"""So many of the runs that waited meanwhile are named."""

COLLECTION, CLEANUP, PROFILE = "collection", "host_cleanup", "profile"

Piece = tuple[int, int]
"""(start_ns, end_ns)"""


class Phase:
    """From when the worker has filed a prompt, or got none, until it asks its queue again."""

    __slots__ = ("collections", "run_id", "since_ns")

    def __init__(self, run_id: str | None) -> None:
        self.run_id = run_id
        self.since_ns = clock.now_ns()
        self.collections: list[Piece] = []


_phases: dict[int, Phase] = {}
"""By thread."""

_last: dict[int, str] = {}
"""Thread -> the run that it filed last."""


@guarded
def begins(run_id: str) -> None:
    """The calling thread has filed a run."""
    here = threading.get_ident()
    _last[here] = run_id
    _phases[here] = Phase(run_id)


@guarded
def goes_on() -> None:
    """The calling thread asked its queue and got nothing: what it does now is still after its last run."""
    here = threading.get_ident()
    if here in _last:
        _phases[here] = Phase(_last[here])


@guarded
def ends() -> None:
    """The calling thread asks its queue for the next prompt: file what it did since it filed the last."""
    phase = _phases.pop(threading.get_ident(), None)
    if phase is None:
        return
    now = clock.now_ns()
    at = phase.since_ns
    for start, end in phase.collections:
        file(phase.run_id, CLEANUP, at, start)
        file(phase.run_id, COLLECTION, start, end)
        at = end
    file(phase.run_id, CLEANUP, at, now)


def drop() -> None:
    """The calling thread has a prompt though it did not ask: what it did meanwhile is not known."""
    _phases.pop(threading.get_ident(), None)


@guarded
def collected(start_ns: int, end_ns: int) -> None:
    """The whole heap was collected by the calling thread while no run executed."""
    here = threading.get_ident()
    phase = _phases.get(here)
    if phase is not None:
        phase.collections.append((start_ns, end_ns))
    else:
        file(next(reversed(_last.values()), None), COLLECTION, start_ns, end_ns)


@guarded
def file(run_id: str | None, what: str, start_ns: int, end_ns: int) -> None:
    """File a piece of work in no run, unless it was short. `run_id`: of the run that it followed."""
    if end_ns - start_ns < LEAST_NS:
        return
    delayed = [[one.run_id, end_ns - max(start_ns, one.accepted_ns)] for one in _waiting(end_ns)]
    live.journal_event(
        None,
        "after_run",
        source="process",
        after=run_id,
        what=what,
        start_ns=start_ns,
        end_ns=end_ns,
        delayed=delayed[:MOST_DELAYED],
    )


def _waiting(end_ns: int) -> list[Any]:
    return [one for one in live.waiting.all() if one.accepted_ns < end_ns]
