"""Without the packages of the extra `bench` the command says so before it does anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stagexec.bench import needs
from stagexec.cli import command


@pytest.mark.parametrize("words", [("report", "folder"), ("executor",)])
def test_a_missing_package_is_one_line_that_names_the_extra(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [*needs.PACKAGES, "scipy.stats"]:
        monkeypatch.setitem(sys.modules, name, None)
    done = CliRunner().invoke(command, ["bench", *words])
    assert done.exit_code == 2
    assert done.output == (
        "Error: the bench needs numpy and scipy and Pillow: pip install 'stagexec[bench]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_with_all_of_them_nothing_is_said_and_all_are_loaded() -> None:
    needs.require()
    assert set(needs.PACKAGES) <= set(sys.modules)
