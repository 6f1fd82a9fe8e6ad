"""Builds journals by hand, event by event, each with every field that format.py lists for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WALL0 = 1_760_000_000_000_000_000
"""2025-10-09T08:53:20Z, the wall side of every anchor pair here; the monotonic side is 0."""

MS = 1_000_000
S = 1_000_000_000


class FakeJournal:
    """The journal of one process. `now` is its monotonic clock: tests move it, nothing else does."""

    def __init__(self, host: str = "elsewhere", pid: int = 4242) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = 0
        self.host = host
        self.pid = pid

    def add(self, event_type: str, run: FakeRun | None = None, **fields: Any) -> dict[str, Any]:
        """Append an event at `now`; `fields` replace or add to what every event has."""
        event: dict[str, Any] = {
            "event_type": event_type,
            "run_id": run.run_id if run else None,
            "condition_id": run.condition_id if run else None,
            "stage_id": None,
            "ts_mono_ns": self.now,
            "source": "loop" if run else "process",
            **fields,
        }
        self.events.append(event)
        return event

    def head(self, **fields: Any) -> FakeJournal:
        """process_start, host_facts and seams."""
        anchor = {"ts_wall": WALL0, "pid": self.pid, "hostname": self.host}
        self.add("process_start", **{**START, **anchor, **fields})
        self.add("host_facts", **FACTS)
        self.add("seams", source="seam", seams=SEAMS)
        return self

    def heartbeat(self, *open_runs: FakeRun) -> None:
        """A sign of life that tells what is open in these runs."""
        names = ("stage", "part", "start_ns", "visit", "seam", "node_id", "node_class")
        rows = [{"run_id": r.run_id, **dict(zip(names, r.open, strict=True))} for r in open_runs if r.open]
        self.add("heartbeat", source="journal", open=rows, slept_ns=None)

    def end(self, reason: str = "exit") -> None:
        """The process ends in good order."""
        self.add("process_end", reason=reason, exception_type=None)

    def lines(self) -> list[bytes]:
        """The events as they lie in the file."""
        return [json.dumps(event).encode() + b"\n" for event in self.events]

    def write(self, ledger: Path, day: str = "2025-10-09") -> Path:
        """Write the journal into a ledger folder; its path."""
        path = ledger / "journal" / day / f"{self.host}-{self.pid}-{WALL0}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(self.lines()))
        return path


class FakeRun:
    """One run in a FakeJournal. Moving through stages advances the journal's clock."""

    def __init__(self, journal: FakeJournal, name: str, graph: Any = None, **fields: Any) -> None:
        """`graph`: {node id: (class, [ids it takes inputs from])}. The run is accepted at once."""
        self.journal = journal
        self.run_id = f"{name}-0000-4000-8000-000000000000"
        self.condition_id: str | None = None
        self.accepted_ns = journal.now
        self.open: list[Any] | None = ["queue_wait", None, journal.now, None, None, None, None]
        self.closed: list[list[Any]] = []
        self.written = 0
        self.visits: list[dict[str, Any]] = []
        graph = graph or {}
        nodes = list(graph)
        journal.add(
            "run_accepted",
            self,
            source="queue",
            ts_wall=WALL0 + journal.now,
            **{
                **ACCEPTED,
                "prompt_id": f"prompt-{name}",
                "selected_outputs": nodes[-1:],
                "nodes": nodes,
                "classes": [graph[n][0] for n in nodes],
                "links": [[nodes.index(i) for i in graph[n][1]] for n in nodes],
                "output_nodes": nodes[-1:],
                "number_of_nodes": len(nodes),
                **fields,
            },
        )

    def switch(
        self,
        stage: str,
        part: str | None = None,
        visit: int | None = None,
        seam: str | None = None,
        node: Any = None,
    ) -> FakeRun:
        """Close the open segment now and open another; `node` is (id, class)."""
        assert self.open is not None
        self.closed.append([*self.open[:3], self.journal.now, *self.open[3:5]])
        self.open = [stage, part, self.journal.now, visit, seam, *(node or (None, None))]
        return self

    def spend(self, ns: int) -> FakeRun:
        """Let time pass."""
        self.journal.now += ns
        return self

    def start(self, startup_class: str = "warm", cached: tuple[str, ...] = (), **fields: Any) -> FakeRun:
        """Execution begins; `fields` replace those of `run_started`."""
        self.switch("executor_prepare", "plan")
        told = {**STARTED, "startup_class": startup_class, **fields}
        self.journal.add("run_started", self, stage_id="executor_prepare", **told)
        self.journal.add("cached", self, nodes=list(cached))
        return self

    def visit(
        self, number: int, node: str, name: str, steps: Any, kind: str = "executed", **fields: Any
    ) -> FakeRun:
        """A whole visit: `steps` are (stage, ns) or (stage, ns, seam); then the loop goes on."""
        start = self.journal.now
        for stage, ns, *seam in steps:
            self.switch(stage, None, number, seam[0] if seam else None, (node, name)).spend(ns)
        self.switch("executor_overhead")
        row = {
            "visit": number,
            "node_id": node,
            "node_class": name,
            "kind": kind,
            "list_index": None,
            "calls": 1 if kind == "executed" else 0,
            "parent": None,
            "start_ns": start,
            "end_ns": self.journal.now,
            "stage": steps[0][0] if steps else "node_other",
            "origin": "table",
            "ui": False,
            "hint": None,
        }
        self.visits.append({**row, **fields})
        return self

    def flush(self) -> FakeRun:
        """Write what the journal's thread would write now."""
        names = ("stage", "part", "start_ns", "end_ns", "visit", "seam")
        columns = {name: [row[at] for row in self.closed] for at, name in enumerate(names)}
        self.journal.add("segments", self, **columns, open=self.open)
        if self.visits:
            self.journal.add("visits", self, **{k: [v[k] for v in self.visits] for k in self.visits[0]})
        self.written += len(self.closed)
        self.closed, self.visits = [], []
        return self

    def artifact(
        self, node: str, path: str = "/out/a.png", state: str = "verified", **fields: Any
    ) -> FakeRun:
        """What the verifier found."""
        ready = {"ready_mono_ns": self.journal.now}
        place = {"artifact": path, "node_id": node, "state": state}
        self.journal.add("artifact", self, **{**ARTIFACT, **ready, **place, **fields}, source="verifier")
        return self

    def execute(self, **fields: Any) -> FakeRun:
        """Execution ends; delivery_commit is open from here on."""
        self.switch("delivery_commit", "verify")
        at = {"stopped_ns": self.journal.now}
        self.journal.add("run_executed", self, **{**EXECUTED, **at, **fields})
        return self

    def close(self, outcome: str = "success", cause: str | None = None, **fields: Any) -> FakeRun:
        """The run is over: its last segments are written, then run_closed."""
        assert self.open is not None
        self.closed.append([*self.open[:3], self.journal.now, *self.open[3:5]])
        self.open = None
        self.flush()
        bounds = {
            "accepted_ns": self.accepted_ns,
            "finished_ns": self.journal.now,
            "segment_count": self.written,
        }
        told = {"outcome": outcome, "cause": cause, **bounds}
        self.journal.add("run_closed", self, **{**CLOSED, **told, **fields}, source="verifier")
        return self

    def spans(self, *rows: tuple[Any, ...]) -> FakeRun:
        """Intervals on other lanes, as (lane, stage, name, visit, start_ns, end_ns)."""
        names = ("lane", "stage", "name", "visit", "start_ns", "end_ns")
        columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
        self.journal.add("spans", self, **columns, detail=[None] * len(rows))
        return self

    def identify(self, constants: dict[str, str], **fields: Any) -> FakeRun:
        """Tell the digests of the nodes' constants: {node id: digest}."""
        digests = {"nodes": list(constants), "constants": list(constants.values())}
        told = {**digests, "links": ["l"] * len(constants), "is_changed": {}, "packs": {}, **fields}
        self.journal.add("identity", self, source="process", **told)
        return self

    def know_condition(self, condition_id: str, *missing: str) -> FakeRun:
        """The condition is known from now on."""
        self.condition_id = condition_id
        self.journal.add("condition", self, source="process", missing=list(missing))
        return self

    def columns(self, event_type: str, *rows: dict[str, Any], **fields: Any) -> FakeRun:
        """A columnar event such as `device`, given row by row; `fields` are those that are no columns."""
        names = list(rows[0]) if rows else []
        self.journal.add(event_type, self, **{n: [row[n] for row in rows] for n in names}, **fields)
        return self

    def grow(self, parent: str, graph: Any, results: tuple[str, ...] = ()) -> FakeRun:
        """`parent` expands into `graph`, given as in the constructor."""
        self.journal.add(
            "graph_growth",
            self,
            parent=parent,
            nodes=list(graph),
            classes=[graph[n][0] for n in graph],
            links=[graph[n][1] for n in graph],
            output_nodes=[],
            results=list(results),
        )
        return self


START: dict[str, Any] = {
    "format_version": 1,
    "pid": 4242,
    "hostname": "elsewhere",
    "stagexec_version": "0.1.0",
    "python": "3.11.9",
    "platform": "Linux x86_64",
    "host_path": "/opt/ComfyUI",
    "argv": ["--cpu"],
    "timing": "baseline",
    "executor_asked": None,
    "pid_started": None,
}
FACTS: dict[str, Any] = {
    "host_version": "0.30.0",
    "facts": {"async_nodes": True},
    "executor": "native",
    "executor_reason": "the host's loop is one that native has been checked against",
}
SEAMS: list[dict[str, Any]] = [
    {
        "seam": "core.load_models",
        "target": "comfy.model_management:load_models_gpu",
        "state": "installed",
        "reason": None,
    },
    {"seam": "core.gone", "target": "comfy.x:y", "state": "refused", "reason": "no such [argument]"},
]
ACCEPTED: dict[str, Any] = {
    "prompt_id": "prompt",
    "number": 1,
    "direct": False,
    "validate_ns": 1_500_000,
    "selected_outputs": [],
    "nodes": [],
    "classes": [],
    "links": [],
    "output_nodes": [],
    "seeds": [],
    "prompt_hash": "ab" * 32,
    "number_of_nodes": 0,
    "until": None,
    "left_out": [],
}
STARTED: dict[str, Any] = {
    "startup_class": "warm",
    "timing": "baseline",
    "device": None,
    "device_reason": "no device events in timing mode baseline",
    "unseen": [],
}
ARTIFACT: dict[str, Any] = {
    "artifact": "/out/a.png",
    "bytes": 1234,
    "sha256": "cd" * 32,
    "state": "verified",
    "reason": None,
    "media": "image",
    "frames": 1,
    "orphan": False,
    "cached": False,
    "ready_mono_ns": None,
    "first_bad": None,
    "via": "history",
}
EXECUTED: dict[str, Any] = {
    "host_status": "success",
    "executed": None,
    "blocked": [],
    "outputs": {},
    "cancel_ns": None,
    "stopped_ns": None,
    "memory": {"rss_bytes": 1_000_000},
}
CLOSED: dict[str, Any] = {
    "reason": None,
    "outcome": "success",
    "cause": None,
    "error": None,
    "segment_count": 0,
    "accepted_ns": 0,
    "finished_ns": 0,
    "cancel_ns": None,
    "stopped_ns": None,
    "held_ns": None,
}

TINY: dict[str, Any] = {
    "1": ("CheckpointLoaderSimple", []),
    "2": ("CLIPTextEncode", ["1"]),
    "3": ("KSampler", ["1", "2"]),
    "4": ("VAEDecode", ["3", "1"]),
    "5": ("SaveImage", ["4"]),
}
"""A text-to-image graph; node 5 is the selected output."""


def tiny_run(journal: FakeJournal, name: str, startup: str = "warm", load_ns: int = 20 * MS) -> FakeRun:
    """A whole successful run of TINY: 1 s of sampling, and `load_ns` of model loading inside it."""
    run = FakeRun(journal, name, TINY, seeds=[["3", "seed", 7]])
    run.spend(2 * MS).start(startup).spend(3 * MS)
    run.visit(
        1, "1", "CheckpointLoaderSimple", [("node_other", MS), ("model_load_residency", load_ns, "core.load")]
    )
    run.visit(2, "2", "CLIPTextEncode", [("conditioning", 50 * MS)])
    run.visit(3, "3", "KSampler", [("sampling", 400 * MS), ("sampling", 600 * MS, "core.sample")])
    run.visit(4, "4", "VAEDecode", [("vae_decode", 100 * MS, "core.decode")])
    run.visit(5, "5", "SaveImage", [("native_materialize", 30 * MS)], ui=True)
    run.flush().artifact("5")
    run.spend(4 * MS).execute(outputs={"5": 1}).spend(5 * MS)
    return run.close()


def cached_run(journal: FakeJournal, name: str) -> FakeRun:
    """TINY again with the same seed: everything comes from the cache."""
    run = FakeRun(journal, name, TINY, seeds=[["3", "seed", 7]])
    run.spend(MS).start(cached=tuple(TINY)).spend(2 * MS).artifact("5", cached=True)
    return run.execute(outputs={"5": 1}).spend(3 * MS).close()


def reseeded_run(journal: FakeJournal, name: str, sampling_ns: int = 980 * MS) -> FakeRun:
    """TINY with another seed: the sampler and what follows is done again."""
    run = FakeRun(journal, name, TINY, seeds=[["3", "seed", 8]])
    run.spend(MS).start(cached=("1", "2")).spend(2 * MS)
    run.visit(1, "3", "KSampler", [("model_load_residency", 2 * MS, "core.load"), ("sampling", sampling_ns)])
    run.visit(2, "4", "VAEDecode", [("vae_decode", 100 * MS)])
    run.visit(3, "5", "SaveImage", [("native_materialize", 30 * MS)], ui=True)
    return run.artifact("5").execute(outputs={"5": 1}).spend(5 * MS).close()
