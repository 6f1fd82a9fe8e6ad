"""The index gives the rows that the fold gives, however the journal grew, and is disposable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagexec import stages as sets
from stagexec.reading import index, lean, progress, rows, store, table, tail, workers
from tests.reading.fake_journal import MS, TINY, WALL0, FakeJournal, FakeRun, S, cached_run, tiny_run

NOW = WALL0 + 3600 * S


def compact(journal: FakeJournal) -> bytes:
    """The events as the real writer lays them out."""
    return b"".join(json.dumps(e, separators=(",", ":")).encode() + b"\n" for e in journal.events)


def spaced(journal: FakeJournal) -> bytes:
    return b"".join(journal.lines())


def put(ledger: Path, data: bytes, name: str = "elsewhere-4242-1") -> Path:
    path = ledger / "journal" / "2025-10-09" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def indexed(ledger: Path, processes: int | None = None) -> list[dict[str, Any]]:
    """Summaries by way of the index."""
    with index.Index(ledger, NOW) as opened:
        opened.refresh(processes)
        found = opened.connection.execute(f"SELECT * FROM runs ORDER BY {index.ORDER}").fetchall()
        names = list(index.COLUMNS)
    return [table.summary_of(dict(zip(names, row, strict=True))) for row in found]


def folded(ledger: Path) -> list[dict[str, Any]]:
    """Summaries by way of the fold."""
    return [rows.summary(run) for run in store.load(ledger, NOW).runs]


WHAT = ("stage", "visit", "flush", "beat", "artifact", "cancel", "close", "mark", "grow", "identity")
WHAT += ("condition", "execute")

STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(WHAT),
        st.sampled_from(sorted(sets.STAGES)),
        st.integers(0, 10**11),
    ),
    max_size=60,
)


def play(steps: Any, journal: FakeJournal) -> FakeJournal:  # noqa: C901, PLR0912 (one branch an event)
    """Up to four runs at once, each doing at random what runs do."""
    runs: dict[int, FakeRun] = {}
    visits: dict[int, int] = {}
    for number, what, stage, ns in steps:
        run = runs.get(number)
        if run is None:
            run = runs[number] = FakeRun(journal, f"run{number}", TINY).spend(MS).start()
        journal.now += 1
        if run.open is None and what not in ("identity", "condition"):
            continue
        nodes = list(TINY)
        node = nodes[ns % len(nodes)]
        if what == "stage":
            run.switch(stage).spend(ns)
        elif what == "visit":
            visits[number] = visits.get(number, 0) + 1
            seam = ("read",) if ns % 5 == 0 else ()
            said = {"origin": ("table", "type", "none")[ns % 3], "hint": "sampling" if ns % 7 == 0 else None}
            run.visit(visits[number], node, TINY[node][0], [(stage, ns, *seam), ("node_other", ns)], **said)
            if ns % 4 == 0:
                run.columns("samples", {"visit": visits[number], "name": "x", "count": 1, "ns": ns})
        elif what == "flush":
            run.flush()
        elif what == "beat":
            journal.heartbeat(*(one for one in runs.values() if one.open))
        elif what == "artifact":
            run.artifact(node, state=sets.ARTIFACT_STATES[ns % 5], orphan=ns % 3 == 0)
        elif what == "cancel":
            journal.add("mark", run, name="cancel_requested", detail={})
        elif what == "mark":
            journal.add("mark", run, name=("dynamic_vram", "model_load", "warmup")[ns % 3], detail={})
        elif what == "grow":
            run.grow(node, {f"{node}.0.1": ("Grown", [])})
        elif what == "identity":
            run.identify({"1": "d"}, packs={"KSampler": "pack of samplers"})
        elif what == "condition":
            run.know_condition(f"{ns:064x}")
        elif what == "execute":
            run.execute(outputs={node: 1})
        else:
            error = {"stage": stage, "node_id": node, "node_class": TINY[node][0]}
            run.close("failed" if ns % 2 else "success", "oom" if ns % 2 else None, error=error)
    return journal


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, layout=st.sampled_from([compact, spaced]), cuts=st.lists(st.integers(0, 200), max_size=3))
def test_rows_of_the_index_are_those_of_the_fold_however_the_journal_was_read(
    steps: Any, layout: Any, cuts: list[int]
) -> None:
    lines = layout(play(steps, FakeJournal().head())).splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "SAVE_FROM_BYTES", 0)
        ledger = Path(folder)
        for cut in [*sorted(cuts), len(lines)]:
            put(ledger, b"".join(lines[: max(cut, 3)]))
            assert indexed(ledger) == folded(ledger)


@settings(max_examples=20, deadline=None)
@given(steps=STEPS, stretch=st.integers(1, 3000))
def test_a_journal_read_in_stretches_of_any_length_gives_the_same_rows(steps: Any, stretch: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "STRETCH", stretch)
        put(Path(folder), compact(play(steps, FakeJournal().head())))
        assert indexed(Path(folder)) == folded(Path(folder))


def test_processes_give_the_same_rows_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "HERE_UP_TO", 0)
    monkeypatch.setattr(progress, "STRETCH", 4000)
    for pid in (1, 2):
        journal = FakeJournal(pid=pid).head()
        for number in range(10):
            tiny_run(journal, f"run{pid}{number}")
        put(tmp_path, compact(journal), f"elsewhere-{pid}-1")
    assert indexed(tmp_path, processes=2) == folded(tmp_path)
    assert len(folded(tmp_path)) == 20


def test_an_ordinary_run_takes_the_short_way() -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    lines = compact(journal).splitlines(keepends=True)
    typed = [(json.loads(one)["event_type"].encode(), one, 0) for one in lines[3:]]
    found = lean.ordinary(lean.Head(lines[:2]), "aaaa-0000-4000-8000-000000000000", typed)
    assert found is not None
    assert dict(zip(table.COLUMNS, found, strict=True))["sampling_ns"] == 1000 * MS


@pytest.mark.parametrize("has_hints", [True, False])
def test_an_ordinary_run_s_time_without_a_name_is_known_the_short_way(has_hints: bool) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    run.visit(1, "1", "Table", [("sampling", 10 * MS), ("node_other", 20 * MS)], origin="table")
    run.visit(2, "2", "Type", [("node_other", 40 * MS), ("vae_decode", 80 * MS, "decode")], origin="type")
    run.flush()
    run.visit(3, "3", "None", [("node_other", 160 * MS), ("external_wait", 320 * MS)], origin="none")
    run.visit(4, "4", "Hinted", [("node_other", 640 * MS)], origin="type", hint="sampling")
    looks = [{"visit": v, "name": "x", "count": 1, "ns": ns * MS} for v, ns in ((3, 100), (2, 99))]
    run.columns("samples", *looks)
    run.execute().close()
    for event in journal.events:
        if event["event_type"] == "visits" and not has_hints:  # as older journals are
            del event["hint"]
    lines = compact(journal).splitlines(keepends=True)
    typed = [(json.loads(one)["event_type"].encode(), one, 0) for one in lines[3:]]
    found = lean.ordinary(lean.Head(lines[:2]), "aaaa-0000-4000-8000-000000000000", typed)
    assert found is not None
    # of visit 2 more was seen than has no name
    expected = (20 + 60 + (0 if has_hints else 640)) * MS
    assert dict(zip(table.COLUMNS, found, strict=True))["unnamed_ns"] == expected


def ledger_of(tmp_path: Path, runs: int = 3) -> tuple[FakeJournal, Path]:
    journal = FakeJournal().head()
    for number in range(runs):
        tiny_run(journal, f"run{number}")
    return journal, put(tmp_path, compact(journal))


def test_the_kept_index_answers_for_what_it_has_and_the_journal_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, path = ledger_of(tmp_path)
    monkeypatch.setattr(index, "SAVE_FROM_BYTES", 0)
    indexed(tmp_path)
    kept = (tmp_path / "index.duckdb").stat().st_ino
    monkeypatch.setattr(index, "SAVE_FROM_BYTES", 10**9)
    cached_run(journal, "more")
    path.write_bytes(compact(journal))
    assert indexed(tmp_path) == folded(tmp_path)
    assert len(indexed(tmp_path)) == 4
    assert (tmp_path / "index.duckdb").stat().st_ino == kept


@pytest.mark.parametrize("damage", ["deleted", "garbage", "truncated", "scrambled", "another layout"])
def test_an_index_that_is_gone_or_damaged_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(index, "SAVE_FROM_BYTES", 0)
    ledger_of(tmp_path)
    indexed(tmp_path)
    path = tmp_path / "index.duckdb"
    data = path.read_bytes()
    if damage == "deleted":
        path.unlink()
    elif damage == "garbage":
        path.write_bytes(b"not a database")
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "scrambled":
        path.write_bytes(data[:12288] + os.urandom(len(data) - 12288))
    else:
        monkeypatch.setattr(index, "LAYOUT", "of tomorrow")
    with index.opened(tmp_path) as opened:
        assert opened.connection.execute("SELECT count(*) FROM runs").fetchone() == (3,)
    assert indexed(tmp_path) == folded(tmp_path)


def test_a_journal_that_vanished_takes_its_rows_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SAVE_FROM_BYTES", 0)
    _, path = ledger_of(tmp_path)
    other = FakeJournal(pid=7).head()
    tiny_run(other, "other")
    put(tmp_path, compact(other), "elsewhere-7-1")
    assert len(indexed(tmp_path)) == 4
    path.unlink()
    assert [row["run_id"][:5] for row in indexed(tmp_path)] == ["other"]


def test_a_ledger_that_cannot_be_written_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SAVE_FROM_BYTES", 0)
    ledger_of(tmp_path)
    (tmp_path / "index.duckdb").mkdir()
    with index.opened(tmp_path) as opened:
        assert opened.connection.execute("SELECT count(*) FROM runs").fetchone() == (3,)
        assert any("could not be written" in problem for problem in opened.problems)


def test_several_readers_at_once_agree_while_the_journal_grows(tmp_path: Path) -> None:
    journal, path = ledger_of(tmp_path, runs=50)
    code = (
        "import pathlib, sys\nfrom stagexec.reading import index\nindex.SAVE_FROM_BYTES = 0\n"
        "for _ in range(5):\n    with index.opened(pathlib.Path(sys.argv[1])) as opened:\n"
        "        print(opened.connection.execute("
        "'SELECT count(*), count(DISTINCT run_id) FROM runs').fetchone())"
    )
    root = str(Path(__file__).parents[2])
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    with path.open("ab") as out:
        for number in range(20):
            known = len(journal.events)
            tiny_run(journal, f"later{number}")
            for event in journal.events[known:]:
                out.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")
                out.flush()
    for reader in readers:
        told, trouble = reader.communicate(timeout=60)
        assert reader.returncode == 0, trouble
        counts = [eval(line) for line in told.splitlines()]
        assert len(counts) == 5
        assert all(one == distinct and 50 <= one <= 70 for one, distinct in counts)


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        (b"run_closed", lambda line: line[:120] + b"\n"),
        (b"run_closed", lambda line: line.replace(b"bbbb", b"bb\xbdb")),
        (b"segments", lambda line: line.replace(b"bbbb", b"bb\xbdb")),
        (b"identity", lambda line: line[:-8] + b'"\\udcff"}\n'),
        (b"condition", lambda line: line.replace(b"abab", b"ab\x86b", 1)),
    ],
)
@pytest.mark.parametrize("stretch", [True, False])
def test_a_damaged_line_is_left_out_and_its_run_is_what_the_fold_says(
    tmp_path: Path, kind: bytes, damage: Any, stretch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = FakeJournal().head()
    for name in ("aaaa", "bbbb"):
        tiny_run(journal, name).identify({"1": "x"}).know_condition("ab" * 32)
    lines = compact(journal).splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if kind in line[:40] and b"bbbb" in line[:80])
    lines[at] = damage(lines[at])
    path = put(tmp_path, b"".join(lines))
    if stretch:  # each line in a stretch of its own
        monkeypatch.setattr(progress, "STRETCH", 10)
    assert indexed(tmp_path) == folded(tmp_path)
    told = tail.Tail(path).poll()
    assert [closed.row["outcome"] for closed in told] == ["success"] * (1 if kind == b"run_closed" else 2)
