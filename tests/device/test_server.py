"""Timing modes on a real ComfyUI on the CPU: reasons, memory, one profiled run, the merged timeline."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stagexec.bench import lab
from stagexec.bench.client import Client
from stagexec.cli import command
from stagexec.record.devices import ON_CPU
from tests.conftest import ROOT, Servers
from tests.device.test_perfetto import assert_well_formed

pytestmark = pytest.mark.host

GRAPH = json.loads((ROOT / "bench" / "workflows" / "tiny_txt2img.json").read_text())


def call(server: lab.Server, *words: str) -> Any:
    """The JSON that a verb prints."""
    done = CliRunner().invoke(command, [*words, "--ledger", str(server.launch.ledger)])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout) if "--json" in words else done.output


def graph(seed: int) -> dict[str, Any]:
    prompt = json.loads(json.dumps(GRAPH))
    for node in prompt.values():
        if "seed" in node["inputs"]:
            node["inputs"]["seed"] = seed
    return prompt


def run(server: lab.Server, seed: int) -> dict[str, Any]:
    """The ledger of one prompt, once it is closed."""
    with Client(server.url) as client:
        prompt_id = client.submit(graph(seed))
        client.wait(prompt_id)
    end = time.monotonic() + 30
    while True:
        shown = call(server, "show", prompt_id, "--json")
        known = shown["outcome"] is not None and shown["condition_id"] is not None  # told a moment later
        if known or time.monotonic() > end:
            return shown
        time.sleep(0.1)


@pytest.fixture
def events_server(server: Servers) -> lab.Server:
    return server("--stagexec-timing", "events", "--stagexec-nvml", "0.5")


def test_events_without_a_device_are_null_with_a_reason_and_memory_is_read(events_server: lab.Server) -> None:
    first, second = run(events_server, 1), run(events_server, 2)
    assert (first["timing"], first["outcome"]) == ("events", "success")
    assert first["device_ns"] is None
    assert first["device_reason"] == ON_CPU
    assert {one["device_ns"] for one in first["visits"] + first["segments"]} == {None}
    assert len(first["memory_samples"]["rss_bytes"]) > 5
    assert set(first["memory_samples"]["allocated_bytes"]) == {None}
    assert set(first["memory"]) == {"rss_bytes"}
    assert sum(first["stages"].values()) == first["total_ns"]
    names = {one["name"]: one for one in first["diagnoses"]}
    assert names["attention"]["figures"]["calls"]
    assert set(names["vae_dtype"]["figures"]["dtypes"]) == {"float32"}
    assert {"one_time_cost", "per_run_cost"} & {one["name"] for one in second["diagnoses"]}
    if first["nvml"]["reason"] is not None:
        assert first["nvml"]["devices"] == {}
    assert json.loads(condition_of(events_server, first))["fields"]["timing_mode"] == "events"
    assert call(events_server, "audit", "--json") == []


def condition_of(server: lab.Server, shown: dict[str, Any]) -> str:
    assert server.launch.ledger is not None
    return (server.launch.ledger / "conditions" / f"{shown['condition_id']}.json").read_text()


def test_one_armed_run_of_a_baseline_server_is_profiled_and_no_other(server: Servers, tmp_path: Path) -> None:
    one = server()
    before = run(one, 1)
    assert call(one, "profile", "--next", "--json")["armed"] is True
    profiled = run(one, 2)
    after = run(one, 3)
    assert [each["timing"] for each in (before, profiled, after)] == ["baseline", "profile", "baseline"]
    assert before["condition_id"] != profiled["condition_id"]
    assert call(one, "profile", "--json")["armed"] is False

    (trace,) = [each for each in profiled["artifacts"] if each["media"] == "profile"]
    assert Path(trace["path"]).parent.name == profiled["run_id"]
    assert Path(trace["path"]).stat().st_size == trace["bytes"]
    assert profiled["outcome"] == "success"
    assert [each["name"] for each in profiled["marks"] if each["name"] == "profile_problem"] == []
    names = {each.get("name") for each in json.loads(Path(trace["path"]).read_text())["traceEvents"]}
    prefix = profiled["run_id"][:8]
    sampler = next(key for key, node in GRAPH.items() if node["class_type"] == "KSampler")
    assert f"{prefix}/sampling/{sampler}" in names
    assert any(str(each).startswith("aten::") for each in names)

    target = tmp_path / "timeline.json"
    call(one, "export", profiled["run_id"], "--perfetto", str(target))
    events = json.loads(target.read_text())["traceEvents"]
    assert_well_formed(events)
    matrix = [each for each in events if each["name"].startswith("aten::conv") and each["ph"] == "X"]
    segments = [each for each in profiled["segments"] if each["stage"] in ("sampling", "vae_decode")]
    begin = min(each["start_ns"] for each in segments) - profiled["accepted_mono_ns"]
    end = max(each["end_ns"] for each in segments) - profiled["accepted_mono_ns"]
    assert matrix
    assert all(begin / 1000 - 1000 <= each["ts"] <= end / 1000 + 1000 for each in matrix)
    warnings = call(one, "diff", before["run_id"], profiled["run_id"], "--json")["warnings"]
    assert any("timing modes differ" in each for each in warnings)
