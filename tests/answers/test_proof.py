"""`show` proves that a run's segments fill what other events say it took, and fails where they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stagexec.answers.proof import proof
from stagexec.cli import command
from stagexec.reading.store import load
from tests.reading.fake_journal import MS, FakeJournal, tiny_run


def tampered(ledger: Path, event_type: str, **fields: Any) -> list[str]:
    """The problems that are found after `fields` of the first such event were replaced by f(value)."""
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    event = next(one for one in journal.events if one["event_type"] == event_type)
    for name, change in fields.items():
        event[name] = change(event[name])
    journal.write(ledger)
    return list(proof(load(ledger).find("aaaa"))["problems"])


def test_a_sound_run_has_no_problems_and_says_its_sum(tmp_path: Path) -> None:
    assert tampered(tmp_path, "run_closed") == []
    told = proof(load(tmp_path).find("aaaa"))
    assert told["sum_ns"] == told["finished_ns"] - told["accepted_ns"] == 1_215 * MS
    assert "= accepted → finished 1215000000 ns" in told["says"]


def later(at: int, by: int) -> Any:
    return lambda values: [value + by * (place == at) for place, value in enumerate(values)]


@pytest.mark.parametrize(
    ("event_type", "fields", "told"),
    [
        ("segments", {"end_ns": later(3, -7)}, "a gap of 7 ns before segment 5"),
        ("segments", {"end_ns": later(3, 7)}, "overlaps the one before it by 7 ns"),
        ("segments", {"start_ns": later(0, 5)}, "the first segment begins 5 ns after the run was accepted"),
        ("run_accepted", {"ts_mono_ns": lambda ns: ns - 9}, "9 ns are not accounted for"),
        ("run_closed", {"finished_ns": lambda ns: ns - 9}, "the last segment ends -9 ns before"),
        ("run_closed", {"finished_ns": lambda ns: ns + 9}, "after its end was written"),
        ("run_closed", {"segment_count": lambda count: count + 1}, "segments were written, and"),
    ],
)
def test_whatever_is_tampered_with_is_named(
    event_type: str, fields: dict[str, Any], told: str, tmp_path: Path
) -> None:
    assert any(told in one for one in tampered(tmp_path, event_type, **fields))


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_show_of_a_tampered_run_exits_with_1_and_says_what_is_wrong(
    options: list[str], tmp_path: Path
) -> None:
    tampered(tmp_path, "segments", end_ns=later(3, -7))
    result = CliRunner().invoke(command, ["show", "aaaa", "--ledger", str(tmp_path), *options])
    assert result.exit_code == 1
    assert "does not add up: a gap of 7 ns before segment 5" in result.stderr
    if options:
        assert json.loads(result.stdout)["proof"]["problems"]
    else:
        assert "the ledger of this run does not add up" in result.stdout
