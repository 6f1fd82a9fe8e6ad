"""A bench on a real local Ray cluster of two workers: same results, pairs on one worker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench import plan, report, results, tables
from stagexec.bench import ray as cluster
from stagexec.bench.plan import Arm
from tests.bench.fake_lab import PROMPT, FakeLab, FakeSession

ROOT = Path(__file__).resolve().parents[2]
ARMS = 'servers = 9\nchunk = 4\nrepeats = 1\n[[arm]]\nname = "a"\n[[arm]]\nname = "b"\n[[arm]]\nname = "c"\n'
UNITS = "".join(f'[[unit]]\nname = "u{n}"\nstate = "recompute"\nwarmup = 1\ncounted = 4\n' for n in range(2))
ONE_UNIT = UNITS.partition('[[unit]]\nname = "u1"')[0]


class SlowLab(FakeLab):
    """Takes its time, so that one worker cannot do all; and leaves a log, as servers do."""

    def __init__(self, folder: Path, dies: str | None) -> None:
        super().__init__()
        self.folder, self.dies = folder, dies

    def open(
        self, arm: Arm, args: Sequence[str], cold: bool, page_cache: str
    ) -> tuple[FakeSession, dict[str, Any]]:
        if arm.name == self.dies:
            os._exit(1)
        time.sleep(1)
        (self.folder / "logs").mkdir(exist_ok=True)
        (self.folder / "logs" / f"{arm.name}-{os.getpid()}.log").write_text("hello")
        return super().open(arm, args, cold, page_cache)


class Opener:
    """What travels to a worker."""

    def __init__(self, dies: str | None = None) -> None:
        self.dies = dies

    def __call__(self, folder: Path) -> FakeLab:
        return SlowLab(folder, self.dies)

    def machine(self) -> dict[str, Any]:
        return {"name": "worker", "pid": os.getpid()}


def make(text: str) -> plan.Plan:
    return cluster.split(plan.parse(f'name = "test"\nabout = "x"\n{text}'))


@pytest.fixture(scope="module")
def two_workers() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield
    ray.shutdown()


def spread(folder: Path, text: str, dies: str | None = None) -> tuple[results.Results, list[str]]:
    wanted = make(text)
    opened = results.create(folder, wanted, PROMPT, {"machine": {"name": "here"}})
    seen: list[str] = []
    cluster.spread(wanted, opened, Opener(dies), lambda name, facts: seen.append(name))
    return opened, seen


def test_units_run_on_different_workers_and_the_pairs_of_each_on_one(
    two_workers: None, tmp_path: Path
) -> None:
    opened, seen = spread(tmp_path / "r", ARMS + UNITS)
    pids = {
        unit: {run["machine"]["pid"] for run in opened.runs if run["unit"] == unit} for unit in ("u0", "u1")
    }
    assert all(len(found) == 1 for found in pids.values())
    assert pids["u0"] != pids["u1"]
    assert seen.count("run") == len(opened.runs) == 2 * 3 * 5
    assert len((tmp_path / "r" / "runs.jsonl").read_text().splitlines()) == 30
    assert len(list((tmp_path / "r" / "logs").iterdir())) == 6
    assert report.write(tmp_path / "r")["state"] == "finished"


def test_one_unit_is_split_by_arm_with_the_reference_beside_each(two_workers: None, tmp_path: Path) -> None:
    spread(tmp_path / "r", ARMS + ONE_UNIT)
    found = tables.load(tmp_path / "r")
    assert [(c.unit, c.arm, c.reference, c.runs) for c in found.comparisons] == [
        ("u0 · b", "b", "a", 4),
        ("u0 · c", "c", "a", 4),
    ]


def test_what_is_done_is_not_done_again(two_workers: None, tmp_path: Path) -> None:
    spread(tmp_path / "r", ARMS + UNITS)
    wanted = make(ARMS + UNITS)
    again = results.resume(tmp_path / "r", wanted, PROMPT, {"machine": {"name": "here"}})
    before = len(again.runs)
    cluster.spread(wanted, again, Opener(), lambda name, facts: None)
    assert len(again.runs) == before


def test_a_worker_that_dies_is_noted_and_the_other_units_go_on(two_workers: None, tmp_path: Path) -> None:
    opened, _ = spread(tmp_path / "r", ARMS + ONE_UNIT, dies="c")
    failed = {note["arm"]: note["reason"] for note in opened.notes if note["kind"] == "arm"}
    assert set(failed) == {"a", "c"}
    assert failed["c"].startswith("its worker: ")
    found = tables.load(tmp_path / "r")
    assert [(c.arm, c.runs) for c in found.comparisons if c.total] == [("b", 4)]


def test_a_plan_of_several_units_or_two_arms_is_not_split() -> None:
    assert [unit.name for unit in make(ARMS + UNITS).unit] == ["u0", "u1"]
    two = ARMS.partition('[[arm]]\nname = "c"')[0]
    assert [unit.name for unit in make(two + ONE_UNIT).unit] == ["u0"]
