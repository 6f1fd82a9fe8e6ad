"""Whether all servers may live at once: by what the first takes, with a margin, on every kind of memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stagexec.bench import room

GB = 10**9


def ram(free: int, used: int, peak: int = 0, total: int = 64) -> room.Memory:
    return room.Memory("memory", total * GB, free * GB, used * GB, max(used, peak) * GB)


@pytest.mark.parametrize(
    ("memory", "more", "fits"),
    [
        (ram(free=40, used=10), 2, True),  # 20 and a margin of 6.4
        (ram(free=26, used=10), 2, False),
        (ram(free=27, used=10), 2, True),
        (ram(free=27, used=10, peak=12), 2, False),  # the one that runs takes 2 more at its highest
        (ram(free=27, used=10), 1, True),
    ],
)
def test_servers_fit_when_idle_ones_a_running_one_and_a_margin_do(
    memory: room.Memory, more: int, fits: bool
) -> None:
    assert room.judge([memory], more).fits is fits


def test_one_memory_that_is_short_is_enough_and_the_sentence_has_its_figures() -> None:
    device = room.Memory("device GPU-1", 24 * GB, 12 * GB, 10 * GB, 15 * GB)
    found = room.judge([ram(free=60, used=2), device], 1)
    assert not found.fits
    assert found.why == (
        "a server takes 10.0 GB of device GPU-1, 1 more would need 17.4 GB with a margin, "
        "and 12.0 GB are free"
    )
    assert [one["memory"] for one in found.figures] == ["memory", "device GPU-1"]
    assert found.figures[1]["need_bytes"] == 17_400_000_000


def test_a_living_process_is_measured_and_its_highest_is_no_less_than_what_it_has() -> None:
    (found,) = room.measure(os.getpid(), {}, on_device=False) or []
    assert found.name == "memory"
    assert 5_000_000 < found.used <= found.peak < found.total
    assert 0 < found.free < found.total


def test_a_device_that_cannot_be_asked_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_each_device", list)
    assert room.measure(os.getpid(), {}, on_device=True) is None
    assert room.device_bytes() == {}
    assert room.device_state() == {}


def test_a_containers_limit_counts_before_the_machines_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in ("max", "current", "stat")]
    for file, text in zip(
        files, (f"{8 * GB}\n", f"{6 * GB}\n", f"anon 1\ninactive_file {GB}\n"), strict=True
    ):
        file.write_text(text)
    monkeypatch.setattr(room, "CGROUPS", (tuple(map(str, files)),))
    assert room._limited(64 * GB, 40 * GB) == (8 * GB, 3 * GB)
    files[0].write_text("max\n")
    assert room._limited(64 * GB, 40 * GB) == (64 * GB, 40 * GB)
