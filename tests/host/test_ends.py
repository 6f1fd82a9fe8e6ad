"""How a real server ends: what the next one tells of the runs that were open."""

from __future__ import annotations

import http.server
import json
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stagexec.bench.client import http_raw
from stagexec.reading import store
from tests.conftest import Servers
from tests.host import graphs
from tests.host.witness import Witness, errors, ledger_of, sound

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and exec")


class Told(NamedTuple):
    """What a webhook was told, and what two servers of the ledger count."""

    ledger: Path
    prompts: dict[str, str]
    posted: list[dict[str, Any]]
    metrics: list[str]
    code: int


class Hook(http.server.BaseHTTPRequestHandler):
    got: list[dict[str, Any]]

    def do_POST(self) -> None:
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["run"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, host_tree: Path, checkpoint: Path) -> Iterator[Told]:
    """A server with one run done, one at work and one waiting gets SIGTERM; two more start on its ledger."""
    handler = type("Handler", (Hook,), {"got": []})
    hook = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    servers = Servers(tmp_path_factory.mktemp("ends"), host_tree, checkpoint)
    env = {"STAGEXEC_WEBHOOK": f"http://me:s3cr3t@127.0.0.1:{hook.server_port}/hook"}
    try:
        first = servers(env=env)
        witness = Witness(first)
        prompts = {"done": witness.run(graphs.invert_save()).prompt_id}
        prompts["work"] = witness.client.submit(graphs.slow(60.0))
        witness.client.wait_for("executing", prompts["work"], node="2")
        prompts["wait"] = witness.client.submit(graphs.invert_save(color=1))
        time.sleep(1.0)
        assert first.process is not None
        first.process.send_signal(signal.SIGTERM)
        code = first.wait_end(20)
        witness.close()
        ledger = ledger_of(first)
        metrics = []
        for _ in range(2):
            second = servers(env=env, ledger=ledger)
            end = time.monotonic() + 20
            while len(handler.got) < 3 and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.5)
            metrics.append(http_raw(second.url, "GET", "/stagexec/metrics")[1].decode())
            assert "s3cr3t" not in second.log()
            second.stop()
        yield Told(ledger, prompts, handler.got, metrics, code)
    finally:
        servers.stop_all()
        hook.shutdown()
        hook.server_close()


def test_a_server_dies_of_sigterm_as_stock_does_and_its_open_runs_were_stopped(told: Told) -> None:
    assert told.code == -signal.SIGTERM
    found = {run.prompt_id: (run.outcome, run.cause) for run in store.load(told.ledger).runs}
    stopped = ("lost", "process_stopped")
    assert found == {
        told.prompts["done"]: ("success", None),
        told.prompts["work"]: stopped,
        told.prompts["wait"]: stopped,
    }
    waited = sound(told.ledger, store.load(told.ledger).find(told.prompts["wait"]))
    assert waited["error_stage"] == "queue_wait"
    assert errors(told.ledger) == []


def test_the_webhook_is_told_of_every_run_once(told: Told) -> None:
    posted = [(run["prompt_id"], run["outcome"], run["cause"]) for run in told.posted]
    assert sorted(posted) == sorted(
        [
            (told.prompts["done"], "success", None),
            (told.prompts["work"], "lost", "process_stopped"),
            (told.prompts["wait"], "lost", "process_stopped"),
        ]
    )


def test_the_metrics_of_the_next_server_alone_count_the_lost_runs(told: Told) -> None:
    counts = [re.findall(r'stagexec_runs_total\{.*outcome="lost"\} (\S+)', text) for text in told.metrics]
    assert counts == [["2.0"], []]
    assert all("stagexec_failures_total{" not in text for text in told.metrics)


def test_no_file_of_the_ledger_holds_the_webhooks_password(told: Told) -> None:
    assert not [path for path in told.ledger.rglob("*") if path.is_file() and b"s3cr3t" in path.read_bytes()]
