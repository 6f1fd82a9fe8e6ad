"""What holds for any journal: exact sums, and reading that survives every cut."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from stagexec import stages as sets
from stagexec.reading import rows, store
from stagexec.reading.audit import audit
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun, cached_run, reseeded_run

Step = tuple[str, int, bool, bool]

STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(sets.STAGES)), st.integers(0, 10**12), st.booleans(), st.booleans()),
    max_size=40,
)


def play(steps: list[Step], close: bool) -> FakeJournal:
    """A journal with one run through these (stage, ns, written then, heartbeat then)."""
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    for stage, ns, write, beat in steps:
        run.switch(stage).spend(ns)
        if write:
            run.flush()
        if beat:
            journal.heartbeat(run)
    if close:
        run.close()
    else:
        journal.heartbeat(run)
    return journal


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, close=st.booleans())
def test_segments_are_a_partition_that_sums_exactly_however_the_run_ended(
    steps: list[Step], close: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = play(steps, close)
        journal.write(Path(folder))
        (found,) = [rows.detail(run) for run in store.load(Path(folder)).runs]
        segments = found["segments"]
        assert found["total_ns"] == sum(s["end_ns"] - s["start_ns"] for s in segments) == journal.now
        assert found["total_ns"] == sum(found["stages"].values())
        assert found["total_ns"] == found["finished_mono_ns"] - found["accepted_mono_ns"]
        assert [s["start_ns"] for s in segments[1:]] == [s["end_ns"] for s in segments[:-1]]
        assert found["wasted_ns"] <= sum(
            ns for stage, ns in found["stages"].items() if stage not in sets.HOST_STAGES
        )
        assert [f for f in audit(Path(folder)) if f.severity == "error"] == []


def whole_journal() -> FakeJournal:
    journal = FakeJournal().head()
    cached_run(journal, "aaaa")
    reseeded_run(journal, "bbbb")
    return journal


def test_a_journal_cut_at_any_byte_loses_at_most_its_last_event(tmp_path: Path) -> None:
    journal = whole_journal()
    path = journal.write(tmp_path)
    data = path.read_bytes()
    ends = [at for at, byte in enumerate(data, 1) if byte == ord("\n")]
    accepted = [at for at, e in enumerate(journal.events) if e["event_type"] == "run_accepted"]
    closed = [at for at, e in enumerate(journal.events) if e["event_type"] == "run_closed"]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        # A line whose newline alone is missing is whole.
        lines = sum(end - 1 <= cut for end in ends)
        loaded = store.load(tmp_path)
        assert len(loaded.runs) == sum(at < lines for at in accepted)
        assert [run.outcome for run in loaded.runs].count("success") == sum(at < lines for at in closed)
        assert all(rows.detail(run)["total_ns"] >= 0 for run in loaded.runs)
        assert {problem.kind for problem in loaded.problems} <= {"torn_last"}
        assert [f for f in audit(tmp_path) if f.severity == "error"] == []


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_bytes_overwritten_anywhere_never_stop_the_reading(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = whole_journal().write(Path(folder))
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(raw) - 1))
            junk = data.draw(st.binary(min_size=1, max_size=30))
            raw[at : at + len(junk)] = junk
        path.write_bytes(bytes(raw))
        for run in store.load(Path(folder)).runs:
            shown = rows.detail(run)
            assert sum(shown["stages"].values()) == shown["total_ns"]
        assert all(finding.severity in ("error", "note") for finding in audit(Path(folder)))
