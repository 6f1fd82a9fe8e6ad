"""What takes a verdict back: stages that the arm cannot touch, and other programs' load."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagexec.bench import report
from tests.bench.fake_lab import STAGES, FakeLab
from tests.bench.test_report import ARMS, UNIT, bench, only

CONTROLLED = 'control = ["vae_decode", "delivery_commit"]\n' + ARMS


def test_a_difference_that_untouched_stages_share_is_the_machines(tmp_path: Path) -> None:
    lab = FakeLab({"b": dict.fromkeys(STAGES, 1.08)}, noise=0.01)
    one = only(bench(tmp_path / "r", CONTROLLED + UNIT, lab))
    assert one.total is not None
    assert (one.verdict, one.total.shown) == ("not shown", "slower")
    assert one.control is not None
    assert one.control.veto
    assert "it would be slower, but the stages that this arm cannot touch differ too" in one.reason
    assert "vae_decode, delivery_commit: ratio 1.0" in one.reason
    assert one.reason.endswith("the machine changed, not the arm")


def test_a_difference_of_the_arms_own_stages_stands(tmp_path: Path) -> None:
    found = bench(tmp_path / "r", CONTROLLED + UNIT, FakeLab({"b": {"sampling": 0.5}}, noise=0.01))
    assert only(found).verdict == "faster"
    assert only(found).control is not None
    assert not only(found).control.veto


@pytest.mark.parametrize(("control", "verdict"), [(1.05, "slower"), (0.8, "slower"), (1.6, "not shown")])
def test_a_control_takes_back_only_what_it_could_explain(
    tmp_path: Path, control: float, verdict: str
) -> None:
    """The total takes 1.6 times as long: 5% of the control, or the other direction, is no excuse."""
    speed = {"sampling": 2.0, "vae_decode": control, "delivery_commit": control}
    one = only(bench(tmp_path / "r", CONTROLLED + UNIT, FakeLab({"b": speed}, noise=0.01)))
    assert one.verdict == verdict


def test_a_control_of_a_millisecond_takes_nothing_back(tmp_path: Path) -> None:
    text = 'control = ["queue_wait"]\n' + ARMS + UNIT
    one = only(bench(tmp_path / "r", text, FakeLab({"b": dict.fromkeys(STAGES, 1.3)}, noise=0.01)))
    assert one.verdict == "slower"
    assert one.control is not None
    assert "too short" in one.control.says


def test_a_control_that_no_run_has_is_none(tmp_path: Path) -> None:
    text = 'control = ["encode_mux"]\n' + ARMS + UNIT
    one = only(bench(tmp_path / "r", text, FakeLab({"b": {"sampling": 0.5}})))
    assert (one.verdict, one.control) == ("faster", None)


def test_an_arm_has_a_control_of_its_own_where_the_plan_says_so(tmp_path: Path) -> None:
    text = CONTROLLED.replace('name = "b"', 'name = "b"\ncontrol = []')
    lab = FakeLab({"b": dict.fromkeys(STAGES, 1.08)}, noise=0.01)
    assert only(bench(tmp_path / "r", text + UNIT, lab)).verdict == "slower"


def test_alike_arms_keep_their_power_under_a_control(tmp_path: Path) -> None:
    """A real 5% of one stage group is found as often with a control as without."""
    speed = {"b": {"sampling": 1.08}}
    found = [
        only(bench(tmp_path / str(n), CONTROLLED + UNIT, FakeLab(speed, noise=0.01, seed=n))).verdict
        for n in range(20)
    ]
    assert found.count("slower") >= 19


def test_a_difference_that_other_programs_load_explains_is_taken_back(tmp_path: Path) -> None:
    class Loaded(FakeLab):
        """Whatever else runs beside arm b slows it down, and only that."""

        def load(self, arm: str, number: int) -> float:
            return 0.1 + 0.04 * (number % 9) if arm == "b" else 0.02

    lab = Loaded(noise=0.002)
    lab.others = lab.load
    lab.slower = lambda arm, number: 1 + 0.5 * (lab.load(arm, number) - 0.02)
    one = only(bench(tmp_path / "r", ARMS + UNIT, lab))
    assert one.total is not None
    assert (one.verdict, one.total.shown) == ("not shown", "slower")
    assert "with other programs' load as a covariate: " in one.reason
    (line,) = one.adjusted
    assert line.low <= 1 <= line.high


def test_load_that_does_not_explain_a_difference_is_told_and_takes_nothing_back(tmp_path: Path) -> None:
    lab = FakeLab({"b": {"sampling": 0.5}}, noise=0.01, others=lambda arm, number: 0.05 * (number % 5))
    found = bench(tmp_path / "r", ARMS + UNIT, lab)
    assert only(found).verdict == "faster"
    built = report.build(found)["comparisons"][0]
    assert built["adjusted"] == [] or built["adjusted"][0]["veto"] is False


def test_a_quiet_machine_has_no_covariate(tmp_path: Path) -> None:
    lab = FakeLab(noise=0.01, others=lambda arm, number: 0.001)
    assert only(bench(tmp_path / "r", ARMS + UNIT, lab)).adjusted == []
