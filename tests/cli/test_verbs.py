"""The verbs keep the contract: JSON fields, exit codes, and one-line errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from stagexec.cli import VERBS, command
from stagexec.cli.runs import since_ns
from stagexec.views import text
from tests.reading.fake_journal import (
    MS,
    TINY,
    WALL0,
    FakeJournal,
    FakeRun,
    S,
    cached_run,
    reseeded_run,
    tiny_run,
)

RUNS_FIELDS = {
    "run_id", "prompt_id", "condition_id", "outcome", "cause", "error_stage", "error_node", "startup_class",
    "executor", "timing", "accepted_wall", "total_ns", "device_ns", "validate_ns", "stages", "wasted_ns",
    "wasted_kind", "host_version",
}  # fmt: skip
SHOW_FIELDS = RUNS_FIELDS | {
    "segments", "visits", "spans", "selected_outputs", "expected_nodes", "cached_nodes", "executed_nodes",
    "not_executed", "unexpected", "artifacts", "memory", "faults", "seams",
}  # fmt: skip
VISIT_FIELDS = {
    "visit", "node_id", "class_type", "kind", "stage", "origin", "self_ns", "device_ns", "list_index",
    "parent",
}  # fmt: skip
ARTIFACT_FIELDS = {"path", "bytes", "sha256", "state", "ready_ns"}


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Four runs: cold, cached, new seed, and one lost in sampling."""
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa", "process_cold", load_ns=5 * S)
    cached_run(journal, "bbbb")
    reseeded_run(journal, "cccc")
    run = FakeRun(journal, "dddd", TINY).spend(MS).start()
    run.switch("sampling", "step", 1, "core.sample", ("3", "[bold]KSampler[/]")).flush().spend(80 * MS)
    journal.heartbeat(run)
    journal.write(tmp_path)
    return tmp_path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def printed(*arguments: str, exit_code: int = 0) -> Any:
    result = call(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def test_runs_prints_every_field_of_the_contract(ledger: Path) -> None:
    rows = printed("runs", "--ledger", str(ledger))
    assert all(set(row) >= RUNS_FIELDS for row in rows)
    assert [row["outcome"] for row in rows] == ["success", "success", "success", "lost"]
    assert [row["error_stage"] for row in rows] == [None, None, None, "sampling"]
    assert all(sum(row["stages"].values()) == row["total_ns"] for row in rows)
    assert {row["wasted_kind"] for row in rows} == {"estimated"}
    assert rows[0]["host_version"] == "0.30.0"


def test_show_says_what_a_visit_likely_was(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "eeee", TINY).spend(MS).start()
    run.visit(1, "1", "FaceDetailer", [("node_other", 30 * MS)], hint="sampling")
    run.visit(2, "2", "KSampler", [("sampling", 30 * MS)], hint=None)
    run.flush().execute(outputs={}).close()
    journal.write(tmp_path)
    shown = call("show", "eeee", "--ledger", str(tmp_path)).stdout
    assert "node_other (likely sampling)" in shown
    assert shown.count("likely") == 1
    run_ = printed("show", "eeee", "--ledger", str(tmp_path))
    assert [one["hint"] for one in run_["visits"]] == ["sampling", None]


def test_show_prints_every_field_of_the_contract(ledger: Path) -> None:
    run = printed("show", "cccc", "--ledger", str(ledger))
    assert set(run) >= SHOW_FIELDS | {"accepted_mono_ns", "finished_mono_ns"}
    assert all(set(visit) >= VISIT_FIELDS for visit in run["visits"])
    assert all(set(artifact) >= ARTIFACT_FIELDS for artifact in run["artifacts"])
    assert {"stage", "part", "start_ns", "end_ns", "visit"} <= set(run["segments"][0])
    assert run["segments"][0]["start_ns"] == run["accepted_mono_ns"]


def test_diff_prints_deltas_shares_changes_and_the_verdict(ledger: Path) -> None:
    found = printed("diff", "last~3", "last~1", "--ledger", str(ledger))
    assert {"stages", "changed", "verdict", "delta_ns", "run_a", "run_b"} <= set(found)
    assert {"stage", "delta_ns", "share"} <= set(found["stages"][0])
    assert "already resident" in found["verdict"]


def test_audit_of_a_ledger_with_a_lost_run_passes_with_a_note(ledger: Path) -> None:
    findings = printed("audit", "--ledger", str(ledger))
    assert {(f["kind"], f["severity"]) for f in findings} == {("lost", "note"), ("heartbeat_gap", "note")}
    assert set(findings[0]) == {"kind", "severity", "run_id", "file", "line", "what"}


def test_audit_of_a_contradiction_ends_with_exit_code_1(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    journal.events[-1]["segment_count"] = 1
    journal.write(tmp_path)
    (finding,) = printed("audit", "--ledger", str(tmp_path), exit_code=1)
    assert finding["kind"] == "segment_count"
    shown = call("audit", "--ledger", str(tmp_path))
    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (1, "1 errors, 0 notes")


def test_json_stands_alone_on_standard_output(ledger: Path) -> None:
    (ledger / "journal" / "2025-10-09" / "folder.jsonl").mkdir()
    result = call("runs", "--ledger", str(ledger), "--json")
    assert len(json.loads(result.stdout)) == 4
    assert "folder.jsonl: cannot be read" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("outcome", "count"), [("success", 3), ("lost", 1), ("failed", 0)])
def test_runs_are_filtered_by_outcome(ledger: Path, outcome: str, count: int) -> None:
    assert len(printed("runs", "--ledger", str(ledger), "--outcome", outcome)) == count


def test_runs_are_filtered_by_time(ledger: Path) -> None:
    third = printed("runs", "--ledger", str(ledger))[2]["accepted_wall"]
    rows = printed("runs", "--ledger", str(ledger), "--since", third)
    assert [row["run_id"][:4] for row in rows] == ["cccc", "dddd"]
    assert printed("runs", "--ledger", str(ledger), "--since", "2h") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", WALL0 - 7200 * S),
        ("7d", WALL0 - 7 * 86400 * S),
        ("1.5m", WALL0 - 90 * S),
        ("1970-01-01T00:01:00Z", 60 * S),
        ("2025-10-09T08:53:20.123457Z", WALL0 + 123_457_000),
        ("1970-01-01T02:01:00+02:00", 60 * S),
    ],
)
def test_since_takes_lengths_and_iso_times(text: str, expected: int) -> None:
    assert since_ns(text, WALL0) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "zzzz"),
        ("show", "last~9"),
        ("diff", "last", "zzzz"),
        ("runs", "--since", "yesterday"),
        ("runs", "--outcome", "fine"),
        ("plan", "last~99999999999999999999999"),
        ("plan", "\udcff"),
        ("show", "\udcff"),
        ("failures", "--price", "nan"),
        ("failures", "--price", "inf"),
        ("sing",),
    ],
)
def test_a_mistake_of_the_user_is_one_line_and_exit_code_2(ledger: Path, arguments: tuple[str, ...]) -> None:
    result = call(*arguments, *(("--ledger", str(ledger)) if arguments[0] != "sing" else ()))
    assert (result.exit_code, result.stdout) == (2, "")
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [("--limit", "99999999999999999999999"), ("--since", "9" * 60 + "d"), ("--since", "0001-02-03")],
)
def test_a_number_beyond_all_bounds_takes_everything(ledger: Path, arguments: tuple[str, ...]) -> None:
    assert len(printed("runs", "--ledger", str(ledger), *arguments)) == 4


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("verb", ["show cccc", "diff aaaa cccc", "failures", "plan aaaa", "show cccc --json"])
def test_a_pipe_that_is_not_utf_8_is_no_traceback(ledger: Path, encoding: str, verb: str) -> None:
    words = [sys.executable, "-m", "stagexec", *verb.split(), "--ledger", str(ledger)]
    done = subprocess.run(words, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, b"")
    if "--json" in verb:
        assert json.loads(done.stdout)["notes"] == []


@pytest.mark.parametrize("name", ["a * in it", "ends in.parquet"])
def test_a_ledger_folder_may_be_named_like_a_pattern(ledger: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "of" / name
    shutil.copytree(ledger / "journal", folder / "journal")
    assert len(printed("runs", "--ledger", str(folder))) == 4


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text there")
@pytest.mark.parametrize("verb", [("runs",), ("show", "last"), ("failures",), ("plan", "last")])
def test_a_ledger_folder_whose_name_is_no_text_is_refused_in_one_line(
    ledger: Path, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    folder = tmp_path / "led\udcffger"
    shutil.copytree(ledger / "journal", folder / "journal")
    result = call(*verb, "--json", "--ledger", str(folder))
    assert result.exit_code == 2
    assert "no UTF-8" in result.stderr


def test_a_run_that_is_named_twice_is_exported_once(ledger: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / "once.csv", tmp_path / "twice.csv"
    call("export", "cccc", "--csv", str(once), "--ledger", str(ledger))
    call("export", "cccc", "last~1", "--csv", str(twice), "--ledger", str(ledger))
    assert once.read_text() == twice.read_text()


def test_parquet_files_where_a_ledger_folder_is_needed_are_told(tmp_path: Path) -> None:
    result = call("show", "last", "--ledger", str(tmp_path / "*.parquet"))
    assert result.exit_code == 2
    assert "this needs a ledger folder" in result.stderr


def test_audit_without_a_journal_says_so(tmp_path: Path) -> None:
    assert call("audit", "--ledger", str(tmp_path)).stderr == f"stagexec: no journal in {tmp_path}\n"


def test_a_folder_that_takes_no_parquet_is_told_in_one_line(ledger: Path, tmp_path: Path) -> None:
    target = tmp_path / "lake"
    (target / "runs").mkdir(parents=True)
    (target / "runs" / "day=2025-10-09").write_text("in the way")
    result = call("export", "--parquet", str(target), "--ledger", str(ledger))
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1


def test_show_tells_of_models_in_words_and_not_as_they_lie_in_the_journal(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    for resident in (False, True):
        model = {"class": "SD15", "id": 1, "bytes": 2_000_000, "resident": resident}
        journal.add("mark", run, name="model_load", detail={"models": [model]})
    run.execute().close()
    journal.write(tmp_path)
    shown = call("show", "last", "--ledger", str(tmp_path)).stdout
    assert "model SD15: asked for 2 times, there already 1 of 2, 2.0 MB" in shown
    assert "mark model_load" not in shown


def test_a_ledger_without_runs_is_named(tmp_path: Path) -> None:
    assert call("runs", "--ledger", str(tmp_path)).stderr == f"stagexec: no runs in {tmp_path}\n"


def test_a_named_ledger_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    result = call("runs", "--ledger", str(tmp_path / "nowhere"))
    assert result.exit_code == 2
    assert "nowhere" in result.stderr


def test_an_empty_ledger_prints_an_empty_array(tmp_path: Path) -> None:
    assert printed("runs", "--ledger", str(tmp_path)) == []


def test_the_environment_names_the_ledger(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEXEC_LEDGER", str(ledger))
    assert len(printed("runs")) == 4


def test_the_table_of_runs_has_a_line_for_each(ledger: Path) -> None:
    out = call("runs", "--ledger", str(ledger)).stdout
    first_words = [line.split()[0] for line in out.splitlines() if "2025-10-09" in line]
    assert first_words == ["aaaa-000", "bbbb-000", "cccc-000", "dddd-000"]
    assert "lost (process_died)" in out
    assert "pictures/s" not in out


def test_a_wide_terminal_has_room_for_shares_and_rates(
    ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text.print_runs(Console(width=text.WIDE_COLUMNS), printed("runs", "--ledger", str(ledger)))
    head, *lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert head[-2:] == ["non-compute", "pictures/s"]
    assert [line[-2:] for line in lines if line[0] == "aaaa-000"] == [["81%", "0.161"]]


def test_show_prints_stages_that_add_up_and_what_was_not_active(ledger: Path) -> None:
    out = call("show", "cccc", "--ledger", str(ledger)).stdout
    run = printed("show", "cccc", "--ledger", str(ledger))
    total = run["total_ns"]
    assert (
        f"sum of {len(run['segments'])} segments {total} ns = accepted → finished {total} ns (1.12 s)" in out
    )
    assert "device time not active: no device events in timing mode baseline" in out
    assert "seam core.gone refused: no such [argument]" in out
    assert "/out/a.png" in out


def test_markup_in_a_node_class_is_printed_as_it_is(ledger: Path) -> None:
    out = call("show", "dddd", "--ledger", str(ledger)).stdout
    assert "[bold]KSampler[/]" in out


def test_diff_prints_the_verdict_first(ledger: Path) -> None:
    out = call("diff", "aaaa", "bbbb", "--ledger", str(ledger)).stdout
    assert out.startswith("Run B was 6.19 s faster than run A")
    assert "startup_class: process_cold → cache_hit_rerun" in out


def test_a_long_run_shows_its_longest_visits_and_all_of_them_when_asked(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).spend(MS).start()
    for number in range(1, 101):
        run.visit(number, f"n{number}.", "X", [("node_other", number * MS)])
    run.execute().close()
    journal.write(tmp_path)
    short = call("show", "last", "--ledger", str(tmp_path)).stdout
    assert "and 60 shorter visits, 1.83 s together" in short
    assert "n61." in short
    assert "n60." not in short
    assert "n1." in call("show", "last", "--ledger", str(tmp_path), "--all").stdout


REPORT = {
    "host": {"version": "0.30.0", "folder": "/opt/ComfyUI"},
    "facts": {"async_nodes": True},
    "executor": {"chosen": "native", "reason": "known [loop]"},
    "seams": [{"seam": "core.load", "target": "a:b", "state": "installed", "reason": None}],
    "problems": [],
}


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's doctor without the host: `report` answers by the name of the folder."""
    from stagexec.host import doctor as real
    from stagexec.host.locate import HostNotFound

    def report(comfyui: str | None) -> dict[str, Any]:
        print("a host that talks on import")
        if comfyui == "nowhere":
            raise HostNotFound("no ComfyUI in nowhere")
        if comfyui == "broken":
            raise real.DoctorFailed("the host cannot be imported here")
        return {**REPORT, "problems": ["seam core.gone was lost"] if comfyui == "sick" else []}

    monkeypatch.setattr(real, "report", report)


@pytest.mark.usefixtures("doctor")
def test_doctor_prints_the_report_and_keeps_the_hosts_talk_off_standard_output() -> None:
    assert printed("doctor") == REPORT
    out = call("doctor").stdout
    assert "known [loop]" in out
    assert "no problems" in out


@pytest.mark.usefixtures("doctor")
def test_doctor_ends_with_exit_code_1_if_there_are_problems() -> None:
    assert printed("doctor", "--comfyui", "sick", exit_code=1)["problems"] == ["seam core.gone was lost"]


@pytest.mark.usefixtures("doctor")
def test_doctor_without_a_host_tree_is_a_mistake_of_the_user() -> None:
    result = call("doctor", "--comfyui", "nowhere")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no ComfyUI in nowhere" in result.stderr


@pytest.mark.usefixtures("doctor")
def test_doctor_of_a_host_that_cannot_be_imported_is_a_failure_in_one_line() -> None:
    result = call("doctor", "--comfyui", "broken", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == "Error: the host cannot be imported here"


def test_help_names_every_verb_and_imports_none_of_them() -> None:
    code = (
        "import sys; sys.argv = ['stagexec', '--help']\n"
        "from stagexec.cli import command\n"
        "try: command()\n"
        "finally: print([m for m in sys.modules if m.startswith('stagexec.cli.') or m in ('rich', 'torch')],"
        " file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert all(verb in done.stdout for verb in VERBS)
    assert done.stderr.strip() == "[]"
