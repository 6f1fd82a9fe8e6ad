"""What a person sees while a bench runs, on standard error: a table that fills, and the time left."""

from __future__ import annotations

import statistics
import sys
import time
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape as escape_markup
from rich.table import Table

from stagexec.answers.words import human
from stagexec.printable import visible

Record = dict[str, Any]
SHOWN_LINES = 8


def escape(text: str) -> str:
    """Texts of others, made safe for rich and for the terminal."""
    return escape_markup(visible(text))


class Screen:
    """A watcher of the runner: on a terminal it redraws, else it prints a line for each event."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr, highlight=False)
        self.times: dict[tuple[str, str, str], list[int]] = {}
        self.lines: list[str] = []
        self.doing = "starting"
        self.done = self.planned = self.done_before = self.launches = 0
        self.began = time.monotonic()
        self.opening: float | None = None
        """Since when a server is being started; what that took so far, and how often."""
        self.opened_s, self.opened = 0.0, 0
        self._live: Live | None = None

    def __call__(self, name: str, facts: Record) -> None:
        """Take one event of the runner."""
        if name in ("start", "measure"):
            self.done, self.planned = facts["done"], facts["planned"]
            self.launches = facts.get("launches", 0)
            if name == "start":
                self.done_before, self.began = self.done, time.monotonic()
        elif name == "run":
            self._run(facts)
        elif name == "open":
            self.doing = f"starting a server for {facts['arm']}"
            self._opened()  # one that failed has no session of its own
            self.opening = time.monotonic()
        else:
            if name in ("session", "arm", "died"):
                self._opened()
            if (line := told(name, facts)) is not None:
                self._line(line)
        if self._live is not None:
            self._live.update(self.picture())

    def __enter__(self) -> Screen:
        if self.console.is_terminal:
            self._live = Live(self.picture(), console=self.console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def _run(self, run: Record) -> None:
        where = f"{run['unit']} {run['position']}".strip()
        self.doing = f"{where}, {run['arm']}: {run['role']} run of pair {run['pair'] + 1}"
        if run["role"] == "counted" and run["right_state"]:
            self.times.setdefault((run["unit"], run["position"], run["arm"]), []).append(run["total_ns"] or 0)
        if run["why"]:
            self._line(f"[yellow]not counted[/] {escape(where)}, {escape(run['arm'])}: {escape(run['why'])}")
        if self._live is None:
            state = run["outcome"] if not run["why"] else "not counted"
            text = (
                f"{self.doing}: {human(run['total_ns'])} {state} ({self.done}/{self.planned}, {self.left()})"
            )
            self.console.print(escape(text), soft_wrap=True)

    def _opened(self) -> None:
        """A server is ready, or was given up: what its start took is not in the pace of the measures."""
        if self.opening is not None:
            self.opened_s += time.monotonic() - self.opening
            self.opened += 1
            self.opening = None

    def _line(self, line: str) -> None:
        self.lines = [*self.lines, line][-SHOWN_LINES:]
        if self._live is None:
            self.console.print(line, soft_wrap=True)

    def left(self) -> str:
        """The time left, in words: measures at their pace so far, and launches at theirs."""
        new = self.done - self.done_before
        if not new or self.planned <= self.done:
            return "time left unknown" if self.planned > self.done else "done"
        pace = max(0.0, time.monotonic() - self.began - self.opened_s) / new
        left = pace * (self.planned - self.done) + self.launches * self.opened_s / max(1, self.opened)
        return f"{human(round(left * 1e9))} left"

    def picture(self) -> Group:
        """The table of medians so far, what is being done, and the last lines."""
        table = Table("unit", "arm", "n", "P50", box=None, pad_edge=False)
        for (unit, position, arm), values in self.times.items():
            middle = human(round(statistics.median(values)))
            table.add_row(escape(f"{unit} {position}"), escape(arm), str(len(values)), middle)
        share = self.done / self.planned if self.planned else 0.0
        bar = "█" * round(share * 40)
        progress = f"{bar:<40} {self.done}/{self.planned} measures, {self.left()}"
        return Group(table, progress, escape(self.doing), *self.lines)


def told(name: str, facts: Record) -> str | None:
    """A note of the runner as a line; None for what needs none."""
    if name == "arm":
        place = f"{facts['unit']}, {facts['arm']}"
        return f"[red]{escape(facts['status'])}[/] {escape(place)}: {escape(facts['reason'])}"
    if name == "died":
        return f"[red]server died[/] {escape(facts['unit'])}, {escape(facts['arm'])}: {escape(facts['text'])}"
    if name == "room" and not facts["fits"]:
        return f"[yellow]not side by side[/] {escape(facts['unit'])}: {escape(facts['why'])}"
    if name == "session" and facts.get("packs_not_imported"):
        return f"[yellow]not imported[/] {escape('; '.join(facts['packs_not_imported']))}"
    if name == "proof" and facts["checks"] and facts["active"]:
        by = "; ".join(f"{c['what']} by {c['evidence']}" for c in facts["checks"])
        return f"[green]active[/] {escape(facts['arm'])}: {escape(by)}"
    words = {"budget": "the plan's minutes are over", "interrupted": "interrupted", "finished": "finished"}
    return words.get(name)
