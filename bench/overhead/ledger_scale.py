"""Synthetic ledgers of any size, and how long the report verbs take on them, printed.

    python bench/overhead/ledger_scale.py FOLDER [--runs 1000000] [--processes 8]

FOLDER/ledger is made unless it is there. Each verb is timed cold (no index) and then warm, as a command
of its own, start of Python included. A bare DuckDB scan of the same files is timed beside them.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

S = 1_000_000_000
MS = 1_000_000
START_WALL_NS = 1_760_000_000_000_000_000
GRAPH = {
    "4": ("CheckpointLoaderSimple", []),
    "5": ("EmptyLatentImage", []),
    "6": ("CLIPTextEncode", ["4"]),
    "7": ("CLIPTextEncode", ["4"]),
    "3": ("KSampler", ["4", "5", "6", "7"]),
    "8": ("VAEDecode", ["3", "4"]),
    "9": ("SaveImage", ["8"]),
}
WORK = ("node_other", "node_other", "conditioning", "conditioning", "sampling", "vae_decode")
WORK += ("native_materialize",)
FAILURES = (
    ("failed", "oom", "3", "sampling"),
    ("failed", "node_exception", "8", "vae_decode"),
    ("cancelled", "user_cancel", "3", "sampling"),
)
FAIL_SHARE = 0.02


def line(event: dict[str, Any]) -> bytes:
    """One event as the journal's writer writes it: no spaces, the type first."""
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


class Maker:
    """The journal of one process that runs one prompt after another, from a seed."""

    def __init__(self, process: int, runs: int) -> None:
        self.random = random.Random(process)
        self.process = process
        self.runs = runs
        self.now = 0
        self.wall = START_WALL_NS + process * 3600 * S
        self.run_id = ""
        self.condition = f"{process % 4:064x}"

    def lines(self) -> Iterator[bytes]:
        """The whole file."""
        yield from self._head()
        for number in range(self.runs):
            self.run_id = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
            yield from self._run(number)
        yield self._event("process_end", None, source="process", reason="exit")

    def _event(self, event_type: str, stage_id: str | None, **fields: Any) -> bytes:
        run = self.run_id or None
        if event_type == "process_end":
            run = None
        source = fields.pop("source", "loop")
        common = {"condition_id": self.condition if run else None, "stage_id": stage_id}
        base = {"event_type": event_type, "run_id": run, **common, "ts_mono_ns": self.now, "source": source}
        return line({**base, **fields})

    def _head(self) -> Iterator[bytes]:
        start = {
            "format_version": 1, "pid": 1000 + self.process, "hostname": f"machine{self.process % 3}",
            "stagexec_version": "0.1.0", "python": "3.11.9", "platform": "Linux x86_64",
            "host_path": "/opt/ComfyUI", "argv": [], "timing": "baseline", "executor_asked": None,
        }  # fmt: skip
        yield self._event("process_start", None, source="process", ts_wall=self.wall, **start)
        facts = {"host_version": "0.30.0", "facts": {}, "executor": "native", "executor_reason": "synthetic"}
        yield self._event("host_facts", None, source="process", **facts)

    def _run(self, number: int) -> Iterator[bytes]:
        nodes = list(GRAPH)
        bad = self.random.choice(FAILURES) if self.random.random() < FAIL_SHARE else None
        accepted = self.now
        yield self._event(
            "run_accepted", "queue_wait", source="queue", ts_wall=self.wall + self.now,
            prompt_id=str(uuid.UUID(int=self.random.getrandbits(128), version=4)), direct=False,
            number=number, validate_ns=self.random.randrange(MS), selected_outputs=["9"], nodes=nodes,
            classes=[GRAPH[n][0] for n in nodes],
            links=[[nodes.index(i) for i in GRAPH[n][1]] for n in nodes], output_nodes=["9"],
            seeds=[["3", "seed", self.random.getrandbits(50)]], prompt_hash="ab" * 32,
            number_of_nodes=len(nodes),
        )  # fmt: skip
        segments, visits = self._work(bad)
        startup = "warm" if number else "process_cold"
        yield self._event("run_started", "executor_prepare", startup_class=startup)
        yield self._event("cached", "executor_prepare", nodes=[])
        columns = ("stage", "part", "start_ns", "end_ns", "visit", "seam")
        rows = {name: [row[at] for row in segments] for at, name in enumerate(columns)}
        yield self._event("segments", None, **rows, open=None)
        yield self._event("visits", None, **{name: [v[name] for v in visits] for name in visits[0]})
        yield from self._end(bad, accepted, number, len(segments), visits)

    def _end(
        self, bad: Any, accepted: int, number: int, count: int, visits: list[dict[str, Any]]
    ) -> Iterator[bytes]:
        error = None
        cancel = self.now - 30 * MS if bad and bad[0] == "cancelled" else None
        if bad:
            place = {"stage": bad[3], "visit": len(visits), "node_id": bad[2], "node_class": GRAPH[bad[2]][0]}
            error = {**place, "list_index": None, "exception_type": None, "message": None}
        stopped = {"cancel_ns": cancel, "stopped_ns": self.now - 9 * MS}
        executed = {
            "host_status": "error" if bad else "success",
            "executed": {**error, "cause": bad[1]} if error else None, "blocked": [],
            "outputs": {} if bad else {"9": 1}, "memory": {"rss_bytes": 4_000_000_000},
        }  # fmt: skip
        yield self._event("run_executed", "delivery_commit", **executed, **stopped)
        if not bad:
            yield self._event(
                "artifact", "delivery_commit", source="verifier", node_id="9", bytes=1_400_000,
                artifact=f"/out/ComfyUI_{number:07d}_.png", sha256="cd" * 32, state="verified", reason=None,
                media="image", orphan=False, cached=False, ready_mono_ns=self.now, first_bad=None,
            )  # fmt: skip
        outcome, cause = (bad[0], bad[1]) if bad else ("success", None)
        bounds = {"segment_count": count, "accepted_ns": accepted, "finished_ns": self.now}
        told = {"outcome": outcome, "cause": cause, "error": error}
        yield self._event("run_closed", None, source="verifier", **told, **bounds, **stopped)

    def _work(self, bad: Any) -> tuple[list[list[Any]], list[dict[str, Any]]]:
        """20 segments of a run that ends well, and its visits; one that fails ends at its node."""
        segments: list[list[Any]] = []
        visits: list[dict[str, Any]] = []

        def spend(stage: str, part: str | None, most: int, visit: int | None = None) -> None:
            start, self.now = self.now, self.now + self.random.randrange(1000, most)
            segments.append([stage, part, start, self.now, visit, None])

        spend("queue_wait", None, 2 * S)
        spend("executor_prepare", "plan", 3 * MS)
        for at, (node, (name, _)) in enumerate(GRAPH.items()):
            visit, start = at + 1, self.now
            if node == "3":
                spend("model_load_residency", "upload", S, visit)
            spend(WORK[at], None, 20 * S if node == "3" else S, visit)
            visits.append(
                {
                    "visit": visit,
                    "node_id": node,
                    "node_class": name,
                    "kind": "failed" if bad and bad[2] == node else "executed",
                    "list_index": None,
                    "calls": 1,
                    "parent": None,
                    "start_ns": start,
                    "end_ns": self.now,
                    "stage": WORK[at],
                    "origin": "table",
                    "ui": node == "9",
                }
            )
            spend("executor_overhead", None, MS)
            if bad and bad[2] == node:
                break
        spend("delivery_commit", "verify", 10 * MS)
        while not bad and len(segments) < 20:
            spend("delivery_commit", "verify", 10 * MS)
        return segments, visits


def make(ledger: pathlib.Path, runs: int, processes: int) -> None:
    """Write `processes` journals with `runs` runs in all. Existing files are left as they are."""
    for process in range(processes):
        share = runs // processes + (process < runs % processes)
        day = time.strftime("%Y-%m-%d", time.gmtime((START_WALL_NS + process * 3600 * S) / S))
        name = f"machine{process % 3}-{1000 + process}-{START_WALL_NS + process * 3600 * S}.jsonl"
        path = ledger / "journal" / day / name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".making")
        with scratch.open("wb", buffering=1 << 20) as out:
            out.writelines(Maker(process, share).lines())
        scratch.replace(path)


def timed(words: list[str]) -> tuple[float, int]:
    """Seconds that a stagexec verb takes, and bytes it printed."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "stagexec", *words], capture_output=True, check=False)
    took = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    return took, len(done.stdout)


def scan(ledger: pathlib.Path) -> float:
    """Seconds of a bare DuckDB scan of the journal's lines as JSON, with the columns of a segment."""
    import duckdb

    columns = "{event_type: 'VARCHAR', run_id: 'VARCHAR', stage: 'VARCHAR[]', start_ns: 'BIGINT[]', "
    columns += "end_ns: 'BIGINT[]'}"
    begin = time.perf_counter()
    duckdb.connect().execute(
        f"SELECT count(*), sum(len(stage)) FROM read_json($files, columns={columns}, "
        "format='newline_delimited', ignore_errors=true)",
        {"files": str(ledger / "journal" / "*" / "*.jsonl")},
    ).fetchall()
    return time.perf_counter() - begin


def main() -> None:
    """Make, time, print."""
    own = argparse.ArgumentParser(description=__doc__)
    own.add_argument("folder", type=pathlib.Path)
    own.add_argument("--runs", type=int, default=1_000_000)
    own.add_argument("--processes", type=int, default=8)
    asked = own.parse_args()
    ledger = asked.folder / "ledger"
    make(ledger, asked.runs, asked.processes)
    files = list(ledger.glob("journal/*/*.jsonl"))
    print(f"{asked.runs} runs, {len(files)} journals, {sum(f.stat().st_size for f in files)} bytes")
    print(f"bare DuckDB scan: {scan(ledger):.1f} s")
    for words in (["failures", "--json"], ["runs"], ["runs", "--json", "--limit", "1000"]):
        for index in ledger.glob("index.duckdb*"):
            index.unlink()
        cold, size = timed([*words, "--ledger", str(ledger)])
        warm, _ = timed([*words, "--ledger", str(ledger)])
        print(f"stagexec {' '.join(words)}: cold {cold:.1f} s, warm {warm:.2f} s, {size} bytes printed")


if __name__ == "__main__":
    main()
