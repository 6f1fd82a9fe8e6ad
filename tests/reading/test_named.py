"""The named share of a run, what ran in the rest, reads from disk, and who had the machine's CPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import cpu, disk, named, rows, store
from stagexec.reading.runs import Run
from stagexec.views import names, text
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun, S


def folded(journal: FakeJournal, ledger: Path) -> Run:
    journal.write(ledger)
    (run,) = store.load(ledger).runs
    return run


def samples(run: FakeRun, *told: tuple[int, str | None, int]) -> None:
    run.columns("samples", *({"visit": v, "name": n, "count": 3, "ns": ns} for v, n, ns in told))


def a_run(journal: FakeJournal) -> FakeRun:
    """10 ms of loop, then 400 ms by a seam, 200 ms by a known class, 600 ms and 100 ms that are not known."""
    run = FakeRun(journal, "aaaa", TINY).spend(4 * MS).start().spend(6 * MS)
    run.visit(1, "3", "KSampler", [("sampling", 400 * MS, "sample")])
    run.visit(2, "4", "Upscale", [("postprocess", 200 * MS)], origin="table")
    run.visit(3, "5", "Mystery", [("node_other", 600 * MS)], origin="none")
    run.visit(4, "6", "Small", [("node_other", 100 * MS)], origin="type")
    return run


def test_the_parts_of_a_run_s_names_add_up_to_its_total(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    a_run(journal).execute().spend(MS).close()
    run = folded(journal, tmp_path)
    assert named.parts(run) == {
        "loop_ns": 11 * MS,
        "seam_ns": 400 * MS,
        "class_ns": 200 * MS,
        "sampled_ns": 0,
        "hint_ns": 0,
        "unnamed_ns": 700 * MS,
    }
    assert named.share(run) == 611 / 1311
    assert rows.detail(run)["named_share"] == 611 / 1311


def test_what_was_seen_to_run_has_a_name_as_far_as_it_was_seen(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = a_run(journal)
    samples(run, (3, "cv2.inpaint ← pack.fill", 400 * MS), (3, None, 100 * MS))
    run.execute().spend(MS).close()
    found = folded(journal, tmp_path)
    assert named.parts(found)["sampled_ns"] == 500 * MS
    assert named.parts(found)["unnamed_ns"] == 200 * MS
    (row,) = named.unnamed(found)
    assert row == {
        "visit": 3,
        "node_id": "5",
        "node_class": "Mystery",
        "stage": "node_other",
        "ns": 600 * MS,
        "ran": [{"name": "cv2.inpaint ← pack.fill", "share": 0.8}, {"name": None, "share": 0.2}],
    }
    assert names.line_of(row) == "node 5 (Mystery): 600 ms unnamed, 80% in cv2.inpaint ← pack.fill"


def test_what_a_class_likely_does_is_a_name_that_is_counted_apart(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(4 * MS).start()
    run.visit(1, "3", "Detailer", [("node_other", 600 * MS)], origin="type", hint="sampling")
    samples(run, (1, "cv2.inpaint ← pack.fill", 250 * MS))
    run.execute().close()
    found = named.parts(folded(journal, tmp_path))
    assert (found["sampled_ns"], found["hint_ns"], found["unnamed_ns"]) == (250 * MS, 350 * MS, 0)


def test_a_wait_of_the_loop_s_own_has_a_name_and_a_class_by_its_types_too(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    run.visit(1, "3", "Remote", [("external_wait", S)], origin="none")
    run.visit(2, "4", "Encode", [("conditioning", S)], origin="type")
    run.execute().close()
    assert named.share(folded(journal, tmp_path)) == 1.0


def test_a_stage_that_the_class_does_not_stand_for_is_unnamed(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    run.visit(1, "3", "Odd", [("node_other", S)], origin="table", stage="sampling")
    run.execute().close()
    assert named.share(folded(journal, tmp_path)) == 0.0


def test_a_run_without_length_has_no_share(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    FakeRun(journal, "aaaa", TINY).start().execute().close()
    assert named.share(folded(journal, tmp_path)) is None


def test_a_share_that_is_not_whole_is_never_shown_as_whole(tmp_path: Path, capsys: Any) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    run.visit(1, "3", "KSampler", [("sampling", S, "sample")]).visit(
        2, "4", "X", [("node_other", MS)], origin="none"
    )
    run.execute().close()
    text.print_run(text.console(), {**rows.detail(folded(journal, tmp_path)), "diagnoses": []})
    assert "named 99% of this run" in capsys.readouterr().out


def read(run: FakeRun, **fields: Any) -> None:
    told = {"file": "text:ab.safetensors", "bytes": 200_000_000, "pages": 4096, "cold_pages": 4096}
    detail = {**told, "io_bytes": 199_000_000, "ns": 2 * S, **fields}
    run.journal.add("mark", run, source="seam", name="weights_read", detail=detail, visit=1)


@pytest.mark.parametrize(
    ("fields", "from_disk"),
    [
        ({}, 200_000_000),
        ({"cold_pages": 1024}, 50_000_000),
        ({"cold_pages": 0}, 0),
        ({"pages": None, "cold_pages": None}, 199_000_000),
        ({"pages": None, "cold_pages": None, "io_bytes": None}, None),
        ({"cold_pages": "many"}, 199_000_000),
    ],
)
def test_a_read_says_how_much_came_from_disk(tmp_path: Path, fields: Any, from_disk: int | None) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    read(run, **fields)
    run.execute().close()
    (told,) = disk.reads(folded(journal, tmp_path))
    assert told == {
        "file": "text:ab.safetensors",
        "bytes": 200_000_000,
        "disk_bytes": from_disk,
        "ns": 2 * S,
        "visit": 1,
    }


def test_reads_are_added_up_and_told_in_one_line(tmp_path: Path, capsys: Any) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    read(run)
    read(run, bytes=100_000_000, cold_pages=0, ns=S)
    run.spend(S).execute().close()
    found = folded(journal, tmp_path)
    assert disk.total(found) == {"bytes": 300_000_000, "disk_bytes": 200_000_000, "ns": 3 * S}
    names.print_reads(text.console(), rows.detail(found))
    line = capsys.readouterr().out.strip()
    assert line == "read 300.0 MB of weights from 2 files in 3.00 s (100 MB/s), 200.0 MB of it from disk"


def test_a_run_that_read_nothing_has_no_sum(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    FakeRun(journal, "aaaa", TINY).start().execute().close()
    assert disk.total(folded(journal, tmp_path)) is None


def readings(run: FakeRun, *told: tuple[int, int, int | None]) -> None:
    columns = ({"at_ns": at, "own_ns": own, "busy_ns": busy, "cores": 4} for at, own, busy in told)
    run.columns("cpu", *columns)


def test_cpu_time_goes_to_the_stages_that_lie_between_the_readings(tmp_path: Path, capsys: Any) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    run.visit(1, "3", "KSampler", [("sampling", S)]).visit(2, "4", "Post", [("postprocess", S)])
    readings(run, (0, 5, 10), (S, 5 + S, 10 + S), (2 * S, 5 + S, 10 + S + 34 * S // 10))
    run.execute().close()
    found = folded(journal, tmp_path)
    assert cpu.by_stage(found) == {
        "sampling": {"covered_ns": S, "own_ns": S, "others_share": 0.0},
        "postprocess": {"covered_ns": S, "own_ns": 0, "others_share": pytest.approx(0.85)},
    }
    assert cpu.machine_busy(found, "postprocess") == pytest.approx(0.85)
    assert cpu.machine_busy(found, "vae_decode") is None
    names.print_others(text.console(), rows.detail(found))
    assert capsys.readouterr().out == "during postprocess other programs had 85% of the CPUs\n"


def test_a_stretch_between_two_readings_is_shared_by_its_stages(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    run.visit(1, "3", "KSampler", [("sampling", 300)]).visit(2, "4", "Post", [("postprocess", 100)])
    readings(run, (100, 0, None), (400, 900, None))
    run.execute().close()
    assert cpu.by_stage(folded(journal, tmp_path)) == {
        "sampling": {"covered_ns": 200, "own_ns": 600, "others_share": None},
        "postprocess": {"covered_ns": 100, "own_ns": 300, "others_share": None},
    }
