"""The exported timeline is well-formed Chrome trace JSON, and its times are the ledger's."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stagexec.cli import command
from stagexec.reading import rows, store
from stagexec.views import perfetto
from tests.device.conftest import Recorder
from tests.device.fake_device import MS, FakeGpu
from tests.device.test_events import sample_and_decode
from tests.reading.fake_journal import FakeJournal, tiny_run

PHASES = {"X", "M", "i", "C"}


def assert_well_formed(events: list[dict[str, Any]]) -> None:
    """What trace viewers require of each phase, and that intervals of one row nest or follow."""
    for one in events:
        assert isinstance(one["name"], str)
        assert isinstance(one["pid"], int)
        assert isinstance(one["tid"], (int, str))
        if one["ph"] == "M":
            assert set(one["args"]) <= {"name", "sort_index", "labels"}
            continue
        assert isinstance(one["ts"], (int, float))
        if one["ph"] == "X":
            assert one["dur"] >= 0
        if one["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in one["args"].values())
    named = {(one["pid"], one["tid"]) for one in events if one["name"] == "thread_name"}
    rows_used = {(one["pid"], one["tid"]) for one in events if one["ph"] == "X" and one["pid"] < 1000}
    assert rows_used <= named


def ours(events: list[dict[str, Any]], pid: int, tid: int) -> list[dict[str, Any]]:
    return [one for one in events if one["ph"] == "X" and (one["pid"], one["tid"]) == (pid, tid)]


@pytest.fixture
def run(tmp_path: Path) -> dict[str, Any]:
    journal = FakeJournal().head()
    journal.now = 5_000_000_123_456_789
    made = tiny_run(journal, "aaaa")
    base = made.accepted_ns
    spans = [
        ("task:1", "node_other", "async_node", 1, base + 10, base + 50),
        ("task:1", "node_other", "async_node", 1, base + 20, base + 60),
        ("task:1", "node_other", "async_node", 1, base + 55, base + 90),
    ]
    made.spans(*spans)
    journal.write(tmp_path)
    return rows.detail(store.load(tmp_path).find("last"))


def test_the_ledger_row_is_gap_free_and_starts_at_zero_to_the_nanosecond(run: dict[str, Any]) -> None:
    events = perfetto.timeline(run)["traceEvents"]
    assert_well_formed(events)
    ledger = ours(events, perfetto.RUN_PID, perfetto.LEDGER_TID)
    assert len(ledger) == len(run["segments"])
    assert ledger[0]["ts"] == 0
    for before, after in pairwise(ledger):
        assert round(before["ts"] * 1000) + round(before["dur"] * 1000) == round(after["ts"] * 1000)
    assert round(ledger[-1]["ts"] * 1000) + round(ledger[-1]["dur"] * 1000) == run["total_ns"]


def test_spans_that_overlap_lie_in_rows_of_their_own(run: dict[str, Any]) -> None:
    events = perfetto.timeline(run)["traceEvents"]
    lanes = [one for one in events if one["ph"] == "X" and one["tid"] >= perfetto.LANES_TID]
    assert [one["tid"] for one in lanes] == [10, 11, 10]
    names = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert (names[10], names[11]) == ("task:1", "task:1")


def test_the_device_row_shows_the_sampler_where_the_device_did_it(recorder: Recorder, gpu: FakeGpu) -> None:
    shown = sample_and_decode(recorder, gpu)
    events = perfetto.timeline(shown)["traceEvents"]
    assert_well_formed(events)
    rows_ = {one["name"]: one for one in ours(events, perfetto.DEVICE_PID, 1)}
    host = {one["name"]: one for one in ours(events, perfetto.RUN_PID, perfetto.LEDGER_TID)}
    assert rows_["sampling"]["dur"] > 99_000 > host["sampling/step"]["dur"]
    assert rows_["vae_decode"]["ts"] == pytest.approx(rows_["sampling"]["ts"] + rows_["sampling"]["dur"])
    assert {one["name"] for one in events if one["ph"] == "C"} >= {"allocated_bytes", "rss_bytes"}


def torch_trace(mono_ns: int) -> dict[str, Any]:
    return {
        "baseTimeNanoseconds": 1,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "args": {"name": "python"}},
            {
                "ph": "X",
                "name": f"stagexec.anchor/{mono_ns}",
                "pid": 77,
                "tid": 77,
                "ts": 9e12 + 0.5,
                "dur": 3,
            },
            {"ph": "X", "name": "aten::mm", "pid": 77, "tid": 77, "ts": 9e12 + 1000.5, "dur": 20},
            {"ph": "X", "name": "kernel", "pid": 0, "tid": 7, "ts": 9e12 + 2000.5, "dur": 20},
        ],
    }


def test_torchs_events_are_moved_onto_the_ledgers_clock_by_the_anchor(run: dict[str, Any]) -> None:
    trace = torch_trace(run["accepted_mono_ns"] + 5 * MS)
    made = perfetto.timeline(run, trace)
    events = made["traceEvents"]
    by_name = {one["name"]: one for one in events if one["pid"] >= perfetto.TORCH_PID}
    assert by_name["aten::mm"]["ts"] == pytest.approx(6_000, abs=0.01)
    assert by_name["aten::mm"]["pid"] != by_name["kernel"]["pid"]
    assert not any(one["name"].startswith("stagexec.anchor") for one in events)
    assert made["otherData"]["notes"] == ""


def test_a_trace_without_our_anchor_is_left_out_and_said(run: dict[str, Any]) -> None:
    made = perfetto.timeline(run, {"traceEvents": [{"ph": "X", "name": "x", "ts": 1, "pid": 1, "tid": 1}]})
    assert "left out" in made["otherData"]["notes"]
    assert all(one["pid"] < perfetto.TORCH_PID for one in made["traceEvents"])


def call(*words: str) -> Any:
    return CliRunner().invoke(command, words)


def test_the_verb_writes_the_file(run: dict[str, Any], tmp_path: Path) -> None:
    target = tmp_path / "timeline.json"
    done = call("export", "last", "--ledger", str(tmp_path), "--perfetto", str(target))
    assert done.exit_code == 0, done.output
    assert_well_formed(json.loads(target.read_text())["traceEvents"])


def test_mistakes_of_the_export_verb_are_one_line_and_exit_2(run: dict[str, Any], tmp_path: Path) -> None:
    for words in (
        ("export", "last", "--ledger", str(tmp_path)),
        ("export", "last", "aaaa", "--ledger", str(tmp_path), "--perfetto", str(tmp_path / "x")),
        ("export", "nothing", "--ledger", str(tmp_path), "--perfetto", str(tmp_path / "x")),
    ):
        done = call(*words)
        assert done.exit_code == 2, words
        assert done.output.count("\n") == 1
    done = call("export", "last", "--ledger", str(tmp_path), "--perfetto", str(tmp_path / "no" / "x"))
    assert done.exit_code == 2
    assert "Traceback" not in done.output
