"""What is played, drawn from a seed: (seed, number) is the same scene whatever else is played beside it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Work:
    """One prompt: what it does, for how long, and when it is posted (s after the host is ready)."""

    kind: str
    seconds: float
    at_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.seconds:.2f} s"


@dataclasses.dataclass(frozen=True)
class Scene:
    """Prompts, perhaps an injury, and a kill.

    The kill comes `delay_s` after the `moment`. An injury begins `injury_at_s` after the host is ready and is
    healed after `injury_s`; the kill then comes after the host had time to recover, but for injuries that are
    not healed (`*_kill`).
    """

    seed: int
    number: int
    works: tuple[Work, ...]
    moment: str
    delay_s: float
    kill: str
    injury: str | None = None
    injury_at_s: float = 0.0
    injury_s: float = 0.0
    again: bool = False

    def __str__(self) -> str:
        works = ", ".join(map(str, self.works)) or "no prompt"
        injury = ""
        if self.injury is not None:
            injury = f" | {self.injury} at {self.injury_at_s:.2f} s for {self.injury_s:.2f} s"
        end = f"kill -9 of {self.kill}, {self.delay_s * 1000:.0f} ms after: {self.moment}"
        return f"#{self.number}: {works}{injury} | {end}{' | started again' if self.again else ''}"

    @property
    def kind(self) -> str:
        """What the scene is counted under."""
        return self.injury or f"killed: {self.moment}"


KILLS = ("process", "process", "group", "all")
"""Whom a kill meets: the process, its group, or every process that it began too, as when a container ends."""

MOMENTS = ("any", "answered", "answered", "holding", "holding", "delivering", "birth", "closed")

HOLDS = ("hold_sleep", "hold_pattern")
"""Nodes that keep the interpreter's lock for their whole time, in C."""

NEED_SHIM = ("full", "full_kill", "read_only", "broken", "stale", "slow", "wall_step", "suspend")
"""Injuries of the fault layer."""

FILES = ("gone", "ledger_gone", "replaced", "truncated", "moved")
"""Injuries of the journal's file by another program."""

OTHERS = ("stop", "stop_kill", "close_ours", "close_all")

INJURIES = (*NEED_SHIM, "full", "full_kill", *FILES, *OTHERS)

NOT_HEALED = ("full_kill", "stop_kill")


def draw(seed: int, number: int) -> Scene:
    """The scene of that number."""
    source = random.Random(f"{seed}:{number}")
    if source.random() < 0.62:
        return _killed(source, seed, number)
    return _injured(source, seed, number, source.choice(INJURIES))


def draw_injured(seed: int, number: int, injury: str) -> Scene:
    """A scene of that number with a given injury."""
    return _injured(random.Random(f"{seed}:{number}:{injury}"), seed, number, injury)


def draw_killed(seed: int, number: int, moment: str) -> Scene:
    """A scene of that number in which a kill comes at a given moment."""
    return _killed(random.Random(f"{seed}:{number}:{moment}"), seed, number, moment)


def _killed(source: random.Random, seed: int, number: int, moment: str | None = None) -> Scene:
    moment = moment or source.choice(MOMENTS)
    works = list(_some(source, source.randint(0 if moment == "birth" else 1, 5)))
    delay = source.uniform(0.0, 0.9)
    if moment == "answered":
        delay = source.uniform(0.0, 0.05)
    elif moment == "birth":
        delay = source.uniform(0.0, 0.4)
    elif moment == "holding":
        hold = Work(source.choice(HOLDS), source.uniform(1.5, 4.0), source.uniform(0.0, 0.3))
        before = works[:2] if source.random() < 0.4 else []
        works = [*before, hold, *_some(source, source.randint(1, 3))]
        delay = source.uniform(0.0, hold.seconds * 0.9)
    elif moment == "delivering":
        works = [Work("deliver", source.uniform(0.2, 1.0), source.uniform(0.0, 0.1)), *works[:2]]
        delay = source.uniform(0.0, 0.08)
    elif moment == "closed":
        works = [Work("quick", 0.0, 0.0), *works[:2]]
        delay = source.uniform(0.0, 0.06)
    kill = source.choice(KILLS)
    return Scene(seed, number, tuple(works), moment, delay, kill, again=source.random() < 0.25)


def _injured(source: random.Random, seed: int, number: int, injury: str) -> Scene:
    works = tuple(_some(source, source.randint(2, 5), spread=0.9))
    at, last = source.uniform(0.05, 0.7), source.uniform(0.2, 1.6)
    if injury in ("stop", "stop_kill"):
        last = source.choice((0.6, 2.0, 2.5))
    if injury in (*FILES, "close_ours", "close_all"):
        last = 0.0
    return Scene(
        seed, number, works, "injury over", source.uniform(0.0, 0.2), source.choice(KILLS), injury, at, last,
        source.random() < 0.25,
    )  # fmt: skip


def _some(source: random.Random, count: int, spread: float = 0.4) -> Sequence[Work]:
    kinds = ("quick", "steps", "steps", "deliver", "fail", "sleep")
    return [
        Work(source.choice(kinds), source.uniform(0.05, 0.8), source.uniform(0.0, spread))
        for _ in range(count)
    ]
