"""A shipped plan on a local Ray cluster, with real servers beneath two workers."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import store
from stagexec.reading.alive import is_alive
from tests.host.test_bench_plans import SMALLEST, bench

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, host_tree: Path, checkpoint: Path) -> Path:
    """The result folder of the matrix's units M06 and M07, each on a worker of its own."""
    pytest.importorskip("ray")
    base = tmp_path_factory.mktemp("ray")
    units = ("--unit", "M06", "--unit", "M07", "--counted", "1")
    words = ("matrix", "--ray", "--out", "result", "--comfyui", str(host_tree), *units, *SMALLEST)
    done = bench(base, *words)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "(0/2, time left unknown)" in done.stderr
    return base / "result"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_units_on_workers_are_measured_each_by_a_server_of_its_own(result: Path) -> None:
    found = json.loads((result / "report.json").read_text(encoding="utf-8"))
    assert found["state"] == "finished"
    assert [(cell["unit"], cell["status"], cell["n"]) for cell in found["cells"]] == [
        ("M06", "measured", 1),
        ("M07", "measured", 1),
    ]
    sessions = [note for note in lines(result / "notes.jsonl") if note["kind"] == "session"]
    assert len({note["pid"] for note in sessions}) == 2
    assert not any(is_alive(socket.gethostname(), note["pid"]) for note in sessions)


def test_what_workers_wrote_comes_home(result: Path) -> None:
    raw = lines(result / "runs.jsonl")
    assert {run["until"] for run in raw} == {"postprocess", "encode"}
    assert {run["run_id"] for run in raw} <= {run.run_id for run in store.load(result / "ledger").runs}
    assert len(list((result / "logs").iterdir())) == 2
    assert all((result / file).stat().st_size for run in raw for file in run["files"])
