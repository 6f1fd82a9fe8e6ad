"""Statistics that can say no: quantiles, paired ratios with a bootstrap interval, and a verdict.

The safe answer is `not shown`. A difference is shown only when the 95% interval of the paired ratio
excludes 1 and, so that a bench of many comparisons does not find one by luck, two tests agree at the 1%
level: a t test of the log ratios and, where there are pairs enough for it, a sign-flip test, which assumes
no distribution.
"""

from __future__ import annotations

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
LEVEL = 0.01
FAMILY = 0.05
"""Chance that a unit of many arms that are all alike shows a difference in any of them."""
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
    p = _p_value(logs, seed)
    shown = "not shown"
    if p <= level(among) and (high < 0 or low > 0):
        shown = "faster" if mean < 0 else "slower"
    return Ratio(len(pairs), math.exp(mean), math.exp(low), math.exp(high), p, shown)


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


def _p_value(logs: Any, seed: int) -> float:
    """The larger of the t test's and the sign-flip test's p value, two-sided, against a ratio of 1."""
    n = len(logs)
    spread = float(logs.std(ddof=1))
    if spread <= 1e-12:
        t = 1.0 if abs(float(logs.mean())) <= 1e-12 else 0.0
    else:
        from scipy import stats

        t = float(stats.ttest_1samp(logs, 0.0).pvalue)
    return t if n < SIGN_FLIP_FROM else max(t, _sign_flip(logs, seed))


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


class Amdahl(msgspec.Struct, frozen=True):
    """Whether the stage that changed most explains the total. Times in ns, medians.

    `predicted` is the total's ratio if only this stage had changed, `seen` the ratio that was measured.
    """

    stage: str
    share: float
    stage_ratio: float | None
    predicted: float
    seen: float
    explains: bool
    elsewhere: dict[str, float]
    """stage -> ns it changed by, for the other stages that moved by 2% of the total or more."""


def amdahl(
    stages: dict[str, float], reference: dict[str, float], low: float | None, high: float | None
) -> Amdahl | None:
    """The Amdahl check of two ledgers given as median ns by stage; `low` and `high` bound the ratio seen.

    The predicted ratio explains the one seen when it lies in that interval, or within 2% of what was seen.
    """
    total, before = sum(stages.values()), sum(reference.values())
    moved = {name: stages.get(name, 0.0) - reference.get(name, 0.0) for name in {**reference, **stages}}
    if before <= 0 or not any(moved.values()):
        return None
    main = max(moved, key=lambda name: abs(moved[name]))
    share = reference.get(main, 0.0) / before
    k = stages.get(main, 0.0) / reference[main] if reference.get(main) else None
    predicted = (1 - share) + share * k if k is not None else 1 + moved[main] / before
    seen = total / before
    inside = low is not None and high is not None and low <= predicted <= high
    elsewhere = {n: d for n, d in moved.items() if n != main and abs(d) >= 0.02 * before}
    return Amdahl(main, share, k, predicted, seen, inside or abs(predicted - seen) <= 0.02, elsewhere)
