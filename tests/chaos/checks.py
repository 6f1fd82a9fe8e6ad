"""What must hold after a scene, read from the ledger by readers that know nothing of the scene."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stagexec.reading import audit, events, rows, store
from stagexec.reading.journal import sources
from stagexec.reading.runs import Run
from tests.chaos.mini_host import content_of
from tests.chaos.played import Loss, Played

EVENTS_NS = 50_000_000
TIME_NS = 1_000_000_000
MARGIN_NS = 2_000_000
"""Between the end of a segment and the witness's record of it."""

LATE_NS = 250_000_000
"""A process that waits for the end of another may be woken so late on a busy machine."""

DONE_NS = 100_000_000
"""A run that was closed so long before the kill must be told as closed."""

TORN = {"torn_last"}
"""A last line that a kill cut is normal."""

HOSTILE = "pack.hostile:"
"""In the place of a fault: a function that a hostile node put in place of Python's raised under us."""

COMMAND = (sys.executable, "-m", "stagexec")


def losses(played: Played) -> list[Loss]:
    """Everything that the contract promises of this scene and that is not so."""
    found: list[tuple[str, str]] = [("stuck", text) for text in played.troubles]
    loaded = store.load(played.ledger)
    by_prompt: dict[str | None, list[Run]] = {}
    for run in loaded.runs:
        by_prompt.setdefault(run.prompt_id, []).append(run)
    allowed = TORN | played.allowed
    found += [
        ("unreadable", f"{problem.kind} in line {problem.line}: {problem.what}")
        for problem in loaded.problems
        if problem.kind not in allowed
    ]
    found += _presence(played, by_prompt)
    for posted in played.posted:
        for run in by_prompt.get(posted.prompt_id, ()):
            if posted.exact:
                found += [("inexact", f"{posted.kind}: {text}") for text in inexact(run)]
            if played.killed_ns and posted.exact and pid_of(run) == played.pid:
                found += [
                    ("wrong_end", f"{posted.kind}: {text}") for text in _end(played, posted.closed_ns, run)
                ]
                if played.times and run.outcome == "lost":
                    found += _time(played, run)
    found += [("audit", text) for text in _audit(played, by_prompt)]
    if played.times and played.killed_ns:
        found += _events(played)
    found += list(_files(played.output))
    return [Loss(played.name, kind, what) for kind, what in found]


def pid_of(run: Run) -> int | None:
    """The process that a run was in."""
    return run.process.start.pid if run.process.start is not None else None


def _presence(played: Played, by_prompt: dict[str | None, list[Run]]) -> Iterator[tuple[str, str]]:
    for posted in played.accepted:
        if posted.must and posted.prompt_id not in by_prompt:
            before = ""
            if played.killed_ns and posted.answered_ns:
                before = (
                    f", answered {(played.killed_ns[0] - posted.answered_ns) / 1e6:.0f} ms before the kill"
                )
            yield "accepted_missing", f"{posted.kind}{before}"
    known = {posted.prompt_id for posted in played.posted}
    for prompt_id, runs in by_prompt.items():
        if prompt_id not in known:
            yield "invented", f"{len(runs)} runs of the prompt {prompt_id}, which was never sent"
        elif len(runs) > 1:
            yield "invented", f"{len(runs)} runs of one prompt"


def inexact(run: Run) -> Iterator[str]:
    """What does not add up in one run."""
    shown = rows.detail(run)
    segments = shown["segments"]
    total = sum(one["end_ns"] - one["start_ns"] for one in segments)
    if total != shown["total_ns"] or sum(shown["stages"].values()) != total:
        yield f"its segments add up to {total} ns, its total is {shown['total_ns']} ns"
    edges = [one["end_ns"] for one in segments]
    if [one["start_ns"] for one in segments[1:]] != edges[:-1]:
        yield "its segments do not join"
    if run.closed is not None and run.closed.finished_ns is not None and run.closed.accepted_ns is not None:
        took = run.closed.finished_ns - run.closed.accepted_ns
        if took != total:
            yield f"its segments add up to {total} ns, it took {took} ns"


def _end(played: Played, closed_ns: int | None, run: Run) -> Iterator[str]:
    assert played.killed_ns is not None
    ran_ns = min(played.killed_ns[0], played.awake_ns or played.killed_ns[0])
    ended = closed_ns is not None and closed_ns < ran_ns - DONE_NS
    if ended and run.outcome in (None, "lost"):
        yield f"it had ended, and is told as {run.outcome} ({run.cause})"
    if run.outcome is None:
        yield "its process is gone, and it is told as under way"
    if run.outcome == "lost" and not played.planned and run.cause not in ("process_died", "worker_died"):
        yield f"its process was killed, and the cause is {run.cause}"
    if run.outcome == "lost" and played.planned and run.cause != "process_stopped":
        yield f"its process was asked to end, and the cause is {run.cause}"


def _time(played: Played, run: Run) -> Iterator[tuple[str, str]]:
    assert played.killed_ns is not None
    assert run.finished_ns is not None
    early = played.killed_ns[0] - run.finished_ns
    if early > TIME_NS:
        yield "time_lost", f"{early / 1e9:.3f} s before the kill are in no run"
    if run.finished_ns > played.killed_ns[1] + LATE_NS:
        late = run.finished_ns - played.killed_ns[1]
        yield "inexact", f"a run ends {late / 1e6:.0f} ms after its process was gone"


def last_boundary_ns(ledger: Path, pid: int | None) -> int:
    """The latest moment that the journal of a process itself tells of a segment's beginning or end, ns."""
    last = 0
    for source in sources(ledger):
        if f"-{pid}-" not in source.name:
            continue
        for _, _, event in source.read():
            if isinstance(event, events.Segments):
                last = max([last, *event.end_ns, event.open.start_ns if event.open else 0])
            elif isinstance(event, events.Heartbeat):
                last = max([last, *(one.start_ns for one in event.open)])
            elif isinstance(event, events.RunClosed):
                last = max(last, event.finished_ns or 0)
            elif isinstance(event, events.RunStarted):
                last = max(last, event.ts_mono_ns)
    return last


def _events(played: Played) -> Iterator[tuple[str, str]]:
    """The segments that ended and are not in the journal: the time they span, less the machine's delay."""
    known = last_boundary_ns(played.ledger, played.pid)
    lost = [at for at in played.events_ns if at > known + MARGIN_NS]
    if not lost:
        return
    span = max(lost) - min(lost)
    if span > EVENTS_NS + played.late_ns:
        late = f"the machine was late by {played.late_ns / 1e6:.1f} ms"
        yield "events_lost", f"{len(lost)} events of {span / 1e6:.1f} ms ({late})"


def _audit(played: Played, by_prompt: dict[str | None, list[Run]]) -> Iterator[str]:
    excused = {
        run.run_id for one in played.posted if not one.exact for run in by_prompt.get(one.prompt_id, ())
    }
    for found in audit.audit(played.ledger):
        if found.kind == "fault" and HOSTILE in found.what:
            continue
        if found.severity == "error" and found.kind not in played.allowed and found.run_id not in excused:
            yield f"{found.kind}: {found.what}"


def _files(output: Path) -> Iterator[tuple[str, str]]:
    """Files that our nodes named, and the user's own, must hold what was meant for them."""
    for file in output.glob("deliver-*.bin"):
        found = file.read_bytes()
        whole = content_of(file.name, len(found))
        if len(found) < 4096 or hashlib.sha256(found).digest() != hashlib.sha256(whole).digest():
            yield "partial_file", f"{file.name} has {len(found)} bytes that are not what was delivered"
    user = output / "user.txt"
    if user.exists() and set(user.read_text(encoding="utf-8", errors="replace").splitlines()) - {
        "the user's"
    }:
        yield "foreign_write", f"{user.name} holds lines that are not the user's"


def printed_runs(ledger: Path, env: dict[str, str] | None = None, *more: str) -> list[dict[str, Any]]:
    """`stagexec runs --json` of a new process. Raises AssertionError when it fails."""
    words = [*COMMAND, "runs", "--ledger", str(ledger), "--json", *more]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def command_losses(ledger: Path, plays: list[Played]) -> list[Loss]:
    """What `stagexec runs` of a new process lacks of the scenes whose journals lie in `ledger`."""
    try:
        told = Counter(row["prompt_id"] for row in printed_runs(ledger))
    except (AssertionError, subprocess.TimeoutExpired, ValueError) as problem:
        return [Loss(plays[0].name, "unreadable", f"`stagexec runs` failed: {str(problem)[:500]}")]
    return [
        Loss(played.name, "accepted_missing", f"{one.kind}: {told[one.prompt_id]} rows of `stagexec runs`")
        for played in plays
        for one in played.accepted
        if one.must and told[one.prompt_id] != 1
    ]
