"""Runs in other tools' formats, read back with those tools."""

from __future__ import annotations

import csv
import gzip
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from stagexec.cli import command
from stagexec.reading import relation, table
from stagexec.reading.store import load
from stagexec.views import html, otlp, prometheus
from tests.reading.fake_journal import FakeJournal, FakeRun, S, cached_run, reseeded_run, tiny_run


def invoke(*words: str) -> str:
    done = CliRunner().invoke(command, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    folder = tmp_path / "ledger"
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa", "process_cold", load_ns=300_000_000).know_condition("ab" * 32)
    cached_run(journal, "bbbb")
    reseeded_run(journal, "cccc")
    run = FakeRun(journal, "dddd").start()
    run.visit(1, "3", "KSampler<script>", [("sampling", S)], kind="failed")
    error = {"stage": "sampling", "node_id": "3", "node_class": "KSampler<script>"}
    run.execute(host_status="error").close("failed", "oom", error=error)
    journal.write(folder)
    return folder


def test_csv_has_the_exact_row_and_every_segment(ledger: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    invoke("export", "--csv", str(target), "--ledger", str(ledger))
    lines = target.read_text().splitlines()
    assert lines[0] == (
        "run_id,condition_id,stage_id,start_mono_ns,end_mono_ns,cpu_wall_ms,gpu_ms,cache_state,"
        "artifact_hash,status,part,named_share"
    )
    rows = list(csv.DictReader(lines))
    runs = load(ledger).runs
    assert len(rows) == sum(len(run.segments) for run in runs)
    assert sum(int(r["end_mono_ns"]) - int(r["start_mono_ns"]) for r in rows) == sum(
        run.segments.total_ns() for run in runs
    )
    sampling = [r for r in rows if r["stage_id"] == "sampling"]
    assert sampling[1]["cpu_wall_ms"] == "600.000000"
    assert (sampling[0]["cache_state"], sampling[0]["gpu_ms"], sampling[-1]["status"]) == (
        "executed",
        "",
        "failed",
    )
    assert next(r["artifact_hash"] for r in rows if r["stage_id"] == "native_materialize") == "cd" * 32


def test_parquet_of_many_ledgers_is_one_table_for_the_report_verbs(ledger: Path, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    other = tmp_path / "other"
    journal = FakeJournal("far", 7).head()
    tiny_run(journal, "eeee")
    journal.write(other)
    for one in (ledger, other, other):  # exporting again replaces, and does not add
        invoke("export", "--parquet", str(lake), "--ledger", str(one))
    pattern = str(lake / "runs" / "*" / "*.parquet")
    counted = duckdb.execute(
        "SELECT count(*), count(DISTINCT run_id) FROM read_parquet(?)", [pattern]
    ).fetchone()
    assert counted == (5, 5)
    assert next(lake.glob("runs/*")).name == "day=2025-10-09"
    far = json.loads(invoke("runs", "--json", "--ledger", pattern))
    near = json.loads(invoke("runs", "--json", "--ledger", str(ledger)))
    assert [run for run in far if not run["run_id"].startswith("eeee")] == near
    told = json.loads(invoke("failures", "--json", "--by", "host", "--ledger", pattern))
    assert (told["total"]["accepted"], told["total"]["failures"]) == (5, 1)
    plan = json.loads(invoke("plan", "aaaa", "--json", "--ledger", pattern))
    assert plan["total_ns"] == near[0]["total_ns"]


def test_parquet_of_named_runs_has_their_segments(ledger: Path, tmp_path: Path) -> None:
    invoke("export", "aaaa", "cccc", "--parquet", str(tmp_path / "lake"), "--ledger", str(ledger))
    found = duckdb.execute(
        "SELECT run_id, sum(end_mono_ns - start_mono_ns), sum(cpu_wall_ms) FROM read_parquet(?) "
        "GROUP BY 1 ORDER BY 1",
        [str(tmp_path / "lake" / "segments" / "*" / "*.parquet")],
    ).fetchall()
    runs = [load(ledger).find(name) for name in ("aaaa", "cccc")]
    assert [(r[0], r[1]) for r in found] == [(run.run_id, run.segments.total_ns()) for run in runs]
    assert [int(r[2] * 1_000_000) for r in found] == [run.segments.total_ns() for run in runs]


def test_a_run_that_a_far_reader_took_for_lost_counts_as_it_ended(ledger: Path, tmp_path: Path) -> None:
    with relation.of_ledger(ledger) as runs:
        for name, outcome in (("a", "outcome"), ("z", "'lost'")):
            query = f"SELECT * REPLACE ({outcome} AS outcome) FROM runs"
            runs.connection.execute(f"COPY ({query}) TO '{tmp_path / name}.parquet'")
        expected = runs.ask("SELECT run_id, outcome FROM runs ORDER BY 1")
    with relation.of_files(str(tmp_path / "*.parquet")) as runs:
        assert runs.ask("SELECT run_id, outcome FROM runs ORDER BY 1") == expected


def test_files_that_are_no_runs_are_refused_in_one_line(tmp_path: Path) -> None:
    duckdb.execute(f"COPY (SELECT 1 AS x) TO '{tmp_path / 'x.parquet'}'")
    duckdb.execute(f"COPY (SELECT 'a' AS run_id, 'long' AS total_ns) TO '{tmp_path / 'y.parquet'}'")
    for name in ("x.parquet", "y.parquet", "none*.parquet"):
        done = CliRunner().invoke(command, ["runs", "--ledger", str(tmp_path / name)])
        assert done.exit_code == 2
        assert len(done.output.strip().splitlines()) == 1


class Receiver(http.server.BaseHTTPRequestHandler):
    """An OTLP/HTTP receiver that keeps what it was sent."""

    got: list[tuple[str, bytes]]
    status = 200
    authorization: str | None = None

    def do_POST(self) -> None:
        type(self).authorization = self.headers.get("Authorization")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.got.append((self.path, body))
        self.send_response(self.status)
        if 300 <= self.status < 400:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    handler = type("Handler", (Receiver,), {"got": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_real_receiver_gets_a_trace_a_run_and_the_metrics(
    ledger: Path, receiver: tuple[str, type[Receiver]]
) -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    url, handler = receiver
    journal = FakeJournal("far", 7).head()
    warm = FakeRun(journal, "warm")
    journal.add("mark", warm, name="warmup", detail={})
    warm.start().execute().close()
    journal.write(ledger)
    said = invoke("export", "--otlp", url, "--ledger", str(ledger))
    spans = []
    for path, body in handler.got:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                spans += [span for scope in resource.scope_spans for span in scope.spans]
    roots = [span for span in spans if not span.parent_span_id]
    assert len({span.trace_id for span in spans}) == len(roots) == 5
    runs = load(ledger).runs
    lengths = sorted(span.end_time_unix_nano - span.start_time_unix_nano for span in roots)
    assert lengths == sorted(run.segments.total_ns() for run in runs)
    assert {"KSampler", "queue_wait"} <= {span.name for span in spans}
    assert f"{len(spans)} spans of 5 runs" in said
    metrics = [ExportMetricsServiceRequest.FromString(b) for p, b in handler.got if p == "/v1/metrics"]
    names = {
        m.name for one in metrics for r in one.resource_metrics for s in r.scope_metrics for m in s.metrics
    }
    points = [
        point.as_int
        for one in metrics
        for r in one.resource_metrics
        for s in r.scope_metrics
        for m in s.metrics
        if m.name == "stagexec.runs"
        for point in m.sum.data_points
    ]
    assert sum(points) == 4
    assert names == {"stagexec.run.duration", "stagexec.stage.duration", "stagexec.runs"}


def sent(handler: type[Receiver]) -> tuple[list[tuple[bytes, bytes, bytes, str]], list[tuple[str, int, int]]]:
    """Spans as (trace id, span id, parent id, name), and data points as (metric, start, time)."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    spans, points = [], []
    for path, body in handler.got:
        if path.startswith("/v1/traces"):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    spans += [(s.trace_id, s.span_id, s.parent_span_id, s.name) for s in scope.spans]
        else:
            for found in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for kept in found.scope_metrics:
                    for metric in kept.metrics:
                        data = metric.sum.data_points or metric.histogram.data_points
                        points += [(metric.name, p.start_time_unix_nano, p.time_unix_nano) for p in data]
    return sorted(spans), sorted(points)


def test_a_run_that_is_sent_again_is_the_same_trace_and_the_same_points(
    ledger: Path, receiver: tuple[str, type[Receiver]]
) -> None:
    url, handler = receiver
    seen = []
    for _ in range(2):
        handler.got.clear()
        invoke("export", "--otlp", url, "--ledger", str(ledger))
        seen.append(sent(handler))
    assert seen[0] == seen[1]
    spans, points = seen[0]
    assert points
    assert len({span_id for _, span_id, _, _ in spans}) == len(spans)
    assert b"" not in {trace_id for trace_id, *_ in spans}
    roots = {trace_id: span_id for trace_id, span_id, parent, _ in spans if not parent}
    assert all(roots[trace_id] == parent for trace_id, _, parent, _ in spans if parent)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("http://h:4318/", "http://h:4318/v1/traces"),
        ("http://h:4318/v1/traces", "http://h:4318/v1/traces"),
        ("http://h:4318/v1/traces/", "http://h:4318/v1/traces"),
        ("http://h:4318/v1/metrics", "http://h:4318/v1/traces"),
        ("https://h/otlp//", "https://h/otlp/v1/traces"),
        ("https://h/otlp/v1/traces?key=1", "https://h/otlp/v1/traces?key=1"),
    ],
)
def test_a_collectors_address_may_be_its_base_or_that_of_one_signal(given: str, path: str) -> None:
    assert otlp.endpoint(given, "traces") == path
    assert otlp.endpoint(given, "metrics") == path.replace("/v1/traces", "/v1/metrics")


@pytest.mark.parametrize("given", ["localhost:4318", "ftp://h/", "http://", "http://h:x/", "", "http://[x]/"])
def test_what_is_no_address_of_a_collector_is_refused_without_being_repeated(given: str) -> None:
    with pytest.raises(otlp.CannotSend, match="an http or https address"):
        otlp.endpoint(given, "traces")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_collector_that_redirects_has_not_taken_it(
    ledger: Path, receiver: tuple[str, type[Receiver]], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    url, handler = receiver
    handler.status = status
    named = url.replace("http://", "http://me:s3cr3t@") + "?token=s3cr3t"
    done = CliRunner().invoke(command, ["export", "aaaa", "--otlp", named, "--ledger", str(ledger)])
    assert done.exit_code == 1
    assert "did not take the traces" in done.output
    assert len(handler.got) == 1
    assert "s3cr3t" not in done.output + caplog.text


def test_a_collector_gets_user_and_password_as_a_header_and_no_message_holds_them(
    ledger: Path, receiver: tuple[str, type[Receiver]], caplog: pytest.LogCaptureFixture
) -> None:
    url, handler = receiver
    named = url.replace("http://", "http://me:s3cr3t@")
    said = invoke("export", "aaaa", "--otlp", named, "--ledger", str(ledger))
    assert handler.authorization == "Basic bWU6czNjcjN0"
    assert "s3cr3t" not in said + caplog.text


def test_a_receiver_that_refuses_is_told_in_one_line(
    ledger: Path, receiver: tuple[str, type[Receiver]]
) -> None:
    url, handler = receiver
    handler.status = 400
    done = CliRunner().invoke(command, ["export", "aaaa", "--otlp", url, "--ledger", str(ledger)])
    assert done.exit_code == 1
    assert "did not take the traces" in done.output


def test_the_background_exporter_never_waits_for_a_dead_collector(ledger: Path) -> None:
    said: list[str] = []
    sender = otlp.Background("http://127.0.0.1:9", said.append)
    (run, *_) = load(ledger).runs
    for _ in range(otlp.WAITING + 50):
        sender.put(run)
    assert sender.dropped > 0


def test_metrics_count_runs_and_stages_and_keep_their_labels_bounded(ledger: Path) -> None:
    metrics = prometheus.Metrics()
    rows = [table.flat(run) for run in load(ledger).runs]
    for row in rows:
        metrics.observe(row)
    for number in range(2 * prometheus.MOST_CLASSES):
        metrics.observe({**rows[-1], "error_class": f"Class{number}"})
    text = metrics.text().decode()
    assert 'stagexec_runs_total{cause="none",outcome="success"} 3.0' in text
    for state in ("process_cold", "cache_hit_rerun", "model_warm_recompute"):  # one run of each
        alike = f'outcome="success",startup_class="{state}",timing="baseline"'
        assert f'stagexec_run_seconds_bucket{{le="28800.0",{alike}}} 1.0' in text
        sampled = f'outcome="success",stage="sampling",startup_class="{state}",timing="baseline"'
        assert (f"stagexec_stage_seconds_count{{{sampled}}} 1.0" in text) == (state != "cache_hit_rerun")
    classes = re.findall(r'stagexec_failures_total\{.*node_class="([^"]*)"', text)
    assert len(classes) == prometheus.MOST_CLASSES + 1
    assert "other" in classes


def test_timing_modes_are_never_one_distribution(ledger: Path, tmp_path: Path) -> None:
    metrics = prometheus.Metrics()
    row = table.flat(load(ledger).find("aaaa"))
    for timing in ("baseline", "profile", None):
        metrics.observe({**row, "timing": timing})
    counts = re.findall(
        r'stagexec_run_seconds_count\{outcome="success",startup_class="process_cold",timing="(\w+)"\} 1.0',
        metrics.text().decode(),
    )
    assert sorted(counts) == ["baseline", "profile", "unknown"]
    journal = FakeJournal().head()
    for name, timing in (("aaaa", "profile"), ("bbbb", "baseline"), ("cccc", "baseline")):
        FakeRun(journal, name).start(timing=timing).execute().close()
    journal.write(tmp_path)
    pair = html.first_and_second(load(tmp_path).runs)
    assert pair is not None
    assert [run.run_id[:4] for run in pair] == ["bbbb", "cccc"]


def test_a_cancel_is_no_failure_in_the_metrics(ledger: Path) -> None:
    metrics = prometheus.Metrics()
    row = table.flat(load(ledger).find("dddd"))
    metrics.observe({**row, "outcome": "cancelled", "cause": "user_cancel"})
    text = metrics.text().decode()
    assert 'stagexec_runs_total{cause="user_cancel",outcome="cancelled"} 1.0' in text
    assert "stagexec_failures_total{" not in text


def test_a_planned_end_of_the_process_is_no_failure_in_the_metrics_and_a_crash_is(ledger: Path) -> None:
    metrics = prometheus.Metrics()
    row = table.flat(load(ledger).find("dddd"))
    for cause in ("process_stopped", "process_died", "worker_died"):
        metrics.observe({**row, "outcome": "lost", "cause": cause})
    text = metrics.text().decode()
    assert 'stagexec_runs_total{cause="process_stopped",outcome="lost"} 1.0' in text
    failed = re.findall(r'stagexec_failures_total\{cause="(\w+)"', text)
    assert sorted(failed) == ["process_died", "worker_died"]


def test_a_warm_up_is_in_no_statistic_of_the_report(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    warm = FakeRun(journal, "warm").spend(S)
    journal.add("mark", warm, name="warmup", detail={})
    warm.start().execute().close("success")
    tiny_run(journal, "aaaa")
    tiny_run(journal, "bbbb")
    journal.write(tmp_path)
    runs = load(tmp_path).runs
    pair = html.first_and_second(runs)
    assert pair is not None
    assert [run.run_id[:4] for run in pair] == ["aaaa", "bbbb"]
    assert "0 of 2 failed" in html.page(runs)


def test_the_report_is_one_file_that_names_no_other_host(ledger: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    invoke("export", "--html", str(target), "--ledger", str(ledger))
    page = target.read_text()
    ours = re.sub(r"<script>/\*\*\n\* plotly.*?</script>", "", page, flags=re.DOTALL)
    assert len(ours) < len(page) / 2
    assert not re.search(r"(src|href)\s*=", ours)
    assert "https://" not in ours
    assert "KSampler<script>" not in ours
    assert "First against second" in page
    assert "1 of 4 failed" in page
