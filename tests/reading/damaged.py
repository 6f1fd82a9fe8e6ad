"""A ledger with a run of every kind, for tests that damage it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from tests.reading.fake_journal import (
    MS,
    TINY,
    WALL0,
    FakeJournal,
    FakeRun,
    S,
    cached_run,
    reseeded_run,
    tiny_run,
)

NOW = WALL0 + 30 * 24 * 3600 * S
CONDITION = "ab" * 32

Event = dict[str, Any]


def whole(pid: int = 4242) -> FakeJournal:
    """Every event and most fields, in runs that ended in every way, one of them never."""
    journal = FakeJournal(pid=pid).head(format_version=2)
    name = f"{pid}"[:2]
    tiny_run(journal, f"{name}aaaaaa", "process_cold").identify({"1": "d", "3": "e"}).know_condition(
        CONDITION
    )
    cached_run(journal, f"{name}bbbbbb").know_condition(CONDITION)
    reseeded_run(journal, f"{name}cccccc")
    bad = FakeRun(journal, f"{name}dddddd", TINY).spend(MS).start()
    bad.visit(1, "3", "KSampler", [("sampling", 7 * MS)], kind="failed", list_index=2).flush()
    error = {"stage": "sampling", "visit": 1, "node_id": "3", "node_class": "KSampler", "message": "no"}
    bad.execute(host_status="error", executed={**error, "cause": "oom"}).close("failed", "oom", error=error)
    rich(journal, f"{name}eeeeee")
    left = FakeRun(journal, f"{name}ffffff", TINY).spend(MS).start().spend(2 * MS)
    left.switch("sampling", "step", 1, "core.sample", ("3", "KSampler")).flush().spend(400 * MS)
    journal.add("heartbeat", **beat(left), ts_wall=WALL0 + journal.now, slept_ns=5)
    journal.add("lost_events", count=0, reason=None)
    return journal


def beat(run: FakeRun) -> Event:
    """The fields of a heartbeat that sees `run` at work."""
    names = ("stage", "part", "start_ns", "visit", "seam", "node_id", "node_class")
    assert run.open is not None
    return {"open": [{"run_id": run.run_id, **dict(zip(names, run.open, strict=True))}], "source": "journal"}


def rich(journal: FakeJournal, name: str) -> None:
    """A cancelled run with growth, spans, device times, memory, NVML and every mark that answers read."""
    journal.add("nvml_facts", period_ns=MS, reason=None, devices=[{"uuid": "GPU-1", "name": "card"}])
    run = FakeRun(journal, name, TINY).spend(MS).start(device="cuda", device_reason=None)
    at = journal.now
    run.visit(1, "3", "KSampler", [("sampling", 9 * MS)])
    run.grow("3", {"3.0.1": ("Grown", ["1"])}, ("3.0.1",))
    run.visit(2, "3.0.1", "Grown", [("vae_decode", 3 * MS)], parent="3")
    run.flush().spans(("task:3", "sampling", "s", 1, at, at + MS), ("child:ffmpeg", None, "t", None, at, at))
    run.columns(
        "device", {"start_ns": at, "device": 0, "stream": 7, "device_ns": 8 * MS, "reason": None}, fault=None
    )
    place = {"start_ns": at, "device": 0, "stream": 9}
    run.columns("device_spans", {**place, "offset_ns": 1, "length_ns": 2, "copies": 3})
    sizes = dict.fromkeys(("allocated_bytes", "reserved_bytes", "dynamic_bytes", "rss_bytes"), 10**9)
    run.columns("memory", {"at_ns": at, "device": 0, **sizes}, {"at_ns": at + 1, "device": 0, **sizes})
    figures = ("used_bytes", "process_bytes", "power_mw", "energy_mj", "temperature_c")
    for _ in range(2):
        journal.add(
            "nvml_sample", uuid="GPU-1", **dict.fromkeys(figures, 3), sm_clock_mhz=1, memory_clock_mhz=1
        )
    model = {"class": "Model", "id": 5, "bytes": 10**9, "resident": False, "dtype": "float16"}
    for mark, detail in (
        ("model_load", {"models": [model, model], "count": 2, "resident": 0}),
        ("attention", {"calls": {"attention_sage": 3}, "configured": "sage", "asked": "attention_quad"}),
        ("compiled", {"unique_graphs": 2}),
        ("cache_defeated", {"why": "it is new each time"}),
        ("tiled_retry", {"inside": "vae_decode"}),
        ("cancel_requested", {}),
        ("child_failed", {"program": "ffmpeg", "exit_code": 1}),
    ):
        journal.add("mark", run, name=mark, detail=detail, stage_id="vae_decode", visit=1, node_id="3")
    run.artifact("3", state="nonfinite", first_bad="3")
    blocked = [{"visit": 2, "node_id": "4", "node_class": "X", "message": "stop"}]
    run.execute(cancel_ns=journal.now - MS, blocked=blocked, outputs={"5": 1}).spend(MS)
    run.close("cancelled", "user_cancel", cancel_ns=journal.now - 2 * MS)


def lines_of(events: list[Event]) -> list[bytes]:
    """As the real writer lays them out."""
    return [json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in events]


def put(ledger: Path, lines: list[bytes], pid: int = 4242) -> Path:
    """Write a journal into a ledger; its path."""
    path = ledger / "journal" / "2025-10-09" / f"elsewhere-{pid}-1.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(lines))
    return path


def manifest(ledger: Path) -> None:
    """The manifest of the condition that the runs name."""
    folder = ledger / "conditions"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{CONDITION}.json").write_text('{"fields":{"fps":null},"reasons":{"fps":"no video"}}')


ODD: dict[str, bytes] = {
    "beyond 63 bits": b"%d" % 2**63,
    "beyond 64 bits": b"%d" % 2**70,
    "far below": b"-%d" % 2**90,
    "thousands of digits": b"9" * 5000,
    "infinite": b"1e400",
    "a fraction": b"0.5",
    "text": b'"x"',
    "null": b"null",
    "a list": b"[[1]]",
    "an object": b'{"a":1}',
    "truth": b"true",
    "half a character": b'"\\ud800"',
    "no UTF-8": b'"\xff\xfe"',
    "a NUL": b'"\\u0000"',
    "nested": b"[" * 500 + b"]" * 500,
    "negative": b"-7",
}
"""Values that stand where others belong, as JSON."""


def with_value(event: Event, field: str, value: bytes, inside: bool = False) -> bytes:
    """The line of an event with `value` in a field, or (`inside`) as the first item of its list."""
    marker = "\u0001here\u0001"
    changed = copy.deepcopy(event)
    if inside and isinstance(changed[field], list) and changed[field]:
        changed[field][0] = marker
    else:
        changed[field] = marker
    line = json.dumps(changed, separators=(",", ":")).encode() + b"\n"
    return line.replace(json.dumps(marker).encode(), value)
