"""Benches of a machine that drifts, without servers: the real runner makes the timetable, numpy the times.

The load of a machine wanders as an Ornstein-Uhlenbeck process (logarithm of the speed; standard deviation,
and the time in which it forgets), each launch of a server is a little faster or slower than the last, and so
is each run. Of each simulated bench it is asked whether it shows a difference between arms that are all
alike, or one that was planted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stagexec.bench import launches, plan, results, runner, stats, tables
from tests.bench.fake_lab import PROMPT, FakeLab, FakeSession

DRIFTS = {"3%/600 s": (0.03, 600.0), "10%/300 s": (0.10, 300.0), "35%/180 s": (0.35, 180.0)}
LAUNCH_SD = 0.02
RUN_SD = 0.02


@dataclass(frozen=True)
class Pace:
    """Seconds that a launch takes until the server answers, and a run."""

    launch: float = 15.0
    run: float = 4.0


class ClockedLab(FakeLab):
    """A scripted lab with a clock: launches and runs take their time, and each run knows when it was."""

    def __init__(self, pace: Pace, fits: bool) -> None:
        super().__init__(noise=0.0, fits=fits)
        self.pace, self.now = pace, 0.0

    def open(self, *words: Any) -> tuple[ClockedSession, dict[str, Any]]:
        session, facts = super().open(*words)
        self.now += self.pace.launch
        return ClockedSession(self, session.arm, session.fresh, session.cache_none), facts


class ClockedSession(FakeSession):
    """One server of it."""

    lab: ClockedLab

    def result(self, prompt_id: str, seconds: float) -> runner.Observed:
        observed = super().result(prompt_id, seconds)
        observed.detail["accepted_wall"] = self.lab.now + self.lab.pace.run / 2
        self.lab.now += self.lab.pace.run
        return observed


@dataclass(frozen=True)
class Contrast:
    """What one verdict is about: runs of an arm, runs of the reference, and which pairs are one measure."""

    name: str
    ours: list[list[int]]
    theirs: list[list[int]]
    """For each measure, indices of the runs whose mean logarithm is compared."""


@dataclass(frozen=True)
class Timetable:
    """When each counted run of a bench is made and on which launch, and the verdicts that come of them."""

    times: np.ndarray
    sessions: np.ndarray
    arms: list[str]
    contrasts: list[Contrast]
    family: int


def timetable(wanted: plan.Plan, fits: bool, pace: Pace | None = None) -> Timetable:
    """The plan as the runner would carry it out where all its arms are available."""
    bare = [msgspec.structs.replace(arm, active=[], edits=[]) for arm in wanted.arm]
    quality = msgspec.structs.replace(wanted.quality, compare=False)
    wanted = msgspec.structs.replace(wanted, arm=bare, quality=quality)
    with tempfile.TemporaryDirectory() as base:
        opened = results.create(Path(base) / "r", wanted, PROMPT, {"machine": {}})
        runner.Bench(wanted, ClockedLab(pace or Pace(), fits), opened).run()
        found = tables.Tables(opened)
    counted = [run for run in opened.runs if run["role"] == "counted"]
    number = {run["run_id"] + run["unit"] + run["position"] + str(run["session"]): n
              for n, run in enumerate(counted)}  # fmt: skip

    def place(run: dict[str, Any]) -> int:
        return number[run["run_id"] + run["unit"] + run["position"] + str(run["session"])]

    contrasts = [one for c in found.comparisons if (one := _contrast(found, c, place)) is not None]
    contrasts += _effects(found, place)
    return Timetable(
        np.array([run["accepted_wall"] for run in counted]),
        np.array([run["session"] for run in counted]),
        [run["arm"] for run in counted],
        contrasts,
        found.family,
    )


def _contrast(found: tables.Tables, one: tables.Comparison, place: Any) -> Contrast | None:
    unit = next(unit for unit in found.plan.unit if unit.name == one.unit)
    a, b = (found.good(unit, one.position, name) for name in (one.arm, one.reference))
    pairs = sorted(set(a) & set(b))
    if not pairs:
        return None
    groups = launches.blocks(([a[p] for p in pairs], [b[p] for p in pairs]))
    sides = [[[place(side[pairs[i]]) for i in group] for group in groups] for side in (a, b)]
    return Contrast(f"{one.unit} {one.position} {one.arm}", *sides)


def _effects(found: tables.Tables, place: Any) -> Iterator[Contrast]:
    """The main effects of a factorial plan, as `stagexec.bench.effects` makes them."""
    for unit in found.plan.unit:
        levels = {tuple(sorted(arm.levels.items())): arm.name for arm in found.plan.arms_of(unit)}
        for factor in {name for arm in found.plan.arm for name in arm.levels}:
            names = list(dict.fromkeys(arm.levels[factor] for arm in found.plan.arm))
            for level in names[1:]:
                sides: tuple[list[Any], list[Any]] = ([], [])
                for key, arm in levels.items():
                    if dict(key)[factor] == level:
                        twin = levels[tuple(sorted({**dict(key), factor: names[0]}.items()))]
                        for side, name in zip(sides, (arm, twin), strict=True):
                            side.append(found.good(unit, "", name))
                pairs = range(found.plan.measures_of(unit))
                ours, theirs = ([[place(runs[p]) for runs in side] for p in pairs] for side in sides)
                yield Contrast(f"{unit.name} {factor} {level}", ours, theirs)


def logs(
    table: Timetable,
    drift: tuple[float, float],
    benches: int,
    rng: np.random.Generator,
    effect: dict[str, float] | None = None,
    launch_sd: float = LAUNCH_SD,
) -> np.ndarray:
    """(benches, runs): the logarithm of each run's time. `effect`: arm -> what is planted in it."""
    size, memory = drift
    order = np.argsort(table.times, kind="stable")
    wander = np.empty((benches, len(order)))
    now, level = table.times[order[0]], rng.normal(0, size, benches)
    for index in order:
        keep = np.exp(-(table.times[index] - now) / memory)
        level = keep * level + size * np.sqrt(1 - keep**2) * rng.normal(size=benches)
        wander[:, index], now = level, table.times[index]
    launch = rng.normal(0, launch_sd, (benches, table.sessions.max() + 1))
    planted = np.array([(effect or {}).get(arm, 0.0) for arm in table.arms])
    return wander + launch[:, table.sessions] + rng.normal(0, RUN_SD, wander.shape) + planted


def measures(contrast: Contrast, times: np.ndarray) -> np.ndarray:
    """(benches, measures): the log ratio of each measure."""
    sides = (contrast.ours, contrast.theirs)
    ours, theirs = (np.stack([times[:, group].mean(axis=1) for group in side], axis=1) for side in sides)
    return ours - theirs


def shown(ratios: np.ndarray, family: int) -> np.ndarray:
    """(benches,): which the two tests show, as in `stats.paired_ratio` before its interval has a say."""
    from scipy import stats as tests

    count, level = ratios.shape[1], stats.level(family)
    if count < stats.LEAST_PAIRS:
        return np.zeros(len(ratios), dtype=bool)
    p = np.asarray(tests.ttest_1samp(ratios, 0.0, axis=1).pvalue)
    if count >= stats.SIGN_FLIP_FROM:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
        seen = np.abs(ratios.sum(axis=1))[:, None] * (1 - 1e-9)
        flip = (np.abs(ratios @ signs.T) >= seen).mean(axis=1)
        least = 2 / 2**count
        p = np.where((least > level) & (flip <= least * (1 + 1e-9)), p, np.maximum(p, flip))
    return np.asarray(p <= level)


def loud(table: Timetable, times: np.ndarray) -> np.ndarray:
    """(benches,): which show any difference at all."""
    each = [shown(measures(one, times), table.family) for one in table.contrasts]
    return np.any(each, axis=0)


def exact(ratios: Sequence[float], seed: int, family: int) -> str:
    """The verdict of the bench's own statistics on these log ratios."""
    found = stats.paired_ratio([float(np.exp(one)) for one in ratios], [1.0] * len(ratios), seed, family)
    return found.shown if found else "not shown"
