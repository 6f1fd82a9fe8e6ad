"""`--stagexec-warmup`: a real server runs the workflow once at start, and the run is flagged."""

from __future__ import annotations

import json
import time
from pathlib import Path

from stagexec.reading import store
from tests.conftest import Servers

PROMPT = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 3}},
    "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
}


def test_a_warm_up_runs_once_at_start_and_is_marked_and_later_runs_are_not(
    server: Servers, tmp_path: Path
) -> None:
    file = tmp_path / "warm.json"
    file.write_text(json.dumps(PROMPT))
    ledger = tmp_path / "ledger"
    one = server("--stagexec-warmup", str(file), ledger=ledger)
    end = time.monotonic() + 60
    while not [r for r in store.load(ledger).runs if r.outcome] and time.monotonic() < end:
        time.sleep(0.2)
    with one.client() as browser:
        browser.run(PROMPT)
    end = time.monotonic() + 60
    while len([r for r in store.load(ledger).runs if r.outcome]) < 2 and time.monotonic() < end:
        time.sleep(0.2)
    runs = store.load(ledger).runs
    assert [any(mark.name == "warmup" for mark in run.marks) for run in runs] == [True, False]
    assert [run.started.startup_class for run in runs if run.started] == ["process_cold", "warm"]
