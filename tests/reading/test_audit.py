"""Each contradiction is found where it is, and a sound journal has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading.audit import Finding, audit
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun, S, cached_run, reseeded_run, tiny_run
from tests.reading.test_runs import expanded

Event = dict[str, Any]


def found(journal: FakeJournal, ledger: Path) -> list[Finding]:
    journal.write(ledger)
    return audit(ledger)


def kinds(findings: list[Finding], severity: str = "error") -> list[str]:
    return [f.kind for f in findings if f.severity == severity]


def first(journal: FakeJournal, event_type: str) -> Event:
    return next(event for event in journal.events if event["event_type"] == event_type)


def test_a_sound_journal_has_no_findings(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa", "process_cold")
    cached_run(journal, "bbbb")
    reseeded_run(journal, "cccc")
    expanded(journal).execute().close("success_empty")
    journal.now += 60 * S
    tiny_run(journal, "dddd")
    journal.end()
    assert found(journal, tmp_path) == []


def spoil_gap(journal: FakeJournal) -> None:
    columns = first(journal, "segments")
    columns["start_ns"][2] += 5


def spoil_overlap(journal: FakeJournal) -> None:
    columns = first(journal, "segments")
    columns["start_ns"][2] -= 5


def spoil_negative(journal: FakeJournal) -> None:
    columns = first(journal, "segments")
    columns["end_ns"][2] = columns["start_ns"][2] - 1


def spoil_sum(journal: FakeJournal) -> None:
    first(journal, "run_closed")["finished_ns"] += 1


def spoil_count(journal: FakeJournal) -> None:
    first(journal, "run_closed")["segment_count"] += 1


def spoil_start(journal: FakeJournal) -> None:
    journal.events.remove(first(journal, "run_accepted"))


def spoil_open_end(journal: FakeJournal) -> None:
    last = [event for event in journal.events if event["event_type"] == "segments"][-1]
    last["open"] = ["delivery_commit", None, journal.now, None, None, None, None]


def spoil_bounds(journal: FakeJournal) -> None:
    first(journal, "run_closed")["finished_ns"] = None


def spoil_cached(journal: FakeJournal) -> None:
    first(journal, "cached")["nodes"] = ["3"]


def spoil_visit_place(journal: FakeJournal) -> None:
    first(journal, "visits")["end_ns"][4] = journal.now + 1


def spoil_visit_number(journal: FakeJournal) -> None:
    first(journal, "visits")["visit"][4] = 4


def spoil_stage(journal: FakeJournal) -> None:
    first(journal, "segments")["stage"][2] = "napping"


def spoil_part(journal: FakeJournal) -> None:
    first(journal, "segments")["part"][0] = "napping"


def spoil_kind(journal: FakeJournal) -> None:
    first(journal, "visits")["kind"][0] = "dreamt"


def spoil_outcome(journal: FakeJournal) -> None:
    first(journal, "run_closed")["outcome"] = "fine"


def spoil_state(journal: FakeJournal) -> None:
    first(journal, "artifact")["state"] = "pretty"


def spoil_clock(journal: FakeJournal) -> None:
    first(journal, "segments")["ts_mono_ns"] = journal.now + 1


def spoil_columns(journal: FakeJournal) -> None:
    first(journal, "visits")["kind"].append("executed")


def spoil_close(journal: FakeJournal) -> None:
    journal.events.append(dict(first(journal, "run_closed")))


def spoil_after(journal: FakeJournal) -> None:
    last = [event for event in journal.events if event["event_type"] == "segments"][-1]
    after = {name: last[name][:1] for name in ("stage", "part", "visit", "seam")}
    journal.events.append({**last, **after, "start_ns": [journal.now], "end_ns": [journal.now]})


SPOILS: list[tuple[Callable[[FakeJournal], None], set[str]]] = [
    (spoil_gap, {"gap", "sum"}),
    (spoil_overlap, {"overlap", "sum"}),
    (spoil_negative, {"negative", "gap", "sum"}),
    (spoil_sum, {"sum", "bounds"}),
    (spoil_count, {"segment_count"}),
    (spoil_start, {"missing_start"}),
    (spoil_open_end, {"missing_end"}),
    (spoil_bounds, {"missing_end"}),
    (spoil_cached, {"cached_and_executed"}),
    (spoil_visit_place, {"visit_outside"}),
    (spoil_visit_number, {"visit_twice", "visit_missing"}),
    (spoil_stage, {"unknown_stage"}),
    (spoil_part, {"unknown_stage"}),
    (spoil_kind, {"unknown_word"}),
    (spoil_outcome, {"unknown_word"}),
    (spoil_state, {"unknown_word"}),
    (spoil_clock, {"clock"}),
    (spoil_columns, {"malformed", "visit_missing"}),
    (spoil_close, {"closed_twice"}),
    (spoil_after, {"after_close", "segment_count"}),
]


@pytest.mark.parametrize(("spoil", "expected"), SPOILS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_spoilt_journal_shows_exactly_its_contradictions(
    tmp_path: Path, spoil: Callable[[FakeJournal], None], expected: set[str]
) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    spoil(journal)
    assert set(kinds(found(journal, tmp_path))) == expected


def test_a_finding_names_run_file_and_line(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = tiny_run(journal, "aaaa")
    spoil_gap(journal)
    gap = next(f for f in found(journal, tmp_path) if f.kind == "gap")
    assert gap.run_id == run.run_id
    assert Path(gap.file).name.startswith("elsewhere-4242-")
    assert gap.line == journal.events.index(first(journal, "segments")) + 1
    assert "5 ns" in gap.what


def test_segments_written_before_earlier_ones_are_clock_trouble(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(9).start().spend(9).flush().execute()
    journal.now -= 9
    assert run.open is not None
    run.open[2] = journal.now
    run.closed[-1][3] = journal.now
    run.close()
    assert "clock" in kinds(found(journal, tmp_path))


def test_lost_events_are_an_error(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    journal.add("lost_events", count=12, reason="No space left on device")
    (finding,) = found(journal, tmp_path)
    assert (finding.kind, finding.severity) == ("lost_events", "error")
    assert "12 events" in finding.what


def test_a_fault_of_our_own_is_an_error_of_its_run(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    journal.add("mark", run, name="fault", detail={"where": "switch", "error": "KeyError"})
    run.execute().close()
    (finding,) = found(journal, tmp_path)
    assert (finding.kind, finding.run_id) == ("fault", run.run_id)
    assert "switch" in finding.what


def test_a_torn_line_in_the_middle_is_an_error_and_a_torn_last_line_a_note(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    path = journal.write(tmp_path)
    good = journal.lines()
    path.write_bytes(good[0][:30] + b"\n" + good[1] + good[2][:30])
    findings = audit(tmp_path)
    assert [(f.kind, f.severity, f.line) for f in findings] == [
        ("torn_middle", "error", 1),
        ("torn_last", "note", 3),
    ]


def test_a_lost_run_is_a_note(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start().flush()
    findings = found(journal, tmp_path)
    assert [(f.kind, f.severity, f.run_id) for f in findings] == [("lost", "note", run.run_id)]


def test_a_run_left_open_while_a_later_one_was_closed_lacks_its_end(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    FakeRun(journal, "aaaa", TINY).spend(MS).start().flush()
    cached_run(journal, "bbbb")
    assert kinds(found(journal, tmp_path)) == ["missing_end"]


def test_silence_while_a_run_is_open_is_noted_and_a_heartbeat_breaks_it(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start().flush()
    run.spend(S)
    journal.heartbeat(run)
    run.spend(S)
    journal.heartbeat(run)
    run.spend(1_600 * MS)
    run.execute().close()
    findings = found(journal, tmp_path)
    assert kinds(findings, "note") == ["heartbeat_gap"]
    assert kinds(findings) == []


def test_silence_while_nothing_runs_means_nothing(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    cached_run(journal, "aaaa")
    journal.now += 3600 * S
    cached_run(journal, "bbbb")
    assert found(journal, tmp_path) == []


def test_an_unreadable_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "journal" / "2025-10-09" / "folder.jsonl").mkdir(parents=True)
    (finding,) = audit(tmp_path)
    assert (finding.kind, finding.severity, finding.line) == ("unreadable", "error", 0)
    assert finding.file.endswith("folder.jsonl")


def test_an_unknown_event_and_a_newer_format_are_notes(tmp_path: Path) -> None:
    journal = FakeJournal().head(format_version=99)
    journal.add("teleport")
    findings = found(journal, tmp_path)
    assert kinds(findings) == []
    assert kinds(findings, "note") == ["newer_format", "unknown_event"]


def test_an_artifact_of_a_node_that_nobody_visited_is_a_contradiction(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    FakeRun(journal, "aaaa", TINY).start().artifact("5").execute().close()
    assert kinds(found(journal, tmp_path)) == ["artifact_without_visit"]


def test_an_artifact_that_was_ready_outside_its_run_is_a_contradiction(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    journal.now = S
    tiny_run(journal, "aaaa")
    first(journal, "artifact")["ready_mono_ns"] = 5
    assert kinds(found(journal, tmp_path)) == ["artifact_outside"]


def test_two_clocks_in_one_journal_are_a_contradiction(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    journal.head()
    assert kinds(found(journal, tmp_path)) == ["clock_domain"]


def test_a_head_that_was_written_again_is_none(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    journal.events += journal.events[:3]
    assert kinds(found(journal, tmp_path)) == []


def test_a_time_before_the_process_began_is_of_another_clock(tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.now = S
    journal.head()
    journal.add("mark", name="note", detail={})
    journal.events[-1]["ts_mono_ns"] = 7
    assert kinds(found(journal, tmp_path)) == ["clock_domain"]


def test_a_condition_whose_manifest_is_missing_is_a_note(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa").know_condition("ab" * 32)
    findings = found(journal, tmp_path)
    assert kinds(findings) == []
    assert kinds(findings, "note") == ["manifest_missing"]
