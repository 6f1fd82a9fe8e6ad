"""Does the ledger of a run add up? Its segments against times that other events of the journal tell."""

from __future__ import annotations

from typing import Any

from stagexec.answers.words import human
from stagexec.reading import events
from stagexec.reading.runs import Run

MOST = 5
"""So many problems of one kind are told one by one."""


def proof(run: Run) -> dict[str, Any]:
    """{sum_ns, accepted_ns, finished_ns, says, problems}: `accepted_ns` is the time of `run_accepted`,
    `finished_ns` what `run_closed` tells; None without such an event. Times in ns of the process's clock.
    """
    accepted = run.accepted.ts_mono_ns if run.accepted else None
    accepted = None if accepted == events.NO_TIME else accepted
    finished = run.closed.finished_ns if run.closed else None
    added = run.segments.total_ns()
    problems = [*_joints(run), *_bounds(run, accepted, finished, added)]
    return {
        "sum_ns": added,
        "accepted_ns": accepted,
        "finished_ns": finished,
        "says": _says(run, accepted, finished, added),
        "problems": problems,
    }


def _says(run: Run, accepted: int | None, finished: int | None, added: int) -> str:
    whole = f"sum of {len(run.segments)} segments {added} ns"
    if accepted is None or finished is None:
        return f"{whole} ({human(added)}); no event tells when the run ended, so nothing checks the sum"
    return f"{whole} = accepted → finished {finished - accepted} ns ({human(added)})"


def _joints(run: Run) -> list[str]:
    """Gaps, overlaps, and segments that end before they begin."""
    rows, found = run.segments, []
    for at, (start, end) in enumerate(zip(rows.start_ns, rows.end_ns, strict=True)):
        if end < start:
            found.append(f"segment {at + 1} ({rows.stage[at]}) ends {start - end} ns before it begins")
        if not at:
            continue
        moved = start - rows.end_ns[at - 1]
        if moved > 0:
            found.append(f"a gap of {moved} ns before segment {at + 1} ({rows.stage[at]})")
        elif moved < 0:
            found.append(f"segment {at + 1} ({rows.stage[at]}) overlaps the one before it by {-moved} ns")
    more = len(found) - MOST
    return found if more <= 0 else [*found[:MOST], f"and {more} more such places"]


def _bounds(run: Run, accepted: int | None, finished: int | None, added: int) -> list[str]:
    rows, found = run.segments, []
    if not len(rows):
        return ["the run is closed and has no segments"] if finished is not None else []
    if accepted is not None and rows.start_ns[0] != accepted:
        found.append(f"the first segment begins {rows.start_ns[0] - accepted} ns after the run was accepted")
    if finished is not None and rows.end_ns[-1] != finished:
        found.append(f"the last segment ends {finished - rows.end_ns[-1]} ns before the run finished")
    if accepted is not None and finished is not None and added != finished - accepted:
        found.append(
            f"the segments sum up to {added} ns, and accepted → finished is {finished - accepted} ns: "
            f"{finished - accepted - added} ns are not accounted for"
        )
    written = run.closed.ts_mono_ns if run.closed else events.NO_TIME
    if finished is not None and events.NO_TIME != written < finished:
        found.append(f"the run finished {finished - written} ns after its end was written")
    told = run.closed.segment_count if run.closed else None
    if told is not None and told != len(rows):
        found.append(f"{told} segments were written, and {len(rows)} are there")
    if run.closed is not None and run.closed.accepted_ns not in (None, accepted) and accepted is not None:
        found.append(f"the run's end tells another time of acceptance: {run.closed.accepted_ns} ns")
    return found
