"""What a person sees while a bench runs."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from stagexec.bench import plan, results, runner, screen
from tests.bench.fake_lab import PROMPT, FakeLab
from tests.bench.test_report import ARMS, UNIT


def watched(folder: Path, lab: FakeLab, terminal: bool) -> tuple[screen.Screen, str]:
    out = io.StringIO()
    wanted = plan.parse(f'name = "test"\n{ARMS}{UNIT}')
    opened = results.create(folder, wanted, PROMPT, {})
    with screen.Screen(Console(file=out, force_terminal=terminal, width=120)) as watch:
        runner.Bench(wanted, lab, opened, watch).run()
    return watch, out.getvalue()


def test_on_a_terminal_a_table_fills_and_the_progress_is_counted(tmp_path: Path) -> None:
    watch, shown = watched(tmp_path / "r", FakeLab(), terminal=True)
    assert "20/20 measures, done" in re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert {key[2]: len(times) for key, times in watch.times.items()} == {"a": 10, "b": 10}


def test_in_a_pipe_each_run_is_a_line_with_the_time_left(tmp_path: Path) -> None:
    _, shown = watched(tmp_path / "r", FakeLab(script={("a", 3): "cache"}), terminal=False)
    lines = shown.splitlines()
    assert sum("counted run of pair" in line for line in lines) == 21
    assert any(" left)" in line for line in lines)
    assert any("not counted M03, a: nodes 3, 8, 9 were not executed" in line for line in lines)
    assert lines[-1] == "finished"


def test_what_went_wrong_is_said_at_once(tmp_path: Path) -> None:
    text = watched(tmp_path / "q", FakeLab(fits=False), terminal=False)[1]
    assert "not side by side M03: 1 more do not fit" in text
    lab = FakeLab(missing={"b": "no [package]"}, script={("a", 3): "die"})
    _, shown = watched(tmp_path / "r", lab, terminal=False)
    assert "unavailable M03, b: no [package]" in shown
    assert "server died M03, a: the server ended with code 3" in shown


def test_the_time_left_takes_measures_and_launches_each_at_their_own_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two launches of 10 s and four measures of 1 s are done; six measures and one launch are left."""
    now = 0.0
    monkeypatch.setattr(screen.time, "monotonic", lambda: now)
    watch = screen.Screen(Console(file=io.StringIO()))
    watch("start", {"planned": 10, "done": 0, "launches": 3})
    for launch in (2, 1):
        watch("open", {"arm": "a"})
        now += 10.0
        watch("session", {})
        for _ in range(2):
            now += 1.0
            watch("measure", {"planned": 10, "done": watch.done + 1, "launches": launch})
    assert watch.left() == "16.00 s left"
