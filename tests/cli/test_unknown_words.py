"""A journal of tomorrow, or one written by hand: every view shows words that this version does not know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stagexec.cli import command
from stagexec.reading import store
from stagexec.views import otlp
from tests.reading import damaged

NEW = "tomorrows_word"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good runs in which every word of a closed set is one that is not in it."""
    folder = tmp_path_factory.mktemp("tomorrow")
    journal = damaged.whole()
    for event in journal.events:
        for field in ("kind", "origin", "part", "stage"):
            if isinstance(event.get(field), list):
                event[field] = [
                    NEW if value == "sampling" or field != "stage" else value for value in event[field]
                ]
        if event["event_type"] == "run_closed" and event["outcome"] == "failed":
            event.update(outcome=NEW, cause=NEW, error={"stage": NEW, "cause": NEW, "node_class": NEW})
        if event["event_type"] == "artifact":
            event.update(state=NEW, media=NEW)
        if event["event_type"] == "run_started":
            event.update(startup_class=NEW, timing=NEW)
        if event["event_type"] == "host_facts":
            event.update(executor=NEW)
        if event["event_type"] == "seams":
            event["seams"] = [{"seam": NEW, "state": NEW}, {}]
        if event["event_type"] == "mark":
            event["name"] = NEW if event["name"] == "child_failed" else event["name"]
    damaged.put(folder, damaged.lines_of(journal.events))
    damaged.manifest(folder)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["runs"],
        ["runs", "--json"],
        ["show", "42eeeeee"],
        ["show", "42dddddd", "--json"],
        ["diff", "42aaaaaa", "42cccccc"],
        ["failures", "--by", "stage"],
        ["failures", "--by", "cause", "--json"],
        ["plan", "42aaaaaa"],
        ["export", "42eeeeee", "--perfetto", "OUT"],
        ["export", "--csv", "OUT"],
        ["export", "--parquet", "OUT"],
        ["export", "--html", "OUT"],
    ],
    ids=" ".join,
)
def test_a_verb_shows_words_that_it_does_not_know(ledger: Path, words: list[str], tmp_path: Path) -> None:
    told = [word.replace("OUT", str(tmp_path / "out")) for word in words]
    done = CliRunner().invoke(command, [*told, "--ledger", str(ledger)])
    assert done.exit_code == 0, done.output
    assert done.exception is None


def test_the_audit_names_each_of_them(ledger: Path) -> None:
    done = CliRunner().invoke(command, ["audit", "--json", "--ledger", str(ledger)])
    assert done.exit_code == 1
    told = " ".join(one["what"] for one in json.loads(done.stdout) if one["kind"].startswith("unknown"))
    for word in ("kind", "origin", "outcome", "cause", "state", "timing", "executor", "seam state", "stage"):
        assert f"{word} '{NEW}'" in told


def test_traces_carry_them(ledger: Path) -> None:
    spans = [span for run in store.load(ledger).runs for span in otlp.spans_of(run)]
    assert NEW in {str(span.attributes.get("stagexec.outcome")) for span in spans}
