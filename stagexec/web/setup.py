"""Puts site and feed together; $STAGEXEC_WEBHOOK and $STAGEXEC_OTLP name addresses that are told too."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

from stagexec.reading.tail import Closed
from stagexec.views import otlp, prometheus
from stagexec.web.feed import Feed, Listener, summary
from stagexec.web.routes import Site
from stagexec.web.webhook import Webhook

WEBHOOK_VARIABLE = "STAGEXEC_WEBHOOK"
OTLP_VARIABLE = "STAGEXEC_OTLP"


def make(
    ledger: Callable[[], pathlib.Path | None],
    journal: Callable[[], pathlib.Path | None],
    complain: Callable[[str, Exception], None],
    warn: Callable[[str], None],
    worker: Callable[[], dict[str, Any]] = dict,
) -> tuple[Site, Feed]:
    """The site of a ledger, and the feed of this process's journal with who listens by default.

    `complain` takes a listener's fault, `warn` a sentence for the person at the log; `worker` gives the state
    of the thread that executes prompts.
    """
    feed = Feed(journal, complain)
    metrics: Any
    try:
        counted = metrics = prometheus.Metrics()
        counted.watch_worker(worker)

        def observe(closed: Closed) -> None:
            if not closed.row["warmup"]:
                counted.observe(closed.row)

        feed.listeners.append(observe)
    except prometheus.NoLibrary as reason:
        metrics = reason
    feed.listeners += outside(warn, feed.worker_listeners)
    return Site(ledger, metrics, worker), feed


def outside(
    warn: Callable[[str], None], worker_listeners: list[Callable[[dict[str, Any]], None]] | None = None
) -> list[Listener]:
    """Who else is told, by the environment. An address that cannot be used is warned of, once.

    Who is told of a worker's end is added to `worker_listeners`.
    """
    found: list[Listener] = []
    webhook, collector = os.environ.get(WEBHOOK_VARIABLE), os.environ.get(OTLP_VARIABLE)
    if webhook:
        try:
            hook = Webhook(webhook, warn)
            found.append(lambda closed: hook.put(summary(closed)))
            if worker_listeners is not None:
                worker_listeners.append(hook.put_worker)
        except ValueError as error:
            warn(f"${WEBHOOK_VARIABLE}: {error}")
    if collector:
        try:
            sender = otlp.Background(collector, warn)
            found.append(lambda closed: sender.put(closed.run()))
        except otlp.CannotSend as error:
            warn(f"${OTLP_VARIABLE}: {error}")
    return found
