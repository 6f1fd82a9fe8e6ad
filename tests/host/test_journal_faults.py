"""A journal that cannot be written: the prompts do not notice, and the log says it once."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench import lab
from stagexec.reading import store
from tests.conftest import Servers
from tests.host import graphs
from tests.host.witness import Witness, closed_run, ledger_of, sound

WARNING = "cannot be written"
AGAIN = "the journal is written again"


def assert_unnoticed(server: lab.Server, prompt: graphs.Prompt) -> None:
    """The prompt ends as without us: messages, history, file."""
    with server.client() as client:
        prompt_id = client.submit(prompt)
        messages = client.wait(prompt_id)
        history = client.history(prompt_id)
    assert "execution_success" in [message["type"] for message in messages]
    assert history is not None
    assert history["status"]["status_str"] == "success"
    ((entry,),) = [ui["images"] for ui in history["outputs"].values()]
    assert (server.output / entry["subfolder"] / entry["filename"]).is_file()


def warnings(server: lab.Server) -> int:
    """How often the log says that the journal cannot be written."""
    return sum(WARNING in line and "stagexec: the journal" in line for line in server.log().splitlines())


def a_file(folder: Path) -> Path:
    (folder / "file").write_text("in the way", encoding="utf-8")
    return folder / "file"


def a_read_only_folder(folder: Path) -> Path:
    if sys.platform == "win32" or os.geteuid() == 0:
        pytest.skip("this user may write everywhere")
    (folder / "locked").mkdir(mode=0o500)
    return folder / "locked"


@pytest.mark.parametrize("in_the_way", [a_file, a_read_only_folder])
def test_a_ledger_that_cannot_be_made_leaves_prompts_untouched_and_is_told_once(
    server: Servers, tmp_path: Path, in_the_way: Any
) -> None:
    ledger = in_the_way(tmp_path)
    running = server(ledger=ledger)
    for color in range(3):
        assert_unnoticed(running, graphs.invert_save(color=color))
        time.sleep(0.5)
    assert warnings(running) == 1
    assert running.stop() == 0
    assert "Traceback" not in running.log()


def test_a_journal_that_was_removed_is_made_anew_with_its_head(server: Servers) -> None:
    witness = Witness(server())
    try:
        before = witness.run(graphs.invert_save())
        shutil.rmtree(witness.folder)
        after = witness.run(graphs.invert_save(color=1))
    finally:
        witness.close()
    runs = store.load(witness.folder).runs
    assert [run.prompt_id for run in runs] == [after.prompt_id] != [before.prompt_id]
    assert runs[0].process.start is not None
    assert runs[0].process.host is not None
    assert runs[0].process.host.host_version == "0.30.0"
    assert runs[0].process.seams
    assert warnings(witness.server) == 0


def test_what_happened_while_something_stood_in_the_way_is_in_the_ledger_when_it_is_gone(
    server: Servers,
) -> None:
    running = server()
    ledger = ledger_of(running)
    assert_unnoticed(running, graphs.invert_save())
    wait_for_runs(ledger, 1)
    ledger.rename(ledger.with_name("away"))
    ledger.write_text("in the way", encoding="utf-8")
    for color in (1, 2):
        assert_unnoticed(running, graphs.invert_save(color=color))
    ledger.unlink()
    time.sleep(1.5)
    witness = Witness(running)
    try:
        seen_id = witness.client.submit(graphs.invert_save(color=3))
        witness.client.wait(seen_id)
        run = closed_run(ledger, seen_id)
    finally:
        witness.close()
    assert run.outcome == "success"
    assert run.process.lost_events == 0
    assert run.process.start is not None
    assert [one.outcome for one in store.load(ledger).runs] == [
        "success"
    ] * 3  # the first went away with its file
    assert warnings(running) == 1
    assert running.log().count(AGAIN) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="limits on file sizes are POSIX")
def test_a_full_disk_under_the_journal_loses_nothing(server: Servers) -> None:
    witness = Witness(server())
    try:
        first = witness.run(graphs.invert_save())
        (journal,) = witness.folder.rglob("*.jsonl")
        limit = journal.stat().st_size
        full = graphs.line(graphs.empty(1), graphs.node("StxFileLimit", value=["1", 0], bytes=limit))
        witness.client.run(full)
        size = journal.stat().st_size
        for color in (2, 3):
            assert_unnoticed(witness.server, graphs.invert_save(color=color))
        assert journal.stat().st_size == size
        assert warnings(witness.server) == 1
        witness.client.run(graphs.lift_limit())
        time.sleep(1.5)
        last_id = witness.client.submit(graphs.invert_save(color=4))
        witness.client.wait(last_id)
        last = closed_run(witness.folder, last_id)
    finally:
        witness.close()
    assert last.outcome == "success"
    assert last.process.lost_events == 0
    assert last.segments.total_ns() == (last.finished_ns or 0) - last.accepted_ns
    loaded = store.load(witness.folder)
    assert loaded.find(first.prompt_id).outcome == "success"
    assert len(loaded.runs) == 6
    assert all(run.segments.total_ns() == (run.finished_ns or 0) - run.accepted_ns for run in loaded.runs)
    assert [problem.kind for problem in loaded.problems if problem.kind != "torn_middle"] == []


def wait_for_runs(ledger: Path, count: int) -> None:
    """Return when that many runs of the ledger are closed and sound."""
    end = time.monotonic() + 30
    while True:
        runs = [run for run in store.load(ledger).runs if run.outcome is not None]
        if len(runs) >= count:
            break
        assert time.monotonic() < end
        time.sleep(0.05)
    for run in runs:
        sound(ledger, run)
