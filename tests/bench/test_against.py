"""Regression mode fails when a slow-down is shown, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagexec.bench import against
from tests.bench.fake_lab import FakeLab
from tests.bench.test_report import ARMS, UNIT, bench, spoil

STAGES = ("queue_wait", "conditioning", "sampling", "vae_decode", "delivery_commit")


def change(tmp_path: Path, factor: float, over: float = 0.05, noise: float = 0.01) -> against.Change:
    before = bench(tmp_path / "old", UNIT, FakeLab(noise=noise, seed=1))
    speed = {"as it is": dict.fromkeys(STAGES, factor)}
    now = bench(tmp_path / "new", UNIT, FakeLab(speed, noise=noise, seed=2))
    (found,) = against.compare(now, before, over)
    return found


@pytest.mark.parametrize(
    ("factor", "too_slow", "says"),
    [
        (1.2, True, "slower by more than 5%: ratio 1.19"),
        (1.04, False, "slower, but not shown to be by more than 5%"),
        (1.0, False, "not shown"),
        (0.8, False, "faster"),
    ],
)
def test_only_a_shown_slow_down_beyond_the_limit_fails(
    tmp_path: Path, factor: float, too_slow: bool, says: str
) -> None:
    found = change(tmp_path, factor)
    assert found.too_slow is too_slow
    assert found.why.startswith(says)


def test_noise_is_no_regression(tmp_path: Path) -> None:
    assert not change(tmp_path, 1.1, noise=0.3).too_slow


@pytest.mark.parametrize(("name", "value"), [("machine", {"name": "there"}), ("timing", "events")])
def test_results_of_other_machines_or_timing_modes_are_refused(
    tmp_path: Path, name: str, value: object
) -> None:
    before = bench(tmp_path / "old", UNIT, FakeLab())
    bench(tmp_path / "new", UNIT, FakeLab())
    now = spoil(tmp_path / "new", name, value, "as it is", count=99)
    with pytest.raises(against.NotComparable, match=name):
        against.compare(now, before, 0.05)


def test_results_with_nothing_in_common_are_refused(tmp_path: Path) -> None:
    before, now = bench(tmp_path / "old", UNIT, FakeLab()), bench(tmp_path / "new", ARMS + UNIT, FakeLab())
    with pytest.raises(against.NotComparable, match="in common"):
        against.compare(now, before, 0.05)
