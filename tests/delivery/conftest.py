"""Modules of this folder import its helpers by name, and some need a disk that is nearly full."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import faults_expected, fresh_recorder, no_fault_of_ours

__all__ = ["faults_expected", "fresh_recorder", "no_fault_of_ours"]

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's own ledger; what is pending is kept there."""
    monkeypatch.setenv("STAGEXEC_LEDGER", str(tmp_path / "ledger"))
    return tmp_path / "ledger"


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """A short video to deliver."""
    import samples

    (tmp_path / "made").mkdir()
    made: Path = samples.video(tmp_path / "made" / "clip.mp4", "mpeg4")
    return made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 KiB, where one may be mounted; RLIMIT_FSIZE stands in for it elsewhere."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount here; the limit on file sizes is tested in its place")
    if done.returncode:
        pytest.skip(
            f"nothing may be mounted here ({done.stderr.strip()}); RLIMIT_FSIZE is tested in its place"
        )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
