"""Statistics: no difference where there is none, a difference where one was planted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stagexec.bench import stats


def noisy(rng: np.random.Generator, n: int, noise: float, kind: str) -> np.ndarray:
    """`n` times of a run of 100: lognormal, with a drift, or with rare outliers."""
    base = 100 * np.exp(rng.normal(0, noise, n))
    if kind == "drift":
        base *= np.linspace(1, 1.2, n)
    if kind == "outliers":
        base *= np.where(rng.random(n) < 0.1, 1.5, 1.0)
    return base


@pytest.mark.parametrize("kind", ["plain", "drift", "outliers"])
@pytest.mark.parametrize(("n", "noise"), [(5, 0.05), (10, 0.02), (10, 0.2), (20, 0.05)])
def test_two_equal_arms_are_not_shown_to_differ_in_95_of_100_benches(kind: str, n: int, noise: float) -> None:
    rng = np.random.default_rng(1)
    verdicts = []
    for number in range(100):
        a, b = noisy(rng, n, noise, kind), noisy(rng, n, noise, kind)
        found = stats.paired_ratio(list(a), list(b), seed=number)
        assert found is not None
        verdicts.append(found.shown)
    assert verdicts.count("not shown") >= 95


def test_of_twelve_equal_arms_none_is_shown_to_differ_in_95_of_100_benches() -> None:
    rng = np.random.default_rng(5)
    loud = 0
    for number in range(100):
        arms = [noisy(rng, 10, 0.05, "plain") for _ in range(12)]
        found = [stats.paired_ratio(list(a), list(arms[0]), seed=number, among=11) for a in arms[1:]]
        loud += any(one is not None and one.shown != "not shown" for one in found)
    assert loud <= 5


def test_many_comparisons_are_each_held_to_a_stricter_level() -> None:
    assert [stats.level(count) for count in (0, 1)] == [stats.LEVEL] * 2
    assert [stats.level(count) for count in (2, 11)] == pytest.approx([stats.FAMILY / 2, stats.FAMILY / 11])
    slow = [1.02, 1.05, 1.03, 1.06, 1.04, 1.01, 1.05, 1.03, 1.02, 1.04]
    told = [stats.paired_ratio(slow, [1.0] * 10, among=count) for count in (11, 2000)]
    assert [one.shown for one in told if one is not None] == ["slower", "not shown"]


def test_many_comparisons_can_still_show_a_difference_at_ten_pairs() -> None:
    """A sign-flip test of ten pairs cannot go below 2 in 1024, which is above the level of 20 comparisons."""
    assert stats.level(20) < 2 / 1024
    found = stats.paired_ratio([1.5 + 0.01 * n for n in range(10)], [1.0] * 10, among=20)
    assert found is not None
    assert found.shown == "slower"


def test_the_pairs_that_are_asked_for_show_the_difference_in_4_of_5_benches() -> None:
    needed = stats.pairs_needed(0.05, math.log(1.05), 0.015)
    assert needed is not None
    assert 10 <= needed <= 16
    rng = np.random.default_rng(11)
    found = [
        stats.paired_ratio(list(1.05 * np.exp(rng.normal(0, 0.05, needed))), [1.0] * needed, seed)
        for seed in range(300)
    ]
    assert 0.72 <= sum(one is not None and one.shown == "slower" for one in found) / 300 <= 0.9


def test_more_spread_needs_more_pairs_and_no_number_is_made_up_for_no_difference() -> None:
    few, many = (stats.pairs_needed(spread, 0.05, 0.01) for spread in (0.02, 0.2))
    assert few is not None
    assert many is not None
    assert few < 10 < many
    assert stats.pairs_needed(0.0, 0.05, 0.01) == stats.LEAST_PAIRS
    assert stats.pairs_needed(0.05, 0.0, 0.01) is None
    assert stats.pairs_needed(0.05, 1e-9, 0.01) is None


def test_a_covariate_that_explains_the_difference_leaves_none_at_equal_values() -> None:
    rng = np.random.default_rng(12)
    load = rng.uniform(0.0, 0.4, 12)
    logs = 0.5 * load + rng.normal(0, 0.005, 12)
    found = stats.at_equal(list(logs), list(load), 0.01)
    assert found is not None
    mean, low, high = found
    assert low < 0 < high
    assert abs(mean) < 0.02
    assert stats.at_equal(list(logs), [0.1] * 12, 0.01) is None
    assert stats.at_equal(list(logs[:5]), list(load[:5]), 0.01) is None


@pytest.mark.parametrize("effect", [1.05, 0.95])
def test_a_planted_effect_of_5_percent_is_found_at_ten_pairs_with_low_noise(effect: float) -> None:
    rng = np.random.default_rng(2)
    wanted = "slower" if effect > 1 else "faster"
    found = []
    for number in range(100):
        drift = np.linspace(1, 1.3, 10)
        a = 100 * effect * drift * np.exp(rng.normal(0, 0.015, 10))
        b = 100 * drift * np.exp(rng.normal(0, 0.015, 10))
        one = stats.paired_ratio(list(a), list(b), seed=number)
        assert one is not None
        found.append(one.shown)
    assert found.count(wanted) >= 95
    assert set(found) <= {wanted, "not shown"}


def test_the_interval_holds_the_true_ratio_in_about_95_of_100_benches() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for number in range(400):
        a = 100 * 1.1 * np.exp(rng.normal(0, 0.1, 10))
        b = 100 * np.exp(rng.normal(0, 0.1, 10))
        one = stats.paired_ratio(list(a), list(b), seed=number)
        assert one is not None
        assert one.low is not None
        assert one.high is not None
        inside += one.low <= 1.1 <= one.high
    assert inside >= 0.93 * 400


def test_a_verdict_never_contradicts_its_interval() -> None:
    rng = np.random.default_rng(4)
    for number in range(200):
        a, b = 100 * np.exp(rng.normal(0.05, 0.1, 8)), 100 * np.exp(rng.normal(0, 0.1, 8))
        one = stats.paired_ratio(list(a), list(b), seed=number)
        assert one is not None
        assert one.low is not None
        assert one.high is not None
        if one.shown != "not shown":
            assert not one.low <= 1 <= one.high


def test_few_pairs_show_nothing_however_large_the_difference() -> None:
    one = stats.paired_ratio([1.0, 1.0, 1.0], [9.0, 9.1, 9.2])
    assert one is not None
    assert (one.shown, one.low, one.high) == ("not shown", None, None)
    assert one.ratio == pytest.approx(1 / 9.1, rel=0.01)


def test_pairs_without_any_spread_are_judged_by_their_value() -> None:
    same, twice = stats.paired_ratio([5.0] * 6, [5.0] * 6), stats.paired_ratio([10.0] * 6, [5.0] * 6)
    assert same is not None
    assert twice is not None
    assert (same.shown, same.ratio) == ("not shown", 1.0)
    assert (twice.shown, twice.ratio) == ("slower", 2.0)


def test_the_same_bench_gives_the_same_interval() -> None:
    a, b = [1.0, 1.1, 0.9, 1.2, 1.05], [1.3, 1.2, 1.25, 1.4, 1.1]
    assert stats.paired_ratio(a, b, seed=7) == stats.paired_ratio(a, b, seed=7)


def test_unequal_pairs_are_an_error() -> None:
    with pytest.raises(ValueError):
        stats.paired_ratio([1.0], [1.0, 2.0])


def test_the_summary_is_the_textbooks() -> None:
    found = stats.summarize([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found == stats.Summary(5, 3.0, pytest.approx(61.6), 1.0, 100.0, 1.0)
    assert stats.summarize([]) is None


def test_two_separate_samples_of_one_kind_are_not_shown_to_differ() -> None:
    rng = np.random.default_rng(5)
    verdicts = []
    for _ in range(100):
        a, b = noisy(rng, 10, 0.05, "plain"), noisy(rng, 10, 0.05, "plain")
        one = stats.unpaired_ratio(list(a), list(b))
        assert one is not None
        verdicts.append(one.shown)
    assert verdicts.count("not shown") >= 95


@pytest.mark.parametrize(
    ("first", "second", "share", "reading"),
    [
        ([100.0, 110.0, 90.0], [10.0, 11.0, 9.0], 0.9, "one-time cost"),
        ([100.0], [20.0], 0.8, "one-time cost"),
        ([100.0], [50.0], 0.5, "partly one-time"),
        ([100.0], [98.0], 0.02, "paid again"),
    ],
)
def test_the_first_run_against_the_second_is_read_by_the_rule_of_0_8(
    first: list[float], second: list[float], share: float, reading: str
) -> None:
    found = stats.one_time(first, second)
    assert found is not None
    assert found.share == pytest.approx(share)
    assert found.reading == reading


def test_a_stage_that_alone_became_faster_explains_the_total() -> None:
    found = stats.amdahl({"sampling": 40.0, "vae_decode": 20.0}, {"sampling": 80.0, "vae_decode": 20.0})
    assert found is not None
    assert (found.stage, found.explains, found.elsewhere) == ("sampling", True, {})
    assert found.predicted == pytest.approx(0.6)
    assert found.stage_ratio == pytest.approx(0.5)


def test_a_stage_that_covers_less_than_half_of_the_change_does_not_explain_it() -> None:
    """Two stages fell, 43 and 57 parts of 100: neither is the explanation, however near the totals lie."""
    found = stats.amdahl({"a": 957.0, "b": 8986.0, "c": 0.0}, {"a": 1000.0, "b": 9000.0, "c": 43.0})
    assert found is not None
    assert found.covers == pytest.approx(0.43)
    assert abs(found.predicted - found.seen) < 0.02
    assert not found.explains


def test_a_cost_that_moved_to_another_stage_is_named() -> None:
    found = stats.amdahl({"sampling": 40.0, "vae_decode": 55.0}, {"sampling": 80.0, "vae_decode": 20.0})
    assert found is not None
    assert not found.explains
    assert found.elsewhere == {"vae_decode": 35.0}
    assert found.seen == pytest.approx(0.95)


def test_a_stage_that_only_the_other_side_has_is_no_ratio() -> None:
    found = stats.amdahl({"a": 10.0, "b": 5.0}, {"a": 10.0})
    assert found is not None
    assert found.stage_ratio is None
    assert found.predicted == pytest.approx(1.5)
    assert not math.isnan(found.seen)
