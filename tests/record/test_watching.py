"""What runs in unnamed stretches, and CPU time, as a thread beside the run sees them."""

from __future__ import annotations

import json
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from stagexec.reading import cpu, named, rows, store
from stagexec.reading.runs import Run as Folded
from stagexec.record import live, pagecache, stacks, watching
from stagexec.record import run as run_module
from tests.faults import fresh_recorder, no_fault_of_ours

__all__ = ["fresh_recorder", "no_fault_of_ours"]

PACK = "/somewhere of mine/custom_nodes/pretend-pack"
NODE = """
import time

def slow(seconds):
    time.sleep(seconds)

def run(seconds):
    slow(seconds)

def burn(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(1000))
"""


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module as ComfyUI loads a node pack: named by the whole path of its folder."""
    file = tmp_path / "nodes.py"
    file.write_text(NODE, encoding="utf-8")
    module = types.ModuleType(f"{PACK}.nodes")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(NODE, str(file), "exec"), vars(module))
    return module


def visit(run: live.Run, number: int, work, *args, stage="node_other", origin="none") -> None:
    """One visit of a node whose function is `work`."""
    run.next_visit(str(number), "SomeNode")
    begin = run.clock()
    run.ledger.switch("executor_overhead")
    depth = run.enter(stage, "SomeNode")
    work(*args)
    run.leave(depth)
    run.end_visit()
    run.ledger.switch("executor_overhead")
    node = (str(number), "SomeNode", "executed", None, 1, None)
    run.pending_visits.append((number, *node, begin, run.clock(), stage, origin, False, None))


def read(ledger: Path) -> Folded:
    (found,) = store.load(ledger).runs
    return found


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A journal of this process."""
    live.begin_process(tmp_path / "ledger", timing="baseline", executor_asked=None)
    return tmp_path / "ledger"


def finished(run: live.Run, ledger: Path) -> dict:
    live.finish(run, {"host_status": "success"}, {})
    assert live.journal is not None
    assert live.journal.flush()
    return rows.detail(read(ledger))


def test_a_long_unnamed_visit_says_what_ran(ledger: Path, pack: types.ModuleType) -> None:
    run = live.start("p")
    assert run is not None
    visit(run, 1, pack.run, 0.8)
    told = finished(run, ledger)
    (row,) = told["unnamed"]
    assert (row["visit"], row["node_id"], row["node_class"]) == (1, "1", "SomeNode")
    assert row["stage"] == "node_other"
    assert 790_000_000 < row["ns"] < 5_000_000_000
    best = row["ran"][0]
    expected = (
        "time.sleep ← pretend-pack.nodes.slow" if sys.version_info >= (3, 11) else "pretend-pack.nodes.slow"
    )
    assert best["name"] == expected
    assert best["share"] > 0.6
    assert told["named_share"] > 0.7
    assert sum(told["named"].values()) == told["total_ns"]


def test_no_path_and_no_text_is_in_the_journal(ledger: Path, pack: types.ModuleType) -> None:
    run = live.start("p")
    assert run is not None
    scope = {"__name__": pack.__name__, "__file__": pack.__file__}
    exec("import time\ndef a_woman_in_red(s): time.sleep(s)", scope)
    visit(run, 1, scope["a_woman_in_red"], 0.5)
    told = finished(run, ledger)
    assert told["unnamed"][0]["ran"][0]["name"].endswith("pretend-pack.nodes.?")
    text = json.dumps(told["unnamed"], ensure_ascii=False)
    assert "woman" not in text
    assert "somewhere" not in text


def test_a_visit_in_a_seam_or_a_short_one_is_not_looked_into(ledger: Path, pack: types.ModuleType) -> None:
    run = live.start("p")
    assert run is not None

    def in_a_seam() -> None:
        depth = run.enter("sampling", None, "sample")
        pack.run(0.4)
        run.leave(depth)

    visit(run, 1, in_a_seam)
    visit(run, 2, pack.run, 0.05)
    told = finished(run, ledger)
    assert read(ledger).sample_events == []
    assert told["unnamed"] == []
    assert told["named"]["seam_ns"] >= 400_000_000


def test_a_class_that_is_known_to_do_one_thing_has_a_name(ledger: Path, pack: types.ModuleType) -> None:
    run = live.start("p")
    assert run is not None
    visit(run, 1, pack.run, 0.3, stage="postprocess", origin="table")
    told = finished(run, ledger)
    assert told["named_share"] == 1.0
    assert told["named"]["class_ns"] >= 300_000_000
    (row,) = told["unnamed"]  # what ran there is told all the same
    assert row["stage"] == "postprocess"


def test_frames_of_a_run_are_not_kept(ledger: Path, pack: types.ModuleType) -> None:
    import gc
    import weakref

    class Big:
        pass

    seen = []

    def work() -> None:
        big = Big()
        seen.append(weakref.ref(big))
        pack.run(0.5)

    run = live.start("p")
    assert run is not None
    visit(run, 1, work)
    gc.collect()
    assert seen[0]() is None
    finished(run, ledger)


def test_cpu_time_of_a_stage_is_its_own(ledger: Path, pack: types.ModuleType) -> None:
    run = live.start("p")
    assert run is not None
    visit(run, 1, pack.burn, 0.9, stage="sampling", origin="table")
    visit(run, 2, pack.run, 0.9, stage="postprocess", origin="table")
    told = finished(run, ledger)["cpu"]
    assert told["sampling"]["covered_ns"] > 500_000_000
    assert told["sampling"]["own_ns"] > 3 * told["postprocess"]["own_ns"]
    share = told["sampling"]["others_share"]
    assert share is None or 0 <= share <= 1
    assert cpu.machine_busy(read(ledger), "sampling") == share
    assert cpu.machine_busy(read(ledger), "vae_decode") is None


def test_a_fault_while_looking_is_no_affair_of_the_run(
    ledger: Path, pack: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def broken(_frame: object) -> None:
        looked.append(1)

    monkeypatch.setattr(stacks, "told", broken)
    run = live.start("p")
    assert run is not None
    visit(run, 1, pack.run, 0.4)
    told = finished(run, ledger)
    assert looked
    assert told["unnamed"][0]["ran"] == []
    assert told["named"]["unnamed_ns"] >= 400_000_000


def test_a_fault_while_filing_what_ran_ends_the_visit_all_the_same(
    ledger: Path, monkeypatch: pytest.MonkeyPatch, faults_expected: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(run_module, "KEPT_NS", "planted")
    run = live.start("p")
    assert run is not None
    run.next_visit("1", "X")
    run.watched.saw(1, "pack.f", 10**9)
    run.end_visit()
    assert (run.visit, run.node, run.watched.seen) == (None, None, None)
    assert [where for where, _ in faults_expected] == ["Watched.file"]


def test_a_look_takes_microseconds_of_the_interpreter(pack: types.ModuleType) -> None:
    worker = threading.Thread(target=pack.run, args=(0.6,))
    worker.start()
    time.sleep(0.1)
    spent = []
    while worker.is_alive():
        begin = time.thread_time_ns()
        name = stacks.told(sys._current_frames().get(worker.ident))
        spent.append(time.thread_time_ns() - begin)
        time.sleep(0.01)
        if not worker.is_alive():
            break
        assert name is None or "pretend-pack" in name or "threading" in name
    spent.sort()
    assert spent[len(spent) // 2] < 500_000, "20 looks a second at half a millisecond are one percent"


def test_the_page_cache_is_asked_about_the_file(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"x" * 3_000_000)
    found = pagecache.look(file)
    assert found is not None
    assert found.bytes == 3_000_000
    assert found.looked_at is None or found.looked_at * 4096 >= 3_000_000
    assert found.cold is None or 0 <= found.cold <= found.looked_at
    assert pagecache.look(tmp_path) is None


def test_a_young_thread_of_the_run_is_enough_for_its_first_reading(ledger: Path) -> None:
    run = live.start("p")
    assert run is not None
    end = time.monotonic() + 5
    while run.watched.cpu_at_ns is None and time.monotonic() < end:
        time.sleep(0.01)
    assert run.watched.cpu_at_ns is not None
    assert watching.is_unnamed(("node_other", "X", 0, 1, None))
    assert not watching.is_unnamed(("external_wait", None, 0, 1, None))
    assert named.share(read_after(run, ledger)) == 1.0


def read_after(run: live.Run, ledger: Path) -> Folded:
    finished(run, ledger)
    return read(ledger)
