"""What can take a verdict back: a stage that the arm cannot touch, and other programs' load.

Negative control: where stages that the arm cannot touch differ too, the machine changed and not the arm. It
is tested at the plain 5% level, more willing than the verdict itself, and takes a verdict back only in the
same direction and where it is of half the size or more: an arm that is 1.6 times slower is not excused by 5%.
A stage of a millisecond is mostly scheduling noise, and says nothing.

Load of other programs comes from outside, so an arm whose difference is gone at equal load was not shown to
differ. Clocks and temperatures are different: an arm that works the device harder may itself lower its clock,
and that is its effect. They are told beside the verdict, and take nothing back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stagexec.bench import launches, stats
from stagexec.bench.results import Record

CONTROL_LEAST_NS = 2_000_000
CONTROL_SHARE = 0.5
"""Of the total's change (of its logarithm): less than this does not explain it."""
LEAST_SPREAD = {"others_cpu": 0.01, "cpu_mhz": 10.0, "sm_mhz": 10.0, "celsius": 1.0}
"""A figure that differs by less than this between the arms of a pair (standard deviation) is no covariate."""
SPOKEN = {
    "others_cpu": "other programs' load",
    "cpu_mhz": "the processor's clock",
    "sm_mhz": "the device's clock",
    "celsius": "the device's temperature",
}
TAKES_BACK = ("others_cpu",)


class Control(msgspec.Struct, frozen=True):
    """The sum of the stages that the arm cannot touch, arm ÷ reference. `veto`: it takes the verdict back."""

    stages: list[str]
    ratio: stats.Ratio | None
    median_ns: float
    veto: bool
    says: str


class Adjusted(msgspec.Struct, frozen=True):
    """The total's ratio at equal values of a covariate, with a 95% interval. `veto` as in Control."""

    covariate: str
    ratio: float
    low: float
    high: float
    veto: bool
    says: str


def control(
    stages: Sequence[str],
    ours: Sequence[Record],
    theirs: Sequence[Record],
    groups: Sequence[Sequence[int]],
    total: stats.Ratio,
    seed: int,
) -> Control | None:
    """The negative control of a comparison; None where there is no such stage in the runs of both."""

    def spent(run: Record) -> float:
        return float(sum(run["stages"].get(name, 0) for name in stages))

    values = launches.collapse(ours, theirs, groups, spent)
    ratio = stats.paired_ratio(*values, seed)
    if ratio is None:
        return None
    seen = [name for name in stages if any(run["stages"].get(name) for run in [*ours, *theirs])]
    summary = stats.summarize(values[1])
    median = summary.p50 if summary else 0.0
    if ratio.low is None or ratio.high is None:
        return Control(seen, ratio, median, False, "too few pairs for a negative control")
    told = f"{', '.join(seen)}: ratio {ratio.ratio:.3f}, {ratio.low:.3f} to {ratio.high:.3f}"
    if median < CONTROL_LEAST_NS:
        return Control(seen, ratio, median, False, f"stages that the arm cannot touch are too short ({told})")
    apart = ratio.low > 1 or ratio.high < 1
    change, whole = math.log(ratio.ratio), math.log(total.ratio)
    explains = change * whole > 0 and abs(change) >= CONTROL_SHARE * abs(whole)
    if apart and explains and total.shown != "not shown":
        text = f"the stages that this arm cannot touch differ too ({told}): the machine changed, not the arm"
        return Control(seen, ratio, median, True, text)
    return Control(seen, ratio, median, False, f"stages that the arm cannot touch: {told}")


def adjusted(
    ours: Sequence[Record],
    theirs: Sequence[Record],
    groups: Sequence[Sequence[int]],
    total: stats.Ratio,
) -> list[Adjusted]:
    """The total's ratio at equal load, clock and temperature, each by itself, where they differed at all."""
    values = launches.collapse(ours, theirs, groups, lambda run: float(run["total_ns"]))
    if len(values[0]) != len(groups):
        return []
    logs = [math.log(a / b) for a, b in zip(*values, strict=True)]
    found = []
    for name, read in _readers([*ours, *theirs]).items():
        sides = [launches.mean_of(side, groups, read) for side in (ours, theirs)]
        apart = [a - b for a, b in zip(*sides, strict=True) if a is not None and b is not None]
        if len(apart) != len(logs):
            continue
        line = stats.at_equal(logs, apart, LEAST_SPREAD[name.partition(" ")[0]])
        if line is None:
            continue
        ratio, low, high = (math.exp(one) for one in line)
        gone = low <= 1 <= high or (ratio > 1) != (total.ratio > 1)
        veto = gone and total.shown != "not shown" and name in TAKES_BACK
        spoken = SPOKEN[name.partition(" ")[0]] + (f" ({name.partition(' ')[2][:12]})" if " " in name else "")
        says = f"with {spoken} as a covariate: {ratio:.3f}, {low:.3f} to {high:.3f}"
        found.append(Adjusted(name, ratio, low, high, veto, says))
    return found


def _readers(runs: Sequence[Record]) -> dict[str, Callable[[Record], float | None]]:
    """Covariate -> how to read it from a raw run: the machine's, and each device's."""

    def of_machine(name: str) -> Callable[[Record], float | None]:
        return lambda run: (run.get("around") or {}).get(name)

    def of_device(uuid: str, name: str) -> Callable[[Record], float | None]:
        return lambda run: _devices(run).get(uuid, {}).get(name)

    found = {name: of_machine(name) for name in ("others_cpu", "cpu_mhz")}
    for uuid in sorted({uuid for run in runs for uuid in _devices(run)}):
        found |= {f"{name} {uuid}": of_device(uuid, name) for name in ("sm_mhz", "celsius")}
    return found


def _devices(run: Record) -> dict[str, dict[str, Any]]:
    return (run.get("around") or {}).get("devices") or {}
