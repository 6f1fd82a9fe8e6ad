"""From raw runs to cells and comparisons: what may be pooled, what may be compared, and the verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stagexec.answers.explain import COMPLETE
from stagexec.answers.words import many
from stagexec.bench import checks, launches, stats, units
from stagexec.bench.plan import Plan, Unit
from stagexec.bench.quality import Judgement, Likeness, compare, judge
from stagexec.bench.results import Record, Results, complete

VERDICTS = ("faster", "slower", "not shown", "wrong output", "not active")
WRONG_ARTIFACTS = ("missing", "corrupt", "nonfinite", "overwritten")
OUTLIER_MADS = 5 * 1.4826
DRIFT = 0.1


class Cell(msgspec.Struct):
    """One arm in one position of one unit; `status`: `measured`, or why there are no figures. Times in ns."""

    unit: str
    position: str
    arm: str
    status: str
    reason: str | None = None
    n: int = 0
    failed: int = 0
    lost_ns: int = 0
    """Time that failed and lost runs took."""
    wrong_state: int = 0
    total: stats.Summary | None = None
    stages: dict[str, stats.Summary] = {}
    device: stats.Summary | None = None
    memory: dict[str, float] = {}
    """P50 by name, bytes."""
    energy_mj: float | None = None
    condition_id: str | None = None
    executed: list[str] = []
    cached: list[str] = []
    same_nodes: bool = True
    outcomes: dict[str, int] = {}
    artifacts: dict[str, int] = {}
    warnings: list[str] = []


class Comparison(msgspec.Struct):
    """An arm against the reference arm in one position of one unit. Ratios are arm ÷ reference."""

    unit: str
    position: str
    arm: str
    reference: str
    verdict: str
    reason: str
    ranked: bool
    pairs: int = 0
    """Independent measures: pairs of launches, or of runs where all arms share one process."""
    runs: int = 0
    """Pairs of runs in them."""
    total: stats.Ratio | None = None
    stages: dict[str, stats.Ratio] = {}
    moved_ns: dict[str, float] = {}
    """stage -> median ns of the arm minus the reference's."""
    amdahl: stats.Amdahl | None = None
    quality: Judgement | None = None
    likeness: list[Likeness] = []
    same: dict[str, bool] = {}
    """Were executed nodes, cache hits and the end of delivery the same?"""
    control: checks.Control | None = None
    adjusted: list[checks.Adjusted] = []


class Tables:
    """Everything that a report says, computed from one result folder."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.plan: Plan = results.plan
        positions = {unit.name: len(units.steps(unit.state, unit.concurrency)) for unit in self.plan.unit}
        self.measures = complete(results.runs, positions)
        self.cells: list[Cell] = []
        self.comparisons: list[Comparison] = []
        places = [(u, s.position) for u in self.plan.unit for s in units.steps(u.state, u.concurrency)]
        for unit, position in places:
            self.cells += [self._cell(unit, position, arm.name) for arm in self.plan.arms_of(unit)]
        self.family = self._family()
        """How many comparisons the bench makes: each is held to a level that all of them share."""
        for unit, position in places:
            self._position(unit, position)

    def cell(self, unit: str, position: str, arm: str) -> Cell:
        """The cell of an arm in a position of a unit; KeyError."""
        for cell in self.cells:
            if (cell.unit, cell.position, cell.arm) == (unit, position, arm):
                return cell
        raise KeyError((unit, position, arm))

    def runs(self, unit: str, position: str, arm: str) -> dict[int, Record]:
        """pair -> counted run, whatever its outcome."""
        return {
            pair: run
            for (u, a, pair), group in self.measures.items()
            if (u, a) == (unit, arm)
            for run in group
            if run["position"] == position
        }

    def _position(self, unit: Unit, position: str) -> None:
        arms = self.plan.arms_of(unit)
        reference = self.plan.reference_arm
        for arm in arms if any(arm.name == reference for arm in arms) else ():
            if arm.name != reference:
                self.comparisons.append(self._compare(unit, position, arm.name, reference))

    # --- cells ---

    def _cell(self, unit: Unit, position: str, arm: str) -> Cell:
        runs = self.runs(unit.name, position, arm)
        cell = Cell(unit.name, position, arm, *self._status(unit, arm, bool(runs)))
        mine = [r for r in self.results.runs if (r["unit"], r["arm"]) == (unit.name, arm)]
        bad = [r for r in runs.values() if r["outcome"] not in COMPLETE]
        died = [r for r in mine if r["role"] == "died"]
        cell.failed = len(bad) + len(died)
        cell.lost_ns = sum(r["total_ns"] or 0 for r in [*bad, *died])
        cell.wrong_state = sum(r["role"] == "counted" and not r["right_state"] for r in mine)
        good = [run for run in runs.values() if run["outcome"] in COMPLETE]
        cell.outcomes = _counts(r["outcome"] for r in [*runs.values(), *died])
        cell.artifacts = _counts(a["state"] for r in good for a in r["artifacts"])
        if reason := mixed(good):
            cell.status, cell.reason = "not pooled", reason
            return cell
        _fill(cell, good)
        return cell

    def _status(self, unit: Unit, arm: str, any_runs: bool) -> tuple[str, str | None]:
        """The last word on an arm; one that failed late keeps the runs it has."""
        said = [
            n for n in self.results.notes if n["kind"] == "arm" and (n["unit"], n["arm"]) == (unit.name, arm)
        ]
        last = said[-1] if said else None
        if last is not None and (not any_runs or last["status"] == "not active"):
            return last["status"], last["reason"]
        if not any_runs:
            return "not run", "the bench ended before its turn"
        return "measured", last["reason"] if last is not None else None

    # --- comparisons ---

    def _compare(self, unit: Unit, position: str, arm: str, reference: str) -> Comparison:
        ours, theirs = (self.cell(unit.name, position, name) for name in (arm, reference))
        found = Comparison(unit.name, position, arm, reference, "not shown", "", unit.ranked)
        for cell in (ours, theirs):
            if cell.status != "measured":
                word = "not active" if cell.status == "not active" and cell is ours else cell.status
                if cell is theirs:
                    word = "not shown"
                found.verdict, found.reason = word, f"{cell.arm}: {cell.reason or cell.status}"
                return found
        a, b = (self.good(unit, position, name) for name in (arm, reference))
        pairs = sorted(set(a) & set(b))
        found.pairs = found.runs = len(pairs)
        if reason := comparable([*a.values(), *b.values()]):
            found.reason = reason
            return found
        self._times(found, [a[p] for p in pairs], [b[p] for p in pairs])
        self._quality(found, [a[p] for p in pairs], [b[p] for p in pairs], ours)
        found.same = _sameness(ours, theirs, a.values(), b.values())
        return found

    def good(self, unit: Unit, position: str, arm: str) -> dict[int, Record]:
        """pair -> counted run that is complete."""
        runs = self.runs(unit.name, position, arm)
        return {pair: run for pair, run in runs.items() if run["outcome"] in COMPLETE}

    def _times(self, found: Comparison, ours: Sequence[Record], theirs: Sequence[Record]) -> None:
        if not ours:
            found.reason = "no pair of complete runs"
            return
        seed, groups = self.plan.seed, launches.blocks((ours, theirs))
        names = list(dict.fromkeys(name for run in [*theirs, *ours] for name in run["stages"]))

        def ratio(name: str, among: int) -> stats.Ratio | None:
            sides = launches.collapse(ours, theirs, groups, lambda run: _time(run, name))
            return stats.paired_ratio(*sides, seed, among)

        found.pairs, found.total = len(groups), ratio("total", self.family)
        medians: list[dict[str, float]] = []
        for side in (ours, theirs):
            each = {n: stats.summarize([r["stages"].get(n, 0) for r in side]) for n in names}
            medians.append({name: summary.p50 for name, summary in each.items() if summary})
        found.stages = {n: r for n in names if (r := ratio(n, len(names) * self.family)) is not None}
        found.moved_ns = {n: medians[0].get(n, 0.0) - medians[1].get(n, 0.0) for n in names}
        if found.total is None:
            found.reason = "no pair of complete runs"
            return
        found.verdict = found.total.shown
        found.reason = _spoken(found, found.total, stats.level(self.family))
        found.amdahl = stats.amdahl(medians[0], medians[1])
        self._checks(found, found.total, ours, theirs, groups)

    def _checks(
        self, found: Comparison, total: stats.Ratio, ours: Sequence[Record], theirs: Sequence[Record],
        groups: list[list[int]],
    ) -> None:  # fmt: skip
        """What may take the verdict back: the negative control and the load of other programs."""
        stages = self.plan.control_of(found.arm)
        if stages:
            found.control = checks.control(stages, ours, theirs, groups, total, self.plan.seed)
        found.adjusted = checks.adjusted(ours, theirs, groups, total)
        against = [one.says for one in (found.control, *found.adjusted) if one is not None and one.veto]
        if against:
            found.verdict = "not shown"
            found.reason += f"; it would be {total.shown}, but {'; '.join(against)}"

    def _family(self) -> int:
        """Comparisons and, of a factorial plan, main effects that this bench can make."""
        measured = {(c.unit, c.position, c.arm) for c in self.cells if c.status == "measured"}
        found = sum(arm != self.plan.reference_arm for _, _, arm in measured)
        levels = {pair for arm in self.plan.arm for pair in arm.levels.items()}
        effects = len(levels) - len({factor for factor, _ in levels})
        return max(1, found + effects * len(self.plan.unit))

    def _quality(
        self, found: Comparison, ours: Sequence[Record], theirs: Sequence[Record], cell: Cell
    ) -> None:
        bad = {state: cell.artifacts[state] for state in WRONG_ARTIFACTS if cell.artifacts.get(state)}
        if bad:
            told = ", ".join(f"{count} {state}" for state, count in bad.items())
            found.verdict, found.reason = "wrong output", f"delivered files: {told}"
        if not self.plan.quality.compare:
            return
        folder = self.results.folder
        found.likeness = [
            compare([folder / f for f in a["files"]], [folder / f for f in b["files"]])
            for a, b in zip(ours, theirs, strict=True)
        ]
        random = self.results.header.get("random_weights") or []
        found.quality = judge(found.likeness, self.plan.quality, random=bool(random))
        if found.likeness and not found.quality.right:
            found.verdict, found.reason = "wrong output", found.quality.why

    # --- first against second ---

    def one_time(self) -> list[dict[str, Any]]:
        """For each arm of a `first_second` unit, by stage and in total: what only the first run pays.

        Of the total the share is that of loading alone.
        """
        found = []
        for unit in self.plan.unit:
            if unit.state != "first_second":
                continue
            for arm in self.plan.arms_of(unit):
                first, second = (self.good(unit, position, arm.name) for position in ("first", "second"))
                pairs = sorted(set(first) & set(second))
                if mixed([first[p] for p in pairs]) or mixed([second[p] for p in pairs]):
                    continue
                names = dict.fromkeys(n for p in pairs for n in first[p]["stages"])
                for name in ["total", *names]:
                    sides = [[_time(side[p], name) for p in pairs] for side in (first, second)]
                    if name == "total":  # what the cache saved comes back when inputs change: loading alone
                        loads = [[_time(side[p], ONCE) for p in pairs] for side in (first, second)]
                        sides[1] = [all_ - a + b for all_, a, b in zip(sides[0], *loads, strict=True)]
                    share = stats.one_time(sides[0], sides[1], is_once=name in ("total", ONCE))
                    if share is not None:
                        row = {"unit": unit.name, "arm": arm.name, "stage": name}
                        found.append({**row, **msgspec.to_builtins(share)})
        return found


def _time(run: Record, name: str) -> float:
    value = run["total_ns"] if name == "total" else run["stages"].get(name, 0)
    return float(value)


def _counts(words: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        found[str(word)] = found.get(str(word), 0) + 1
    return found


ONCE = "model_load_residency"
"""The one stage of which a first run's excess is paid once; of another the cache may have saved it."""

HELD = ("condition_id", "startup_class", "timing", "machine", "host_version", "executor")
"""What must be equal in all runs of a cell."""
COMPARED = ("timing", "machine")
"""What must be equal in two cells that are compared: the rest may be what the arms differ in."""


def mixed(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Why these runs must not be pooled; None when they were made under one condition."""
    return _differing(runs, HELD, "runs of one arm differ in")


def comparable(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the runs of two arms must not be compared; None when they may be."""
    return _differing(runs, COMPARED, "the arms' runs differ in")


def _differing(runs: Sequence[Mapping[str, Any]], names: Sequence[str], words: str) -> str | None:
    for name in names:
        values = {json.dumps(run.get(name), sort_keys=True) for run in runs}
        if len(values) > 1:
            some = ", ".join(sorted(value[:40] for value in values)[:3])
            return f"{words} {name}: {some}"
    return None


def _fill(cell: Cell, runs: Sequence[Record]) -> None:
    cell.n = len(runs)
    totals = [float(run["total_ns"]) for run in runs]
    cell.total = stats.summarize(totals)
    for name in dict.fromkeys(name for run in runs for name in run["stages"]):
        summary = stats.summarize([float(run["stages"].get(name, 0)) for run in runs])
        if summary is not None:
            cell.stages[name] = summary
    cell.device = stats.summarize([float(r["device_ns"]) for r in runs if r["device_ns"] is not None])
    names = {n for run in runs for n, v in (run["memory"] or {}).items() if type(v) is int}
    for name in sorted(names):
        held = stats.summarize([float(r["memory"][name]) for r in runs if name in (r["memory"] or {})])
        if held is not None:
            cell.memory[name] = held.p50
    energies = [e for e in map(_energy, runs) if e is not None]
    summary = stats.summarize(energies)
    cell.energy_mj = summary.p50 if summary else None
    lists = [(sorted(r["executed_nodes"]), sorted({*r["cached_nodes"], *r["cached_in_run"]})) for r in runs]
    if lists:
        cell.condition_id = runs[0]["condition_id"]
        cell.executed, cell.cached = lists[0]
        cell.same_nodes = all(one == lists[0] for one in lists)
    cell.warnings = _warnings(cell, totals)


def _energy(run: Record) -> float | None:
    devices = (run.get("nvml") or {}).get("devices") or {}
    known = [d["energy_mj"] for d in devices.values() if d.get("energy_mj") is not None]
    return float(sum(known)) if known else None


def _warnings(cell: Cell, totals: Sequence[float]) -> list[str]:
    """What a reader should know of these samples; none is ever dropped for it."""
    found: list[str] = []
    if cell.total is None:
        return found
    limit = OUTLIER_MADS * cell.total.mad
    far = [
        t for t in totals if cell.total.mad and abs(t - cell.total.p50) > max(limit, 0.05 * cell.total.p50)
    ]
    if far:
        lie, are = ("lies", "is") if len(far) == 1 else ("lie", "are")
        found.append(
            f"{len(far)} of {cell.n} runs {lie} far from the median and {are} counted like the others"
        )
    half = len(totals) // 2
    early, late = stats.summarize(totals[:half]), stats.summarize(totals[-half:] if half else [])
    if half >= 4 and early and late and abs(late.p50 - early.p50) > DRIFT * early.p50:
        found.append(
            "the second half of the runs differs from the first by more than 10%: warming or throttling?"
        )
    if cell.wrong_state:
        were = "was" if cell.wrong_state == 1 else "were"
        found.append(f"{many(cell.wrong_state, 'run')} {were} in the wrong state and {were} repeated")
    if not cell.same_nodes:
        found.append("not all runs executed the same nodes")
    return found


def _sameness(ours: Cell, theirs: Cell, a: Any, b: Any) -> dict[str, bool]:
    ends = [{run.get("until") for run in side} for side in (a, b)]
    kinds = [set(cell.artifacts) for cell in (ours, theirs)]
    return {
        "executed_nodes": ours.executed == theirs.executed and ours.same_nodes and theirs.same_nodes,
        "cache_hits": ours.cached == theirs.cached,
        "delivery_boundary": ends[0] == ends[1] and kinds[0] == kinds[1],
    }


def _spoken(found: Comparison, ratio: stats.Ratio, level: float) -> str:
    if ratio.low is None or ratio.high is None:
        few = f"{many(ratio.n, 'pair')} {'is' if ratio.n == 1 else 'are'} too few"
        if ratio.n < found.runs:
            few += f" (the {found.runs} runs of each arm share launches, and a launch is what counts)"
        return f"{few} to show a difference, {stats.LEAST_PAIRS} are needed"
    text = f"ratio {ratio.ratio:.3f}, 95% interval {ratio.low:.3f} to {ratio.high:.3f}, {ratio.n} pairs"
    if ratio.shown == "not shown":
        if not ratio.low <= 1 <= ratio.high:
            text += f"; the interval excludes 1, but p = {ratio.p:.4f} is above {level:.4f}"
        text += f"; {_needed(ratio)}"
    return text


def _needed(ratio: stats.Ratio) -> str:
    """How many pairs would decide it, by the spread that was seen."""
    most = f"more than {stats.MOST_PAIRS}"
    asked = f"{ratio.needed or most} pairs would show a difference of {stats.ASKED:.0%} in 4 of 5 benches"
    seen = abs(ratio.ratio - 1)
    return f"{asked}, {ratio.needed_seen or most} the {seen:.1%} seen"


def load(folder: Path) -> Tables:
    """The tables of a result folder. Raises ResultError."""
    from stagexec.bench import results

    return Tables(results.load(folder))
