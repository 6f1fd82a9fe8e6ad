"""Statistics that can say no: quantiles, paired ratios with a bootstrap interval, and a verdict.

The safe answer is `not shown`. A difference is shown only when the 95% interval of the paired ratio
excludes 1 and two tests agree at `level`: a t test of the log ratios and, where there are pairs enough for
it, a sign-flip test, which assumes no distribution. The level is such that a whole bench of arms that are
all alike shows a difference in at most 2%; `bench/simulate/` holds that against drift and launches that
differ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import msgspec

RESAMPLES = 4000
LEAST_PAIRS = 4
"""With fewer pairs no interval is given and nothing is shown."""
SIGN_FLIP_FROM = 8
"""From this many pairs on a sign-flip test can reach the 1% level."""
BOOTSTRAP_FROM = 8
LEVEL = 0.015
"""Of a single comparison: under 2%, because the tests' own levels are met only about."""
FAMILY = 0.018
"""Chance that a bench of arms that are all alike shows a difference in any of them: under 2%, likewise."""
ASKED = 0.05
"""The difference that a bench is expected to find: how many pairs that takes is told with `not shown`."""
POWER = 0.8
MOST_PAIRS = 100_000
ONE_TIME = 0.8
"""From this share on, what the first run paid more than the second is a one-time cost."""


class Summary(msgspec.Struct, frozen=True):
    """Of one distribution, in its own unit (ns). `mad` is the median absolute deviation, unscaled."""

    n: int
    p50: float
    p90: float
    min: float
    max: float
    mad: float


class Ratio(msgspec.Struct, frozen=True):
    """Paired ratio (this ÷ reference): geometric mean, 95% interval (None with too few pairs), p value."""

    n: int
    ratio: float
    low: float | None
    high: float | None
    p: float | None
    shown: str
    """`faster`, `slower` or `not shown`."""
    needed: int | None = None
    """Pairs that would show a difference of ASKED in 4 of 5 benches, by the spread seen; None: not known."""
    needed_seen: int | None = None
    """The same for the difference that was seen."""


def summarize(values: Sequence[float]) -> Summary | None:
    """The summary of at least one value; None of none. P90 is interpolated linearly."""
    import numpy as np

    if not values:
        return None
    data = np.asarray(values, dtype=float)
    p50, p90 = np.percentile(data, [50, 90])
    mad = np.median(np.abs(data - p50))
    return Summary(len(data), *(float(v) for v in (p50, p90, data.min(), data.max(), mad)))


def level(comparisons: int) -> float:
    """The level at which each of so many comparisons is tested: LEVEL, less where they are many."""
    return min(LEVEL, FAMILY / max(1, comparisons))


def paired_ratio(
    values: Sequence[float], reference: Sequence[float], seed: int = 0, among: int = 1
) -> Ratio | None:
    """How `values` relate to `reference`, pair by pair; None without a pair of positive values.

    `among`: how many such comparisons are made side by side. Raises ValueError when the two differ in length.
    """
    import numpy as np

    pairs = [(a, b) for a, b in zip(values, reference, strict=True) if a > 0 and b > 0]
    if not pairs:
        return None
    logs = np.log(np.asarray([a / b for a, b in pairs]))
    mean = float(logs.mean())
    if len(pairs) < LEAST_PAIRS:
        return Ratio(len(pairs), math.exp(mean), None, None, None, "not shown")
    low, high = _interval(logs, seed)
    p = _p_value(logs, seed, level(among))
    shown = "not shown"
    if p <= level(among) and (high < 0 or low > 0):
        shown = "faster" if mean < 0 else "slower"
    spread = float(logs.std(ddof=1))
    needed = [pairs_needed(spread, effect, level(among)) for effect in (math.log(1 + ASKED), mean)]
    return Ratio(len(pairs), math.exp(mean), math.exp(low), math.exp(high), p, shown, *needed)


def pairs_needed(spread: float, effect: float, at: float) -> int | None:
    """Pairs that show a log ratio of `effect` in POWER of benches at level `at`, when pairs `spread` so much.

    Exact up to 200, within 2% above that; None when it is more than MOST_PAIRS.
    """
    import numpy as np

    counts, reach = _reaches(at)
    enough = np.flatnonzero(reach * spread <= abs(effect))
    return int(counts[enough[0]]) if len(enough) else None


@functools.lru_cache(maxsize=64)
def _reaches(at: float) -> tuple[Any, Any]:
    """Counts of pairs, and for each how many standard deviations a difference must be to be shown."""
    import numpy as np
    from scipy import stats

    far = np.unique(np.geomspace(200, MOST_PAIRS, 320).round().astype(int))
    counts = np.concatenate([np.arange(LEAST_PAIRS, 200), far])
    reach = stats.t.ppf(1 - at / 2, counts - 1) + stats.t.ppf(POWER, counts - 1)
    return counts, reach / np.sqrt(counts)


def at_equal(
    logs: Sequence[float], apart: Sequence[float], least: float
) -> tuple[float, float, float] | None:
    """The mean log ratio at equal values of a covariate that differs by `apart` in each pair; low, high.

    By least squares, with Student's 95% interval. None with fewer than six pairs, or where the covariate's
    differences spread by less than `least`.
    """
    import numpy as np
    from scipy import stats

    n, x, y = len(logs), np.asarray(apart, dtype=float), np.asarray(logs, dtype=float)
    if n < LEAST_PAIRS + 2 or float(x.std(ddof=1)) < least:
        return None
    fit = stats.linregress(x, y)
    reach = float(stats.t.ppf(0.975, n - 2)) * float(fit.intercept_stderr)
    mean = float(fit.intercept)
    return mean, mean - reach, mean + reach


def _interval(logs: Any, seed: int) -> tuple[float, float]:
    """Studentized bootstrap: at ten pairs a plain percentile interval is too narrow.

    Below BOOTSTRAP_FROM pairs there is too little to draw from, and Student's t interval is given.
    """
    import numpy as np

    n, mean = len(logs), float(logs.mean())
    error = float(logs.std(ddof=1)) / math.sqrt(n)
    if error <= 1e-12:  # all pairs alike: nothing to resample
        return mean, mean
    if n < BOOTSTRAP_FROM:
        from scipy import stats

        reach = float(stats.t.ppf(0.975, n - 1)) * error
        return mean - reach, mean + reach
    rng = np.random.default_rng(seed)
    drawn = logs[rng.integers(0, n, size=(RESAMPLES, n))]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(n)
    usable = errors > 1e-3 * error  # a sample that drew one pair n times has no error of its own
    t = (drawn.mean(axis=1)[usable] - mean) / errors[usable]
    upper, lower = np.percentile(t, [97.5, 2.5])
    return mean - float(upper) * error, mean - float(lower) * error


def _p_value(logs: Any, seed: int, at: float) -> float:
    """The larger of the t test's and the sign-flip test's p value, two-sided, against a ratio of 1.

    A sign-flip test of n pairs cannot go below 2 ÷ 2^n (or 1 in 4096 drawn patterns). Where that is above the
    level `at`, as it is with many comparisons, its least value is all that can be asked of it.
    """
    n = len(logs)
    spread = float(logs.std(ddof=1))
    if spread <= 1e-12:
        t = 1.0 if abs(float(logs.mean())) <= 1e-12 else 0.0
    else:
        from scipy import stats

        t = float(stats.ttest_1samp(logs, 0.0).pvalue)
    if n < SIGN_FLIP_FROM:
        return t
    flip, least = _sign_flip(logs, seed), (2 / 2**n if n <= 12 else 1 / 4097)
    return t if least > at and flip <= least * (1 + 1e-9) else max(t, flip)


def _sign_flip(logs: Any, seed: int) -> float:
    """Share of all sign patterns (4096 drawn ones beyond 12 pairs) whose mean is as far from 0."""
    import numpy as np

    n = len(logs)
    if n <= 12:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(seed).choice([-1, 1], size=(4096, n))
    sums = np.abs((signs * logs).sum(axis=1))
    seen = abs(float(logs.sum()))
    hits = int((sums >= seen * (1 - 1e-9)).sum())
    return hits / len(signs) if n <= 12 else (hits + 1) / (len(signs) + 1)


def unpaired_ratio(values: Sequence[float], reference: Sequence[float], seed: int = 0) -> Ratio | None:
    """How two separate samples relate: ratio of geometric means, for results of different benches."""
    import numpy as np
    from scipy import stats

    a = np.log(np.asarray([v for v in values if v > 0], dtype=float))
    b = np.log(np.asarray([v for v in reference if v > 0], dtype=float))
    if not len(a) or not len(b):
        return None
    n, mean = min(len(a), len(b)), float(a.mean() - b.mean())
    if n < LEAST_PAIRS:
        return Ratio(n, math.exp(mean), None, None, None, "not shown")
    if float(a.std()) <= 1e-12 and float(b.std()) <= 1e-12:
        low = high = mean
        p = 1.0 if abs(mean) <= 1e-12 else 0.0
    else:
        test = stats.ttest_ind(a, b, equal_var=False)
        p = float(test.pvalue)
        interval = test.confidence_interval(0.95)
        low, high = float(interval.low), float(interval.high)
    shown = "not shown"
    if p <= LEVEL and (high < 0 or low > 0):
        shown = "faster" if mean < 0 else "slower"
    return Ratio(n, math.exp(mean), math.exp(low), math.exp(high), p, shown)


class OneTime(msgspec.Struct, frozen=True):
    """First against second run: share of the first run that only the first run paid, and its reading."""

    n: int
    share: float
    reading: str


def one_time(first: Sequence[float], second: Sequence[float], is_once: bool = True) -> OneTime | None:
    """The median of (first − second) ÷ first over launches; None without one.

    `is_once`: what is compared is work that is paid once, and not what a cache may have saved.
    """
    import numpy as np

    shares = [(a - b) / a for a, b in zip(first, second, strict=True) if a > 0]
    if not shares:
        return None
    share = float(np.median(shares))
    if share < 0.2:
        reading = "paid again"
    elif not is_once:
        reading = "cached or faster: it may come back when inputs change"
    else:
        reading = "one-time cost" if share >= ONE_TIME else "partly one-time"
    return OneTime(len(shares), share, reading)


EXPLAINS = (0.8, 1.25)
"""A stage explains a change of the total when its own change is this share of it, opposing ones counted."""


class Amdahl(msgspec.Struct, frozen=True):
    """Whether the stage that changed most explains the total. Times in ns, medians.

    `predicted` is the total's ratio if only this stage had changed, `seen` the ratio that was measured;
    `covers` the stage's change as a share of the total's (None when the total did not change).
    """

    stage: str
    share: float
    stage_ratio: float | None
    predicted: float
    seen: float
    explains: bool
    elsewhere: dict[str, float]
    """stage -> ns it changed by, for the other stages that moved by 2% of the total or more."""
    covers: float | None = None


def amdahl(stages: dict[str, float], reference: dict[str, float]) -> Amdahl | None:
    """The Amdahl check of two ledgers given as median ns by stage."""
    total, before = sum(stages.values()), sum(reference.values())
    moved = {name: stages.get(name, 0.0) - reference.get(name, 0.0) for name in {**reference, **stages}}
    if before <= 0 or not any(moved.values()):
        return None
    main = max(moved, key=lambda name: abs(moved[name]))
    share = reference.get(main, 0.0) / before
    k = stages.get(main, 0.0) / reference[main] if reference.get(main) else None
    predicted = (1 - share) + share * k if k is not None else 1 + moved[main] / before
    covers = moved[main] / (total - before) if total != before else None
    explains = covers is not None and EXPLAINS[0] <= covers <= EXPLAINS[1]
    elsewhere = {n: d for n, d in moved.items() if n != main and abs(d) >= 0.02 * before}
    return Amdahl(main, share, k, predicted, total / before, explains, elsewhere, covers)
