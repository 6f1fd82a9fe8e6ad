"""Old journals stay readable, and say what they always said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import rows, store
from stagexec.reading.audit import audit

GOLD = Path(__file__).resolve().parents[1] / "gold"
JOURNALS = sorted(GOLD.glob("v*/*.jsonl"))


@pytest.fixture(params=JOURNALS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def gold(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A ledger that holds one gold journal, and what was worked out for it by hand."""
    day = tmp_path / "journal" / "2025-10-09"
    day.mkdir(parents=True)
    shutil.copy(request.param, day)
    return tmp_path, json.loads(request.param.with_suffix(".json").read_text(encoding="utf-8"))


def test_there_is_a_gold_journal_of_the_current_format() -> None:
    from stagexec import format as journal_format

    assert any(path.parent.name == f"v{journal_format.VERSION}" for path in JOURNALS)


def test_a_gold_journal_says_what_was_worked_out_by_hand(gold: tuple[Path, dict[str, Any]]) -> None:
    ledger, expected = gold
    found = [rows.detail(run) for run in store.load(ledger).runs]
    told = [{name: run[name] for name in wanted} for run, wanted in zip(found, expected["runs"], strict=True)]
    assert told == expected["runs"]


def test_the_audit_of_a_gold_journal_finds_what_was_worked_out_by_hand(
    gold: tuple[Path, dict[str, Any]],
) -> None:
    ledger, expected = gold
    assert [finding.kind for finding in audit(ledger)] == expected["audit"]
