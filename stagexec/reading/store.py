"""All runs of a ledger, and how a person names one of them."""

from __future__ import annotations

import pathlib
import re
import time

from stagexec.reading import alive, outside, rows
from stagexec.reading.fold import Alive, fold
from stagexec.reading.journal import Problem, sources
from stagexec.reading.runs import Run

LAST = re.compile(r"last(?:~(\d+))?\Z")


class NoSuchRun(LookupError):
    """Nothing, or more than one run, answers to a name; the text says which."""


class Store:
    """The runs of one ledger, oldest first, and what could not be read of it."""

    def __init__(self, runs: list[Run], problems: list[Problem]) -> None:
        self.runs = runs
        self.problems = problems

    def find(self, name: str) -> Run:
        """The run named by its id, a unique prefix of it, a prompt_id, `last` or `last~N`.

        Raises NoSuchRun with a one-line text.
        """
        if not self.runs:
            raise NoSuchRun("the ledger has no runs yet")
        counted = LAST.match(name)
        if counted:
            back = int(counted[1] or 0)
            if back >= len(self.runs):
                raise NoSuchRun(f"{name}: the ledger has only {len(self.runs)} runs")
            return self.runs[-1 - back]
        found = [r for r in self.runs if name in (r.run_id, r.prompt_id)]
        if not found and name:
            found = [r for r in self.runs if r.run_id.startswith(name)]
        if not found:
            raise NoSuchRun(f"no run has the id, id prefix or prompt_id {name!r}")
        if len(found) > 1:
            some = ", ".join(r.run_id for r in found[:5]) + (", …" if len(found) > 5 else "")
            raise NoSuchRun(f"{name!r} names {len(found)} runs: {some}")
        return found[0]


def load(ledger: pathlib.Path, now_wall_ns: int | None = None, is_alive: Alive = alive.is_alive) -> Store:
    """Read every journal of `ledger`. `now_wall_ns`: ns since 1970, by default now."""
    now = time.time_ns() if now_wall_ns is None else now_wall_ns
    runs: list[Run] = []
    problems: list[Problem] = []
    for source in sources(ledger):
        runs += fold(source, now, is_alive)
        problems += source.problems
    outside.attach(ledger, runs)
    # Runs without an anchor pair have no place in time: they come first, so that `last` is a known one.
    runs.sort(key=lambda run: rows.accepted_wall_ns(run) or 0)
    return Store(runs, problems)
