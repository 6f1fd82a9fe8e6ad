"""Puts site and feed together; $STAGEXEC_WEBHOOK and $STAGEXEC_OTLP name addresses that are told too."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from stagexec.views import otlp, prometheus
from stagexec.web.earlier import Earlier
from stagexec.web.feed import Ended, Feed, Listener, summary
from stagexec.web.routes import Site
from stagexec.web.webhook import Webhook

WEBHOOK_VARIABLE = "STAGEXEC_WEBHOOK"
OTLP_VARIABLE = "STAGEXEC_OTLP"


def make(
    ledger: Callable[[], pathlib.Path | None],
    journal: Callable[[], pathlib.Path | None],
    complain: Callable[[str, Exception], None],
    warn: Callable[[str], None],
    told: Callable[[], Iterable[str]] = tuple,
    worker: Callable[[], dict[str, Any]] = dict,
) -> tuple[Site, Feed]:
    """The site of a ledger, and the feed of this process's journal with who listens by default.

    `complain` takes a listener's fault, `warn` a sentence for the person at the log; `told` gives what the
    host was told to listen at, `worker` the state of the thread that executes prompts.
    """
    feed = Feed(journal, complain)
    metrics: Any
    counted = None
    try:
        counted = metrics = prometheus.Metrics()
        counted.watch_worker(worker)
        feed.listeners.append(functools.partial(observe, metrics))
    except prometheus.NoLibrary as reason:
        metrics = reason
    feed.listeners += outside(warn, counted, feed.worker_listeners)
    feed.earlier = Earlier(ledger, journal, list(feed.listeners), complain)
    return Site(ledger, metrics, told, complain, worker), feed


def observe(metrics: prometheus.Metrics, ended: Ended) -> None:
    """Count a run; a warm-up is in no statistic."""
    if not ended.row["warmup"]:
        metrics.observe(ended.row)


def outside(
    warn: Callable[[str], None],
    metrics: prometheus.Metrics | None = None,
    worker_listeners: list[Callable[[dict[str, Any]], None]] | None = None,
) -> list[Listener]:
    """Who else is told, by the environment. An address that cannot be used is warned of, once.

    What cannot be sent is counted in `metrics`; listeners to a worker's end are added to `worker_listeners`.
    No warning holds an address: see stagexec.addresses.
    """
    found: list[Listener] = []
    webhook, collector = os.environ.get(WEBHOOK_VARIABLE), os.environ.get(OTLP_VARIABLE)
    if webhook:
        try:
            hook = Webhook(webhook, warn)
            hook.on_drop = functools.partial(metrics.dropped, "webhook") if metrics is not None else None
            found.append(lambda ended: hook.put(summary(ended)))
            if worker_listeners is not None:
                worker_listeners.append(hook.put_worker)
        except ValueError as error:
            warn(f"${WEBHOOK_VARIABLE}: {error}")
    if collector:
        try:
            sender = otlp.Background(collector, warn)
            sender.on_drop = functools.partial(metrics.dropped, "otlp") if metrics is not None else None
            found.append(lambda ended: sender.put(ended.run()))
        except otlp.CannotSend as error:
            warn(f"${OTLP_VARIABLE}: {error}")
    return found
