"""Metrics for Prometheus: counted as runs close, so that a scrape costs the same after any number of runs.

Needs prometheus-client: pip install 'stagexec[metrics]'.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from stagexec.answers.failures import counts_as_failure
from stagexec.printable import visible
from stagexec.reading import startup
from stagexec.reading.table import stages_of

BUCKETS = (
    *(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600),
    *(1200, 1800, 3600, 7200, 14400, 28800, 86400),
)
"""Seconds, from a cached image to a video that takes all day."""

MOST_CLASSES = 200
"""Node classes and packs are open sets: what comes after so many is `other`, so that labels stay bounded."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class NoLibrary(Exception):
    """prometheus-client is not installed."""


class Metrics:
    """What this process has seen. Raises NoLibrary."""

    def __init__(self) -> None:
        try:
            import prometheus_client as client
        except ImportError:
            raise NoLibrary(
                "metrics need prometheus-client: pip install 'stagexec[metrics]', then restart"
            ) from None
        self._text = client.generate_latest
        self.registry = client.CollectorRegistry()
        kept: Any = {"registry": self.registry}
        counter, histogram = client.Counter, client.Histogram
        self._runs = counter("stagexec_runs", "Runs that ended.", ["outcome", "cause"], **kept)
        self._total = histogram(
            "stagexec_run_seconds",
            "Queue accepted to delivered.",
            ["outcome", "timing", "startup_class"],
            buckets=BUCKETS,
            **kept,
        )
        self._stage = histogram(
            "stagexec_stage_seconds",
            "Time of a run in a stage.",
            ["stage", "outcome", "timing", "startup_class"],
            buckets=BUCKETS,
            **kept,
        )
        self._failures = counter(
            "stagexec_failures",
            "Runs that failed; a cancel is none, nor a planned end of the process.",
            ["stage", "cause", "node_class"],
            **kept,
        )
        self._wasted = counter(
            "stagexec_wasted_seconds", "Time without anything delivered.", ["kind"], **kept
        )
        self._unnamed = counter(
            "stagexec_unnamed_seconds", "Time of runs of which it is not known what ran.", **kept
        )
        self._outputs = counter("stagexec_delivered_outputs", "Artifacts that are there.", **kept)
        self._dropped = {
            kind: counter(f"stagexec_{kind}_dropped", f"Runs that could not be told by {kind}.", **kept)
            for kind in ("webhook", "otlp")
        }
        self._worker_up = client.Gauge(
            "stagexec_worker_up",
            "1 while the thread that executes prompts lives, 0 when it is dead; NaN where it is not watched.",
            **kept,
        )
        self._worker_restarts = counter(
            "stagexec_worker_restarts", "Workers started in a dead one's place.", **kept
        )
        self._worker: Callable[[], dict[str, Any]] = dict
        self._restarts = 0
        self._classes: set[str] = set()

    def watch_worker(self, worker: Callable[[], dict[str, Any]]) -> None:
        """`worker` gives {up, restarts}, which every scrape then asks for."""
        self._worker = worker

    def observe(self, row: dict[str, Any]) -> None:
        """Count one closed run; `row` has table.COLUMNS."""
        outcome, cause = visible(row["outcome"]), visible(row["cause"] or "none")
        # A profiled run is slower: never one distribution with others.
        timing = visible(row["timing"] or "unknown")
        state = row["startup_class"] if row["startup_class"] in startup.CLASSES else "unknown"
        self._runs.labels(outcome, cause).inc()
        if row["total_ns"] is not None:
            self._total.labels(outcome, timing, state).observe(row["total_ns"] / 1e9)
        for stage, ns in stages_of(row).items():
            self._stage.labels(visible(stage), outcome, timing, state).observe(ns / 1e9)
        if counts_as_failure(row["outcome"], row["cause"]):
            name = self._bounded(row["error_class"])
            self._failures.labels(visible(row["error_stage"] or "none"), cause, name).inc()
        if (row["wasted_ns"] or 0) > 0:  # a counter only ever grows
            self._wasted.labels(visible(row["wasted_kind"])).inc(row["wasted_ns"] / 1e9)
        if (row["unnamed_ns"] or 0) > 0:
            self._unnamed.inc(row["unnamed_ns"] / 1e9)
        self._outputs.inc(row["delivered"] or 0)

    def dropped(self, kind: str) -> None:
        """Count a run that `webhook` or `otlp` could not be told about."""
        self._dropped[kind].inc()

    def _bounded(self, name: str | None) -> str:
        if name is None:
            return "none"
        if name not in self._classes and len(self._classes) >= MOST_CLASSES:
            return "other"
        self._classes.add(name)
        return visible(name)

    def text(self) -> bytes:
        """The exposition, as a scrape wants it."""
        told = self._worker()
        up, restarts = told.get("up"), told.get("restarts", 0)
        self._worker_up.set(math.nan if up is None else float(up))
        self._worker_restarts.inc(restarts - self._restarts)
        self._restarts = restarts
        written: bytes = self._text(self.registry)
        return written
