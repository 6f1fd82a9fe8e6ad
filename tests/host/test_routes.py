"""On a real server: our routes beside the host's, the event, and the key in the history."""

from __future__ import annotations

import json
import time
from typing import Any

from stagexec.bench.client import http_raw
from tests.host import graphs
from tests.host.witness import Witness, prefix


def with_key(witness: Witness, prompt_id: str) -> dict[str, Any]:
    """The history entry, once ours is in it."""
    end = time.monotonic() + 20
    while True:
        entry = witness.client.history(prompt_id) or {}
        if "stagexec" in entry:
            return entry
        assert time.monotonic() < end, "the history has no key of ours"
        time.sleep(0.02)


def test_the_history_has_the_runs_stages_and_the_clients_are_told(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.invert_save(prefix(), color))
    ours = with_key(witness, seen.prompt_id)["stagexec"]
    assert ours["run_id"] == seen.ledger["run_id"]
    assert ours["stages"] == seen.ledger["stages"]
    assert (ours["outcome"], ours["total_ns"]) == ("success", seen.ledger["total_ns"])
    told = witness.client.wait_for("stagexec.run", seen.prompt_id)["data"]
    assert {**ours, "prompt_id": seen.prompt_id} == told


def test_routes_answer_with_and_without_the_prefix(witness: Witness, color: int) -> None:
    seen = witness.run(graphs.invert_save(prefix(), color))
    for base in ("/stagexec", "/api/stagexec"):
        listed = witness.client.get(f"{base}/runs?limit=1000")
        assert seen.ledger["run_id"] in [run["run_id"] for run in listed]
        one = witness.client.get(f"{base}/runs/{seen.ledger['run_id']}")
        assert one["segments"] == seen.ledger["segments"]
        assert witness.client.get(f"{base}/failures")["total"]["accepted"] >= 1
        status, body = http_raw(witness.server.url, "GET", f"{base}/")
        assert (status, b"<title>stagexec</title>" in body) == (200, True)
        status, body = http_raw(witness.server.url, "GET", f"{base}/metrics")
        assert status == 200
        assert b'stagexec_runs_total{cause="none",outcome="success"}' in body


def test_nothing_can_be_posted_to_ours(witness: Witness) -> None:
    status, _ = http_raw(witness.server.url, "POST", "/stagexec/runs", {})
    assert status == 405


def test_no_constant_of_a_prompt_is_in_any_answer(witness: Witness) -> None:
    wish = "a very secret wish"
    prompt = {
        "1": {"class_type": "PrimitiveString", "inputs": {"value": wish}},
        "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}},
    }
    seen = witness.run(prompt)
    with_key(witness, seen.prompt_id)
    for path in ("/stagexec/runs?limit=1000", f"/stagexec/runs/{seen.ledger['run_id']}"):
        assert wish not in json.dumps(witness.client.get(path))
    time.sleep(0.5)
    for file in witness.folder.rglob("*"):
        assert not file.is_file() or wish.encode() not in file.read_bytes()
