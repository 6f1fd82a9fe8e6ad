"""The suite's own eyes: a loss that is planted is seen, and a sound ledger is called sound."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import acts, checks, lives, mini, scenes, shim
from tests.chaos.played import Played, Posted
from tests.chaos.scenes import Scene, Work

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals kill the hosts")

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A host that ran a prompt, was in a second and had a third waiting when it was killed."""
    works = (Work("deliver", 0.01, 0.0), Work("steps", 3.0, 0.05), Work("quick", 0.0, 0.1))
    scene = Scene(0, 0, works, "any", 0.9, "process")
    played = mini.play(scene, tmp_path_factory.mktemp("killed") / "host", shim.Unavailable("not wanted"))
    assert len(played.accepted) == 3
    return played


def kinds(played: Played) -> set[str]:
    return {loss.kind for loss in checks.losses(played)}


def changed(played: Played, folder: Path, change: Callable[[Lines], Lines]) -> Played:
    """A copy of the scene whose journal is changed, without the note of its watcher."""
    ledger = folder / "ledger"
    shutil.copytree(played.ledger, ledger)
    (journal,) = ledger.glob("journal/*/*.jsonl")
    journal.with_suffix(".life").unlink(missing_ok=True)
    lines = [json.loads(line) for line in journal.read_bytes().splitlines() if line.endswith(b"}")]
    journal.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in change(lines)))
    return dataclasses.replace(played, ledger=ledger)


def test_nothing_is_lost_where_nothing_is_planted(killed: Played) -> None:
    assert checks.losses(killed) == []
    assert checks.command_losses(killed.ledger, [killed]) == []


def test_an_accepted_line_that_is_removed_is_a_missing_prompt(killed: Played, tmp_path: Path) -> None:
    waiting = killed.posted[2].prompt_id
    without = changed(
        killed, tmp_path, lambda lines: [one for one in lines if one.get("prompt_id") != waiting]
    )
    assert kinds(without) == {"accepted_missing"}
    assert [loss.kind for loss in checks.command_losses(without.ledger, [without])] == ["accepted_missing"]


def test_a_prompt_that_was_answered_for_and_is_in_no_journal_is_missing(killed: Played) -> None:
    more = dataclasses.replace(killed, posted=[*killed.posted, Posted("never", "quick", answered_ns=1)])
    assert kinds(more) == {"accepted_missing"}


def test_a_run_of_a_prompt_that_was_never_sent_is_invented(killed: Played) -> None:
    assert kinds(dataclasses.replace(killed, posted=killed.posted[1:])) == {"invented"}


def test_segments_that_are_cut_out_of_a_closed_run_make_it_inexact(killed: Played, tmp_path: Path) -> None:
    def cut(lines: Lines) -> Lines:
        of_first = next(one["run_id"] for one in lines if one["event_type"] == "run_closed")
        at = next(
            at
            for at, one in enumerate(lines)
            if one["event_type"] == "segments" and one["run_id"] == of_first
        )
        return lines[:at] + lines[at + 1 :]

    assert {"inexact", "audit"} <= kinds(changed(killed, tmp_path, cut))


def test_a_fifth_of_a_second_of_events_is_seen_when_it_is_gone(killed: Played, tmp_path: Path) -> None:
    last = max(killed.events_ns) - 200_000_000

    def cut(lines: Lines) -> Lines:
        return [one for one in lines if one["ts_mono_ns"] <= last]

    assert kinds(changed(killed, tmp_path, cut)) == {"events_lost"}


def test_two_seconds_without_a_sign_of_life_are_lost_time(killed: Played) -> None:
    assert killed.killed_ns is not None
    late = tuple(at + 2_000_000_000 for at in killed.killed_ns)
    assert kinds(dataclasses.replace(killed, killed_ns=late)) >= {"time_lost"}


def test_a_run_that_had_ended_and_is_told_as_lost_ended_wrongly(killed: Played, tmp_path: Path) -> None:
    def cut(lines: Lines) -> Lines:
        return [one for one in lines if one["event_type"] != "run_closed"]

    assert "wrong_end" in kinds(changed(killed, tmp_path, cut))


def test_bytes_that_are_no_json_in_the_middle_are_unreadable(killed: Played, tmp_path: Path) -> None:
    torn = changed(killed, tmp_path, lambda lines: lines)
    (journal,) = torn.ledger.glob("journal/*/*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:-1], b"\x00\xff{\n", lines[-1]]))
    assert {"unreadable", "audit"} <= kinds(torn)


@pytest.mark.parametrize("length", [0, 5000])
def test_a_file_of_ours_that_is_cut_is_partial(killed: Played, tmp_path: Path, length: int) -> None:
    output = tmp_path / "output"
    shutil.copytree(killed.output, output)
    (file,) = output.glob("deliver-*.bin")
    file.write_bytes(file.read_bytes()[:length])
    assert kinds(dataclasses.replace(killed, output=output)) == {"partial_file"}


def test_a_line_of_ours_in_a_file_of_the_user_is_seen(killed: Played, tmp_path: Path) -> None:
    output = tmp_path / "output"
    shutil.copytree(killed.output, output)
    (output / "user.txt").write_text('the user\'s\n{"event_type": "heartbeat"}\n', encoding="utf-8")
    assert kinds(dataclasses.replace(killed, output=output)) == {"foreign_write"}


def test_a_seed_and_a_number_give_the_same_scene_again() -> None:
    many = [scenes.draw(5, number) for number in range(900)]
    assert [scenes.draw(5, number) for number in range(900)] == many
    assert scenes.draw(6, 0) != many[0]
    assert {one.moment for one in many if one.injury is None} == set(scenes.MOMENTS)
    assert {one.injury for one in many} == {None, *scenes.INJURIES}
    assert [lives.draw(5, number) for number in range(9)] == [lives.draw(5, number) for number in range(9)]
    assert {act for number in range(400) for act in lives.draw(5, number).acts} == set(acts.ALL)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fault layer, compiled."""
    try:
        return shim.build(tmp_path_factory.mktemp("shim"))
    except shim.Unavailable as problem:
        pytest.skip(f"no fault layer: {problem}")


WRITER = """
import errno, os, sys, time
folder = sys.argv[1]
file = os.open(folder + "/reserved", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.posix_fallocate(file, 0, 8192)
os.truncate(folder + "/reserved", 0)
print("ready", flush=True)
sys.stdin.readline()
def tried(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]
new = tried(lambda: os.open(folder + "/new", os.O_WRONLY | os.O_CREAT))
print(tried(lambda: os.write(new, b"x")) if isinstance(new, int) else new)
print(tried(lambda: os.stat(folder).st_mode > 0))
print(round(time.time() - float(sys.argv[2])))
"""


@pytest.mark.parametrize(
    ("how", "written", "seen"),
    [
        ("full", "ENOSPC", "True"),
        ("read_only", "EROFS", "True"),
        ("broken", "EIO", "EIO"),
        ("slow", "1", "True"),
    ],
)
def test_the_fault_layer_does_what_its_rule_says_under_its_folder_alone(
    library: Path, tmp_path: Path, how: str, written: str, seen: str
) -> None:
    for name in ("injured", "sound"):
        (tmp_path / name).mkdir()
    layer = shim.Shim(library, tmp_path / "control")
    answers = {}
    for name in ("injured", "sound"):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / name), str(time.time())],
            stdin=-1, stdout=-1, text=True, env={**os.environ, **layer.environment},
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        layer.injure(how, tmp_path / "injured")
        layer.step(wall_s=3600.0)
        answers[name] = child.communicate("\n", timeout=30)[0].split()
        layer.heal()
        layer.step()
    assert answers["injured"][:2] == [written, seen]
    assert answers["sound"][:2] == ["1", "True"]
    assert all(3590 < int(words[2]) < 3660 for words in answers.values())
