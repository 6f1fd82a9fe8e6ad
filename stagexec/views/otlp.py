"""Runs as OpenTelemetry traces and metrics, sent by OTLP over HTTP.

Needs opentelemetry-sdk and its HTTP exporter: pip install 'stagexec[otlp]'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stagexec import __version__
from stagexec.reading import derive, rows
from stagexec.reading.runs import Run, Visit
from stagexec.views.outbox import Outbox

MOST_VISITS = 2000
"""A run of more visits sends its longest ones: a collector would drop the rest anyway."""

BATCH = 512
TIMEOUT_S = 10
WAITING = 100
"""So many runs wait for a slow collector in the background; what comes beyond is dropped and counted."""


class CannotSend(Exception):
    """The library is missing, or the collector did not take it; one line."""


def send(runs: Sequence[Run], url: str) -> int:
    """Send a trace a run to the collector at `url`, and metrics of those that ended, warm-ups apart.

    How many spans; raises CannotSend.
    """
    spans = [span for run in runs for span in spans_of(run)]
    exporter = _exporters()[0](endpoint=f"{url.rstrip('/')}/v1/traces", timeout=TIMEOUT_S)
    from opentelemetry.sdk.trace.export import SpanExportResult

    try:
        for start in range(0, len(spans), BATCH):
            if exporter.export(spans[start : start + BATCH]) is not SpanExportResult.SUCCESS:
                raise CannotSend(f"{url}: the collector did not take the traces")
    finally:
        exporter.shutdown()
    _send_metrics(runs, url)
    return len(spans)


def _exporters() -> tuple[Any, Any]:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise CannotSend("OTLP needs the OpenTelemetry SDK: pip install 'stagexec[otlp]'") from None
    return OTLPSpanExporter, OTLPMetricExporter


def _resource(run: Run) -> Any:
    from opentelemetry.sdk.resources import Resource

    start, host = run.process.start, run.process.host
    told = {
        "service.name": "comfyui",
        "service.instance.id": f"{start.hostname}-{start.pid}" if start else None,
        "host.name": start.hostname if start else None,
        "process.pid": start.pid if start else None,
        "comfyui.version": host.host_version if host else None,
        "stagexec.version": __version__,
    }
    return Resource.create({name: value for name, value in told.items() if value is not None})


def spans_of(run: Run) -> list[Any]:
    """Finished spans: the run, its visits, and its stages between visits. Empty without a wall clock."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    begin = rows.accepted_wall_ns(run)
    if begin is None or begin < 0:  # before 1970: a damaged line, or no clock
        return []
    moved = begin - run.accepted_ns
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=_resource(run), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("stagexec", __version__)
    last = run.segments.end_ns[-1] if len(run.segments) else run.accepted_ns
    if last + moved < 0:
        return []
    root = tracer.start_span("run", start_time=begin, attributes=_run_attributes(run))
    if run.outcome in ("failed", "partial", "lost"):
        root.set_status(trace.Status(trace.StatusCode.ERROR, run.cause or ""))
    inside = trace.set_span_in_context(root)
    visits = _longest(run)
    for visit in visits:
        if min(visit.start_ns, visit.end_ns) + moved < 0:
            continue  # a damaged time, which the protocol cannot carry
        named = visit.class_type or "visit"
        told = _known(_visit_attributes(visit))
        span = tracer.start_span(named, inside, attributes=told, start_time=visit.start_ns + moved)
        span.end(visit.end_ns + moved)
    for stage, part, start, end, number, _ in run.segments.rows():
        if number is None and min(start, end) + moved >= 0:
            told = _known({"stagexec.stage": stage, "stagexec.part": part})
            span = tracer.start_span(stage, inside, attributes=told, start_time=start + moved)
            span.end(end + moved)
    root.end(last + moved)
    return list(memory.get_finished_spans())


def _longest(run: Run) -> list[Visit]:
    visits = run.visits()
    if len(visits) <= MOST_VISITS:
        return visits
    return sorted(visits, key=lambda visit: visit.start_ns - visit.end_ns)[:MOST_VISITS]


def _run_attributes(run: Run) -> dict[str, Any]:
    told = {
        "stagexec.run_id": run.run_id,
        "stagexec.prompt_id": run.prompt_id,
        "stagexec.condition_id": run.condition_id,
        "stagexec.outcome": run.outcome,
        "stagexec.cause": run.cause,
        "stagexec.timing": run.timing,
        "stagexec.visits": sum(len(event.visit) for event in run.visit_events),
    }
    stages = {f"stagexec.stage.{name}_ns": ns for name, ns in derive.stage_times(run).items()}
    return {**_known(told), **stages}


def _visit_attributes(visit: Visit) -> dict[str, Any]:
    return {
        "stagexec.node_id": visit.node_id,
        "stagexec.node_class": visit.class_type,
        "stagexec.kind": visit.kind,
        "stagexec.stage": visit.class_stage,
        "stagexec.visit": visit.visit,
        "stagexec.parent": visit.parent,
    }


def _known(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _send_metrics(runs: Sequence[Run], url: str) -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult

    counted = [run for run in runs if run.outcome is not None and not run.warmup]
    if not counted:
        return
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource=_resource(counted[-1]), shutdown_on_exit=False)
    meter = provider.get_meter("stagexec", __version__)
    total = meter.create_histogram("stagexec.run.duration", unit="s")
    stage_time = meter.create_histogram("stagexec.stage.duration", unit="s")
    count = meter.create_counter("stagexec.runs")
    for run in counted:
        outcome = str(run.outcome)
        alike = {"outcome": outcome, "timing": run.timing or "unknown"}
        total.record(run.segments.total_ns() / 1e9, alike)
        count.add(1, {"outcome": outcome, "cause": run.cause or "none"})
        for stage, ns in derive.stage_times(run).items():
            stage_time.record(ns / 1e9, {"stage": stage, **alike})
    exporter = _exporters()[1](endpoint=f"{url.rstrip('/')}/v1/metrics", timeout=TIMEOUT_S)
    try:
        if exporter.export(reader.get_metrics_data()) is not MetricExportResult.SUCCESS:
            raise CannotSend(f"{url}: the collector did not take the metrics")
    finally:
        exporter.shutdown()
        provider.shutdown()


class Background(Outbox):
    """Sends closed runs from a thread of its own; `put(run)` never waits."""

    def __init__(self, url: str, complain: Callable[[str], None]) -> None:
        _exporters()  # a missing library is told at the start
        self.url = url
        self._complain = complain
        self._told = False
        super().__init__("stagexec-otlp", self._send_one, WAITING)

    def _send_one(self, run: Run) -> None:
        try:
            send([run], self.url)
            self._told = False
        except Exception as error:  # noqa: BLE001 (the fence of this thread: told once, and tried again)
            if not self._told:
                self._complain(f"traces cannot be sent: {error}")
            self._told = True
