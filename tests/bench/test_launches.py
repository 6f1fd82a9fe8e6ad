"""What counts as one measure: launches, or runs of one shared process."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stagexec.bench import launches


def runs(*sessions: int, total: float = 100.0) -> list[dict[str, Any]]:
    return [{"session": number, "total_ns": total} for number in sessions]


@pytest.mark.parametrize(
    ("ours", "theirs", "groups"),
    [
        ((1, 1, 1), (1, 1, 1), [[0], [1], [2]]),  # one process for both: each pair by itself
        ((1, 1, 2, 2), (3, 3, 4, 4), [[0, 1], [2, 3]]),
        ((1, 2, 3), (4, 5, 6), [[0], [1], [2]]),
        ((1, 1, 1, 1), (2, 2, 2, 2), [[0, 1, 2, 3]]),  # side by side, but one launch of each
        ((1, 1, 1, 1), (2, 3, 4, 5), [[0, 1, 2, 3]]),  # an arm that died often, beside one that did not
        ((1, 2, 2, 3), (4, 4, 5, 5), [[0, 1, 2, 3]]),  # chained through both arms
        ((1, 2, 1), (3, 4, 3), [[0, 2], [1]]),
    ],
)
def test_pairs_that_share_a_launch_are_one_measure(
    ours: tuple[int, ...], theirs: tuple[int, ...], groups: list[list[int]]
) -> None:
    assert launches.blocks((runs(*ours), runs(*theirs))) == groups


def test_a_measure_is_the_geometric_mean_of_its_pairs_with_two_values() -> None:
    ours = [{"t": 2.0}, {"t": 8.0}, {"t": 0.0}, {"t": 0.0}]
    theirs = [{"t": 1.0}, {"t": 4.0}, {"t": 9.0}, {"t": 1.0}]
    sides = launches.collapse(ours, theirs, [[0, 1, 2], [3]], lambda run: run["t"])
    assert sides == ([pytest.approx(4.0)], [pytest.approx(2.0)])
    assert launches.mean_of(ours, [[0, 1], [2]], lambda run: run["t"] or None) == [5.0, None]
    assert launches.geometric([1.0, math.e**2]) == pytest.approx(math.e)
