"""A journal that was made again in mid-life: its open runs are told again, and count once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import index, relation, rows, store, tail
from stagexec.reading.audit import audit
from tests.reading.damaged import NOW, Event, lines_of, put
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun, tiny_run


def story() -> tuple[list[Event], list[Event], str]:
    """(the head, all events after it, id of the run that is open when the file is lost).

    One run is closed before, one is open then and closed later, one comes after.
    """
    journal = FakeJournal().head(format_version=2)
    tiny_run(journal, "before")
    run = FakeRun(journal, "mid", TINY).spend(MS).start().spend(2 * MS)
    run.visit(1, "1", "CheckpointLoaderSimple", [("model_load_residency", 9 * MS)]).flush()
    journal.add("mark", run, name="tiled_retry", detail=None)
    run.artifact("1").spans(("task:1", None, "s", 1, 0, 5))
    run.grow("1", {"1.0.1": ("Grown", [])})
    journal.heartbeat(run)
    run.visit(2, "3", "KSampler", [("sampling", 80 * MS)]).flush()
    run.execute(outputs={"3": 1}).spend(MS).close()
    tiny_run(journal, "later")
    return journal.events[:3], journal.events[3:], run.run_id


HEAD, EVENTS, MID = story()
CUT = next(at for at, event in enumerate(EVENTS) if event["event_type"] == "heartbeat") + 1
OLD = EVENTS[:CUT]
AGAIN = [event for event in OLD if event["run_id"] == MID]
REST = EVENTS[CUT:]


def summaries(ledger: Path) -> list[dict[str, Any]]:
    """By the fold."""
    return [rows.detail(run) for run in store.load(ledger, NOW).runs]


def plain(ledger: Path) -> list[tuple[str, str, int]]:
    """By the index."""
    with index.opened(ledger) as opened:
        query = f"SELECT run_id, outcome, total_ns FROM runs ORDER BY {index.ORDER}"
        return opened.connection.execute(query).fetchall()


def brief(found: list[dict[str, Any]]) -> list[tuple[str, str, int]]:
    return [(one["run_id"], one["outcome"], one["total_ns"]) for one in found]


@pytest.fixture
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a journal tells that nothing happened to."""
    ledger = tmp_path_factory.mktemp("whole")
    put(ledger, lines_of([*HEAD, *EVENTS]))
    return summaries(ledger)


def same(found: list[dict[str, Any]], whole: list[dict[str, Any]]) -> bool:
    """Whether runs are told alike, the place of their journal apart."""
    return [{**one, "journal": ""} for one in found] == [{**one, "journal": ""} for one in whole]


def test_runs_told_again_in_one_file_count_once(tmp_path: Path, whole: list[dict[str, Any]]) -> None:
    put(tmp_path, lines_of([*HEAD, *OLD, *HEAD, *AGAIN, *REST]))
    found = summaries(tmp_path)
    assert same(found, whole)
    assert plain(tmp_path) == brief(found)
    assert audit(tmp_path) == []


def test_a_file_cut_in_mid_line_goes_on_without_a_finding(
    tmp_path: Path, whole: list[dict[str, Any]]
) -> None:
    first = b"".join(lines_of([*HEAD, *OLD]))
    torn = first[: len(first) - 70] + b"\n"
    put(tmp_path, [torn, *lines_of([*HEAD, *AGAIN, *REST])])
    assert same(summaries(tmp_path), whole)
    assert plain(tmp_path) == brief(whole)
    assert [finding.kind for finding in audit(tmp_path) if finding.severity == "error"] == []


def test_a_file_that_was_removed_has_its_open_and_later_runs_in_full(
    tmp_path: Path, whole: list[dict[str, Any]]
) -> None:
    put(tmp_path, lines_of([*HEAD, *AGAIN, *REST]))
    assert same(summaries(tmp_path), whole[1:])
    assert plain(tmp_path) == brief(whole[1:])
    assert audit(tmp_path) == []


@pytest.mark.parametrize("place", ["a-saved", "2025-10-09.old", "zzz"])
@pytest.mark.parametrize("beside", [False, True])
def test_the_old_part_that_was_put_aside_counts_before_the_new_one_wherever_it_lies(
    tmp_path: Path, whole: list[dict[str, Any]], place: str, beside: bool
) -> None:
    new = put(tmp_path, lines_of([*HEAD, *AGAIN, *REST]))
    old = new.with_name(new.stem + " (old).jsonl") if beside else tmp_path / "journal" / place / new.name
    old.parent.mkdir(exist_ok=True)
    old.write_bytes(b"".join(lines_of([*HEAD, *OLD])))
    found = summaries(tmp_path)
    assert same(found, whole)
    assert plain(tmp_path) == brief(found)
    assert [finding for finding in audit(tmp_path) if finding.severity == "error"] == []


def test_the_index_follows_a_file_through_being_made_again(
    tmp_path: Path, whole: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SAVE_FROM_BYTES", 0)
    path = put(tmp_path, lines_of([*HEAD, *OLD]))
    assert [row[1] for row in plain(tmp_path)] == ["success", "lost"]
    with path.open("ab") as out:
        out.write(b"".join(lines_of([*HEAD, *AGAIN])))
    assert [row[1] for row in plain(tmp_path)] == ["success", "lost"]
    with path.open("ab") as out:
        out.write(b"".join(lines_of(REST)))
    assert plain(tmp_path) == brief(whole)


def test_small_and_large_ledgers_agree_on_runs_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, lines_of([*HEAD, *OLD, *HEAD, *AGAIN, *REST]))
    answers = []
    for small in (0, 10**9):
        monkeypatch.setattr(relation, "SMALL", small)
        with relation.of_ledger(tmp_path) as runs:
            answers.append([(row["run_id"], row["total_ns"], row["outcome"]) for row in runs.rows()])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("how", ["removed", "cut", "cut in place", "goes on"])
def test_a_listener_hears_of_each_run_once_through_a_file_made_again(
    tmp_path: Path, whole: list[dict[str, Any]], how: str
) -> None:
    path = put(tmp_path, lines_of([*HEAD, *OLD]))
    follower = tail.Tail(path)
    heard = follower.poll()
    data = b"".join(lines_of([*HEAD, *AGAIN, *REST]))
    if how == "removed":
        path.unlink()
        path.write_bytes(data)
    elif how == "cut":
        with path.open("r+b") as out:
            out.truncate(0)
        assert follower.poll() == []
        path.write_bytes(data)
    elif how == "cut in place":  # longer than before by the time of the next look
        with path.open("r+b") as out:
            out.truncate(0)
            out.write(data)
    else:
        with path.open("ab") as out:
            out.write(data)
    heard += follower.poll()
    assert [(one.row["run_id"], one.row["total_ns"]) for one in heard] == [
        (one["run_id"], one["total_ns"]) for one in whole
    ]
    assert rows.detail(heard[1].run())["visits"] == whole[1]["visits"]


def test_a_closed_run_that_is_accepted_again_is_open_again(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    head, events = journal.events[:3], journal.events[3:]
    accepted = copy.deepcopy(events[0])
    put(tmp_path, lines_of([*head, *events, accepted]))
    assert [(one["outcome"], one["visits"]) for one in summaries(tmp_path)] == [("lost", [])]
    assert [row[1] for row in plain(tmp_path)] == ["lost"]


def test_lost_events_of_a_file_made_again_are_told(tmp_path: Path) -> None:
    lost = {**HEAD[0], "event_type": "lost_events", "count": 3, "reason": "disk full", "run_id": None}
    put(tmp_path, lines_of([*HEAD, *AGAIN, lost, *REST]))
    assert [finding.kind for finding in audit(tmp_path)] == ["lost_events"]


def test_a_copy_of_the_same_file_in_another_folder_doubles_nothing(
    tmp_path: Path, whole: list[dict[str, Any]]
) -> None:
    path = put(tmp_path, lines_of([*HEAD, *EVENTS]))
    copied = tmp_path / "journal" / "2025-10-10" / path.name
    copied.parent.mkdir()
    copied.write_bytes(path.read_bytes())
    found = summaries(tmp_path)
    assert brief(found) == brief(whole)
    assert plain(tmp_path) == brief(whole)
