"""Other programs' share of the processors."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from stagexec.bench import load

SPIN = "import time\nwhile time.process_time() < 0.6: pass"


def test_what_this_process_and_its_children_use_is_not_others() -> None:
    before, meter = time.process_time(), load.Meter()
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    ours = load._our_seconds()
    while time.process_time() - before < 0.5:
        pass
    child.wait()
    assert load._our_seconds() - ours > 1.0  # whatever else the machine does
    assert meter.others() < 1


def test_what_other_programs_use_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(load.time, "monotonic", iter([0.0, 10.0]).__next__)
    monkeypatch.setattr(load, "_busy_seconds", iter([100.0, 115.0]).__next__)
    monkeypatch.setattr(load, "_our_seconds", iter([5.0, 9.0]).__next__)
    assert load.Meter().others() == (15 - 4) / 20
