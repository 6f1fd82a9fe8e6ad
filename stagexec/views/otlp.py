"""Runs as OpenTelemetry traces and metrics, sent by OTLP over HTTP.

Needs opentelemetry-sdk and its HTTP exporter: pip install 'stagexec[otlp]'.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

from stagexec import __version__, addresses
from stagexec.answers.failures import counts_as_failure
from stagexec.reading import derive, named, rows
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


SIGNALS = ("traces", "metrics", "logs")


def send(runs: Sequence[Run], url: str) -> int:
    """Send a trace a run to the collector at `url`, and metrics of those that ended, warm-ups apart.

    How many spans; raises CannotSend, whose text names the collector without what is secret in its address.
    """
    spans = [span for run in runs for span in spans_of(run)]
    exporter = _exporter(0, url)
    from opentelemetry.sdk.trace.export import SpanExportResult

    try:
        for start in range(0, len(spans), BATCH):
            if exporter.export(spans[start : start + BATCH]) is not SpanExportResult.SUCCESS:
                raise CannotSend(f"{addresses.origin(url)}: the collector did not take the traces")
    finally:
        exporter.shutdown()
    _send_metrics(runs, url)
    return len(spans)


def endpoint(url: str, signal: str) -> str:
    """Where a collector at `url` takes a signal: a base address, or the address of one of its signals.

    Raises CannotSend for what is no http or https address.
    """
    if not addresses.is_http(url):
        raise CannotSend("a collector is an http or https address, such as http://localhost:4318")
    parts = urllib.parse.urlsplit(url)
    path = parts.path.rstrip("/")
    for known in SIGNALS:
        path = path.removesuffix(f"/v1/{known}").rstrip("/")
    return urllib.parse.urlunsplit(parts._replace(path=f"{path}/v1/{signal}", fragment=""))


def _exporter(which: int, url: str) -> Any:
    """The exporter of traces (0) or metrics (1) for the collector at `url`. Raises CannotSend."""
    made = _exporters()[which]
    plain, user = addresses.parted(endpoint(url, SIGNALS[which]))
    session = _session_class()()
    if user is not None:
        session.auth = tuple(word.encode() for word in user)
    return made(endpoint=plain, timeout=TIMEOUT_S, session=session)


@functools.cache
def _session_class() -> type[Any]:
    """A session that follows no redirect, and whose errors do not quote addresses."""
    import requests

    class Session(requests.Session):
        def request(self, method: Any, url: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs["allow_redirects"] = False
            try:
                answer = super().request(method, url, *args, **kwargs)
            except requests.RequestException as error:
                raise type(error)(addresses.shown(addresses.reason(error))) from None
            if 300 <= answer.status_code < 400:  # the exporter would take it for a success
                raise requests.RequestException(f"answered {answer.status_code}, which is not followed")
            return answer

    return Session


def _exporters() -> tuple[Any, Any]:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise CannotSend("OTLP needs the OpenTelemetry SDK: pip install 'stagexec[otlp]'") from None
    quiet = logging.getLogger("opentelemetry.util.re")
    if _hide_headers not in quiet.filters:
        quiet.addFilter(_hide_headers)
    return OTLPSpanExporter, OTLPMetricExporter


def _hide_headers(record: logging.LogRecord) -> bool:
    """It quotes a header of $OTEL_EXPORTER_OTLP_HEADERS that it cannot read, which is where keys are."""
    record.args = tuple(addresses.HIDDEN for _ in record.args or ())
    return True


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
    ids = _ids_class()(run.run_id)
    provider = TracerProvider(resource=_resource(run), shutdown_on_exit=False, id_generator=ids)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("stagexec", __version__)
    last = run.segments.end_ns[-1] if len(run.segments) else run.accepted_ns
    if last + moved < 0:
        return []
    root = tracer.start_span("run", start_time=begin, attributes=_run_attributes(run))
    if counts_as_failure(run.outcome, run.cause):
        root.set_status(trace.Status(trace.StatusCode.ERROR, run.cause or ""))
    inside = trace.set_span_in_context(root)
    visits = _longest(run)
    for visit in visits:
        if min(visit.start_ns, visit.end_ns) + moved < 0:
            continue  # a damaged time, which the protocol cannot carry
        ids.name = f"visit {visit.visit} {visit.start_ns}"
        named = visit.class_type or "visit"
        told = _known(_visit_attributes(visit))
        span = tracer.start_span(named, inside, attributes=told, start_time=visit.start_ns + moved)
        span.end(visit.end_ns + moved)
    for place, (stage, part, start, end, number, _) in enumerate(run.segments.rows()):
        if number is None and min(start, end) + moved >= 0:
            ids.name = f"segment {place}"
            told = _known({"stagexec.stage": stage, "stagexec.part": part})
            span = tracer.start_span(stage, inside, attributes=told, start_time=start + moved)
            span.end(end + moved)
    root.end(last + moved)
    return list(memory.get_finished_spans())


@functools.cache
def _ids_class() -> type[Any]:
    """Ids made of the run's own: a run that is sent again is the same trace, not a second one."""
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Ids(IdGenerator):  # type: ignore[misc,unused-ignore]
        def __init__(self, run_id: str) -> None:
            self.run_id = run_id
            self.name = "run"

        def generate_trace_id(self) -> int:
            return self._number("trace", 16)

        def generate_span_id(self) -> int:
            return self._number(f"span {self.name}", 8)

        def _number(self, name: str, size: int) -> int:
            digest = hashlib.sha256(f"stagexec {name} {self.run_id}".encode("utf-8", "backslashreplace"))
            return int.from_bytes(digest.digest()[:size], "big") or 1  # zero means that there is none

    return Ids


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
        "stagexec.startup_class": run.startup_class,
        "stagexec.visits": sum(len(event.visit) for event in run.visit_events),
        "stagexec.named_share": named.share(run),
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
        state = run.startup_class or "unknown"
        alike = {"outcome": outcome, "timing": run.timing or "unknown", "startup_class": state}
        total.record(run.segments.total_ns() / 1e9, alike)
        count.add(1, {"outcome": outcome, "cause": run.cause or "none"})
        for stage, ns in derive.stage_times(run).items():
            stage_time.record(ns / 1e9, {"stage": stage, **alike})
    exporter = _exporter(1, url)
    try:
        if exporter.export(_timed(reader.get_metrics_data(), counted)) is not MetricExportResult.SUCCESS:
            raise CannotSend(f"{addresses.origin(url)}: the collector did not take the metrics")
    finally:
        exporter.shutdown()
        provider.shutdown()


def _timed(data: Any, runs: Sequence[Run]) -> Any:
    """Metrics with the times of the runs that they count, so that sending again makes no further points."""
    starts = [start for run in runs if (start := rows.accepted_wall_ns(run)) is not None]
    ends = [end for run in runs if (end := run.process.wall_ns(run.finished_ns or 0)) is not None]
    if not starts or not ends:
        return data
    times = {"start_time_unix_nano": min(starts), "time_unix_nano": max(*starts, *ends)}

    def moved(metric: Any) -> Any:
        points = [dataclasses.replace(point, **times) for point in metric.data.data_points]
        return dataclasses.replace(metric, data=dataclasses.replace(metric.data, data_points=points))

    def scope(one: Any) -> Any:
        return dataclasses.replace(one, metrics=[moved(metric) for metric in one.metrics])

    resources = [
        dataclasses.replace(one, scope_metrics=[scope(inner) for inner in one.scope_metrics])
        for one in data.resource_metrics
    ]
    return dataclasses.replace(data, resource_metrics=resources)


class Background(Outbox):
    """Sends closed runs from a thread of its own; `put(run)` never waits. Raises CannotSend."""

    def __init__(self, url: str, complain: Callable[[str], None]) -> None:
        _exporters()  # a missing library, or an address that is none, is told at the start
        endpoint(url, "traces")
        self.url = url
        target = f"the collector at {addresses.origin(url)}"
        super().__init__("stagexec-otlp", target, self._send_one, WAITING, complain)

    def _send_one(self, run: Run) -> str | None:
        try:
            send([run], self.url)
        except CannotSend as error:
            return str(error)
        return None
