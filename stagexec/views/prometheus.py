"""Metrics for Prometheus: counted as runs close, so that a scrape costs the same after any number of runs.

Needs prometheus-client: pip install 'stagexec[metrics]'.
"""

from __future__ import annotations

from typing import Any

from stagexec.answers.failures import FAILED
from stagexec.printable import visible
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
            ["outcome", "timing"],
            buckets=BUCKETS,
            **kept,
        )
        self._stage = histogram(
            "stagexec_stage_seconds",
            "Time of a run in a stage.",
            ["stage", "outcome", "timing"],
            buckets=BUCKETS,
            **kept,
        )
        self._failures = counter(
            "stagexec_failures",
            "Runs that failed; a cancel is none.",
            ["stage", "cause", "node_class"],
            **kept,
        )
        self._wasted = counter("stagexec_wasted_seconds", "Time nobody got anything for.", ["kind"], **kept)
        self._outputs = counter("stagexec_delivered_outputs", "Artifacts that are there.", **kept)
        self._classes: set[str] = set()

    def observe(self, row: dict[str, Any]) -> None:
        """Count one closed run; `row` has table.COLUMNS."""
        outcome, cause = visible(row["outcome"]), visible(row["cause"] or "none")
        # A profiled run is slower: never one distribution with others.
        timing = visible(row["timing"] or "unknown")
        self._runs.labels(outcome, cause).inc()
        self._total.labels(outcome, timing).observe(row["total_ns"] / 1e9)
        for stage, ns in stages_of(row).items():
            self._stage.labels(visible(stage), outcome, timing).observe(ns / 1e9)
        if row["outcome"] in FAILED:
            name = self._bounded(row["error_class"])
            self._failures.labels(visible(row["error_stage"] or "none"), cause, name).inc()
        if row["wasted_ns"]:
            self._wasted.labels(visible(row["wasted_kind"])).inc(row["wasted_ns"] / 1e9)
        self._outputs.inc(row["delivered"] or 0)

    def _bounded(self, name: str | None) -> str:
        if name is None:
            return "none"
        if name not in self._classes and len(self._classes) >= MOST_CLASSES:
            return "other"
        self._classes.add(name)
        return visible(name)

    def text(self) -> bytes:
        """The exposition, as a scrape wants it."""
        written: bytes = self._text(self.registry)
        return written
