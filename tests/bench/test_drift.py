"""The shipped plans on a machine that drifts: arms that are alike are not told apart, 5% is found."""

from __future__ import annotations

import numpy as np
import pytest

from stagexec.bench import checks, launches, plan, stats
from tests.bench import drift

BENCHES = 1500
COMPARING = [one for one in plan.shipped() if len(one.arm) > 1]


def test_all_shipped_plans_but_those_of_one_arm_are_simulated() -> None:
    alone = {one.name for one in plan.shipped()} - {one.name for one in COMPARING}
    assert alone == {"matrix", "first_second"}


@pytest.mark.parametrize("fits", [True, False], ids=["side by side", "by launches"])
@pytest.mark.parametrize("wanted", COMPARING, ids=lambda one: one.name)
def test_arms_that_are_alike_are_told_apart_in_at_most_2_percent_of_benches(
    wanted: plan.Plan, fits: bool
) -> None:
    table = drift.timetable(wanted, fits)
    assert table.contrasts
    for number, (name, wander) in enumerate(drift.DRIFTS.items()):
        rng = np.random.default_rng([number, fits])
        share = drift.loud(table, drift.logs(table, wander, BENCHES, rng)).mean()
        assert share <= 0.02 + 2.0 * (0.02 * 0.98 / BENCHES) ** 0.5, (name, share)


TWO = """name = "two"
[[arm]]
name = "a"
[[arm]]
name = "b"
args = ["--b"]
[[unit]]
name = "M03"
state = "recompute"
"""


@pytest.mark.parametrize("fits", [True, False], ids=["side by side", "by launches"])
def test_5_percent_are_found_in_4_of_5_benches_of_ten_pairs_under_a_drift_of_3_percent(fits: bool) -> None:
    table = drift.timetable(plan.parse(TWO), fits)
    (contrast,) = table.contrasts
    assert len(contrast.ours) == 10
    rng = np.random.default_rng(7)
    times = drift.logs(table, drift.DRIFTS["3%/600 s"], 400, rng, {"b": np.log(1.05)})
    ratios = drift.measures(contrast, times)
    verdicts = [drift.exact(row, number, table.family) for number, row in enumerate(ratios)]
    assert verdicts.count("slower") >= 0.8 * len(verdicts)
    assert "faster" not in verdicts


def test_the_fast_verdict_of_the_simulation_is_that_of_the_bench_or_says_more() -> None:
    table = drift.timetable(plan.parse(TWO), True)
    times = drift.logs(table, (0.03, 600.0), 300, np.random.default_rng(3), {"b": 0.03})
    ratios = drift.measures(table.contrasts[0], times)
    fast = drift.shown(ratios, table.family)
    slow = [drift.exact(row, 1, table.family) != "not shown" for row in ratios]
    assert 0.1 < fast.mean() < 0.9
    assert all(quick for quick, careful in zip(fast, slow, strict=True) if careful)
    assert np.mean(fast == np.array(slow)) >= 0.98


def test_one_launch_an_arm_and_pairs_of_runs_would_tell_alike_arms_apart() -> None:
    """Why pairs are of launches: what the same runs say when each counts by itself."""
    table = drift.timetable(plan.parse("chunk = 10\nrepeats = 1\n" + TWO), True)
    (contrast,) = table.contrasts
    assert len(contrast.ours) == 1
    times = drift.logs(table, drift.DRIFTS["3%/600 s"], BENCHES, np.random.default_rng(5))
    assert drift.loud(table, times).mean() == 0
    single = drift.Contrast("runs", [[i] for i in contrast.ours[0]], [[i] for i in contrast.theirs[0]])
    assert drift.shown(drift.measures(single, times), 1).mean() > 0.2


def test_pairs_minutes_apart_as_they_were_would_tell_alike_arms_apart() -> None:
    """Blocks of five runs on one server, read run by run: the schedule of earlier versions."""
    table = drift.timetable(
        plan.parse("chunk = 5\nrepeats = 1\n" + TWO), False, drift.Pace(launch=15, run=20)
    )
    (contrast,) = table.contrasts
    assert len(contrast.ours) == 2
    single = drift.Contrast(
        "runs",
        [[i] for group in contrast.ours for i in group],
        [[i] for group in contrast.theirs for i in group],
    )
    for wander in drift.DRIFTS.values():
        times = drift.logs(table, wander, BENCHES, np.random.default_rng(6), launch_sd=0.0)
        assert drift.shown(drift.measures(single, times), 1).mean() > 0.05
        assert drift.loud(table, times).mean() == 0


def controlled(effect: float, shared: float, benches: int = 200) -> tuple[int, int]:
    """Benches that show the total slower, and of those the ones that the negative control takes back.

    `effect` is in the arm's own stage alone, `shared` in every stage; the control has noise of its own, 5%.
    """
    table = drift.timetable(plan.parse(TWO), True)
    (contrast,) = table.contrasts
    rng = np.random.default_rng(9)
    base = drift.logs(table, drift.DRIFTS["3%/600 s"], benches, rng, {"b": shared})
    own = base + np.array([effect if arm == "b" else 0.0 for arm in table.arms])
    control = base + rng.normal(0, 0.05, base.shape)
    groups = [[2 * n, 2 * n + 1] for n in range(10)]
    seen = taken = 0
    for number in range(benches):
        sides = [
            [
                {
                    "total_ns": 1e9 * np.exp(own[number, i]),
                    "stages": {"vae_decode": 1e8 * np.exp(control[number, i])},
                }
                for group in side
                for i in group
            ]
            for side in (contrast.ours, contrast.theirs)
        ]
        totals = launches.collapse(*sides, groups, lambda run: run["total_ns"])
        total = stats.paired_ratio(*totals, number, table.family)
        assert total is not None
        found = checks.control(["vae_decode"], *sides, groups, total, number)
        assert found is not None
        seen += total.shown == "slower"
        taken += total.shown == "slower" and found.veto
    return seen, taken


def test_a_negative_control_takes_back_few_true_verdicts_and_most_of_a_machine_that_changed() -> None:
    seen, taken = controlled(effect=0.05, shared=0.0)
    assert seen >= 160
    assert taken <= 0.1 * seen
    seen, taken = controlled(effect=0.0, shared=0.08)
    assert seen >= 190
    assert taken >= 0.9 * seen
