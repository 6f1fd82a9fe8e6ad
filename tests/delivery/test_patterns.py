"""Entries that stand for several files, and files that come late."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import samples

from stagexec.delivery import late, patterns
from stagexec.delivery.verify import verify


@pytest.mark.parametrize(
    ("name", "matching"),
    [
        ("x.%03d.png", "x.001.png"),
        ("x_%d.png", "x_12.png"),
        ("x.####.png", "x.0007.png"),
        ("x_*.png", "x_any.png"),
        ("x_{:04d}.png", "x_0003.png"),
        ("100%%_%02d.png", "100%_01.png"),
    ],
)
def test_a_pattern_stands_for_the_files_of_its_form_alone(tmp_path: Path, name: str, matching: str) -> None:
    for one in (matching, "other.png", "x.txt"):
        (tmp_path / one).touch()
    assert patterns.is_pattern(name)
    assert patterns.files_of(str(tmp_path / name), None) == [str(tmp_path / matching)]


@pytest.mark.parametrize("name", ["x_00001_.png", "100%.png", "a [1].png", "100%%.png"])
def test_an_ordinary_name_is_no_pattern(name: str) -> None:
    assert not patterns.is_pattern(name)


def test_files_of_an_earlier_longer_sequence_are_left_out(tmp_path: Path) -> None:
    for at in (1, 2, 3):
        (tmp_path / f"x.{at}.png").touch()
    os.utime(tmp_path / "x.3.png", (1, 1))
    found = patterns.files_of(str(tmp_path / "x.%d.png"), time.time_ns() - 60_000_000_000)
    assert [Path(one).name for one in found] == ["x.1.png", "x.2.png"]


def test_a_file_that_grows_is_checked_when_it_is_whole(tmp_path: Path) -> None:
    path, whole = tmp_path / "a.png", tmp_path / "b.png"
    samples.image(whole)
    content = whole.read_bytes()

    def write() -> None:
        time.sleep(0.3)
        with path.open("wb") as file:
            for piece in (content[:20], content[20:40], content[40:]):
                file.write(piece)
                file.flush()
                time.sleep(0.2)

    told: list[tuple[bool, bool]] = []
    patience = late.Patience(lambda *what: told.append(what))
    thread = threading.Thread(target=write)
    thread.start()
    found = late.check(verify, path, time.time_ns(), patience)
    thread.join()
    assert (found.state, found.bytes) == ("verified", len(content))
    assert (told[0], told[-1]) == ((True, True), (False, True))


def test_a_file_that_never_comes_is_missing_and_one_run_waits_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late, "COMES_S", 0.2)
    told: list[tuple[bool, bool]] = []
    patience = late.Patience(lambda *what: told.append(what))
    looks: list[Path] = []

    def look(path: Path):
        looks.append(path)
        return verify(path)

    first = late.check(look, tmp_path / "a.png", time.time_ns(), patience)
    looks.clear()
    second = late.check(look, tmp_path / "b.png", time.time_ns(), patience)
    assert [first.state, second.state] == ["missing", "missing"]
    assert len(looks) == 1
    assert (told[0], told[-1]) == ((True, True), (False, False))


def test_a_file_that_is_cut_short_and_stays_so_lengthens_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late, "CUT_S", 0.2)
    path = tmp_path / "a.png"
    samples.image(path)
    path.write_bytes(path.read_bytes()[:40])
    told: list[tuple[bool, bool]] = []
    patience = late.Patience(lambda *what: told.append(what))
    assert late.check(verify, path, time.time_ns(), patience).state == "corrupt"
    assert (told[0], told[-1]) == ((True, True), (False, False))


def test_a_file_that_was_whole_in_time_is_looked_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    samples.image(path)
    looks: list[Path] = []
    told: list[tuple[bool, bool]] = []
    patience = late.Patience(lambda *what: told.append(what))

    def look(path: Path):
        looks.append(path)
        return verify(path)

    assert late.check(look, path, time.time_ns(), patience).state == "verified"
    assert (len(looks), told) == (1, [])
