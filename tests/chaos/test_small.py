"""The chaos suite at small size: one seed, each kind of harm once. `make chaos` plays it at full size."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos import lives, scenes, shim
from tests.chaos.__main__ import Chaos
from tests.chaos.lives import Life
from tests.chaos.scenes import Scene
from tests.chaos.site import Site

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals kill the hosts")

SEED = 12
MINUTES = 20.0
"""Far more than it takes: a bound for a machine that hangs."""

KILLED = ("answered", "holding", "delivering", "any")
INJURED = (
    "full_kill",
    "full",
    "read_only",
    "replaced",
    "ledger_gone",
    "suspend",
    "stop_kill",
)

HARM = (
    "deed half_a_character",
    "deed close_files",
    "wire client_vanishes",
    "disk full both",
    "stop",
)
LIFE = Life(0, HARM, "holding", "kill -9 of group", 1.6)


def lost(chaos: Chaos) -> Sequence[str]:
    return [f"{loss.kind}: {loss.what} ({loss.scene})" for loss in chaos.tally.losses]


def test_hosts_in_miniature_lose_nothing_when_killed_or_when_disk_and_clocks_fail(
    tmp_path: Path,
) -> None:
    chaos = Chaos(SEED, tmp_path, MINUTES, loud=True)
    chosen: list[Scene] = [scenes.draw_killed(SEED, at, moment) for at, moment in enumerate(KILLED)]
    chosen += [scenes.draw_injured(SEED, 100 + at, injury) for at, injury in enumerate(INJURED)]
    chaos.miniature(chosen, jobs=2)
    assert lost(chaos) == []
    assert sum(chaos.tally.tries.values()) + sum(chaos.tally.skipped.values()) == len(chosen)
    assert isinstance(chaos.library, shim.Unavailable) or not chaos.tally.skipped
    assert sum(chaos.tally.accepted.values()) > len(chosen)


@pytest.mark.host
def test_a_comfyui_that_is_harmed_and_then_killed_with_its_interpreter_held_loses_nothing(
    tmp_path: Path, host_tree: Path, checkpoint: Path
) -> None:
    chaos = Chaos(SEED, tmp_path, MINUTES, loud=True)
    lives.play(LIFE, Site(tmp_path / "site", chaos.library, host_tree), chaos)
    assert lost(chaos) == []
    assert chaos.tally.kills["in a ComfyUI"] == 1
    assert sum(chaos.tally.tries.values()) + sum(chaos.tally.skipped.values()) == len(LIFE.acts) + 1
