"""A scripted lab: servers that answer at once with made-up runs, and misbehave where the script says so."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stagexec.bench import units
from stagexec.bench.plan import Arm
from stagexec.bench.room import Room
from stagexec.bench.runner import ArmFailed, Observed, SessionLost

MS = 1_000_000
STAGES = {"queue_wait": 1, "conditioning": 10, "sampling": 60, "vae_decode": 20, "delivery_commit": 9}
"""Milliseconds of a fake run by stage: 100 in all."""

PROMPT: dict[str, Any] = {
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a"}},
    "3": {"class_type": "KSampler", "inputs": {"seed": 1, "model": ["1", 0]}},
    "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0]}},
    "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0]}},
}
LOADER = {"1"}

Speed = Callable[[str], float]
Script = Mapping[tuple[str, int], str]
"""(arm, number of its run counted from 0, over all its servers) -> die, hang, refuse, fail, cache, read or
deaf (to the stop point)."""


class FakeLab:
    """`speed(stage)` per arm multiplies a stage's time; `noise` is the deviation of its logarithm."""

    def __init__(
        self,
        speed: Mapping[str, Mapping[str, float]] | None = None,
        noise: float = 0.01,
        script: Script | None = None,
        missing: Mapping[str, str] | None = None,
        fails_to_open: Mapping[str, str] | None = None,
        image: Callable[[str, int], Path] | None = None,
        seed: int = 0,
        fits: bool = True,
        others: Callable[[str, int], float] | None = None,
    ) -> None:
        self.speed, self.noise = speed or {}, noise
        self.script, self.missing = script or {}, missing or {}
        self.fails_to_open, self.image = fails_to_open or {}, image
        self.draw = random.Random(seed)
        self.fits, self.others = fits, others
        self.slower: Callable[[str, int], float] = lambda arm, number: 1.0
        self.opened: list[tuple[str, tuple[str, ...]]] = []
        self.alive = 0
        self.most_alive = 0
        self.asked: list[tuple[str, int, str]] = []
        """(arm, seed, until) of every run, in order."""
        self.count: dict[str, int] = {}
        self.page_caches: list[str] = []
        self.interrupt_after: int | None = None

    def why_not(self, arm: Arm, args: Sequence[str]) -> str | None:
        return self.missing.get(arm.name)

    def open(
        self, arm: Arm, args: Sequence[str], cold: bool, page_cache: str
    ) -> tuple[FakeSession, dict[str, Any]]:
        if arm.name in self.fails_to_open:
            raise ArmFailed(self.fails_to_open[arm.name])
        self.opened.append((arm.name, tuple(args)))
        self.page_caches.append(page_cache)
        self.alive += 1
        self.most_alive = max(self.alive, self.most_alive)
        return FakeSession(self, arm.name, cold, "--cache-none" in args), {"pid": len(self.opened)}


class FakeSession:
    """One server: remembers the last seeds, as the host's cache does."""

    def __init__(self, lab: FakeLab, arm: str, cold: bool, cache_none: bool) -> None:
        self.lab, self.arm = lab, arm
        self.fresh = cold
        self.loaded = False
        self.cache_none = cache_none
        self.known: set[str] = set()
        self.waiting: list[tuple[str, dict[str, Any], str, str]] = []
        self.closed = False

    def submit(self, prompt: dict[str, Any], until: str) -> str:
        assert not self.closed
        number = self.lab.count.get(self.arm, 0)
        self.lab.count[self.arm] = number + 1
        fault = self.lab.script.get((self.arm, number), "")
        if fault == "refuse":
            raise ArmFailed("the server refused the workflow: node 3 KSampler: Value not in list")
        prompt_id = f"{self.arm}-{number}"
        self.waiting.append((prompt_id, prompt, fault, until))
        self.lab.asked.append((self.arm, prompt["3"]["inputs"]["seed"], until))
        return prompt_id

    def result(self, prompt_id: str, seconds: float) -> Observed:
        assert not self.closed
        if self.lab.interrupt_after is not None:
            self.lab.interrupt_after -= 1
            if self.lab.interrupt_after < 0:
                raise KeyboardInterrupt
        _, prompt, fault, until = next(one for one in self.waiting if one[0] == prompt_id)
        if fault == "hang":
            raise SessionLost(f"no end of the run in {seconds:.0f} s")
        run = self._run(prompt_id, prompt, fault)
        run["until"] = None if until == "delivery" or fault == "deaf" else until
        if fault == "die":
            run["outcome"], run["cause"] = "lost", "process_died"
            raise SessionLost("the server ended with code 3", Observed(run))
        seed = prompt["3"]["inputs"]["seed"]
        files = [self.lab.image(self.arm, seed)] if self.lab.image else []
        number = int(prompt_id.rpartition("-")[2])
        around = {} if self.lab.others is None else {"others_cpu": self.lab.others(self.arm, number)}
        return Observed(run, {"attention_backend": self.arm, "cache_mode": "classic"}, files, around)

    def settle(self) -> None:
        self.known.clear()
        self.loaded = False

    def room(self, more: int) -> Room:
        return Room(self.lab.fits, f"{more} more do{'' if self.lab.fits else ' not'} fit")

    def log(self) -> str:
        return f"Using {self.arm} attention\n"

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.lab.alive -= 1

    def _run(self, prompt_id: str, prompt: dict[str, Any], fault: str) -> dict[str, Any]:
        key = str(prompt)
        hit = (key in self.known or fault == "cache") and not self.cache_none
        self.known.add(key)
        reads = not self.loaded or fault == "read"
        slow = prompt["3"]["inputs"].get("slow", 1.0)  # for arms that differ in the workflow
        speed = {"sampling": slow, **self.lab.speed.get(self.arm, {})}
        whole = self.lab.draw.gauss(0, self.lab.noise)
        whole += math.log(self.lab.slower(self.arm, int(prompt_id.rpartition("-")[2])))
        stages = {
            name: round(
                ms * MS * speed.get(name, 1.0) * 2.718281828 ** (whole + self.lab.draw.gauss(0, 1e-3))
            )
            for name, ms in STAGES.items()
            if not hit or name in ("queue_wait", "delivery_commit")
        }
        if reads:
            stages["model_load_residency"] = 200 * MS
        cached = set(prompt) if hit else set() if self.cache_none or not self.loaded else LOADER
        warm = "cache_hit_rerun" if hit else "model_cold_process_warm" if reads else "model_warm_recompute"
        started = "process_cold" if self.fresh else warm
        self.fresh, self.loaded = False, True
        failed = fault == "fail"
        return detail(prompt_id, prompt, stages, cached, started, failed)


def detail(
    prompt_id: str,
    prompt: dict[str, Any],
    stages: dict[str, int],
    cached: set[str],
    startup_class: str = "model_warm_recompute",
    failed: bool = False,
) -> dict[str, Any]:
    """An object of `show`, as far as the bench reads it."""
    executed = [node for node in prompt if node not in cached]
    segments, at = [], 0
    for stage, length in stages.items():
        part = "read" if stage == "model_load_residency" else None
        segments.append({"stage": stage, "part": part, "start_ns": at, "end_ns": at + length})
        at += length
    return {
        "run_id": f"run-{prompt_id}",
        "prompt_id": prompt_id,
        "condition_id": "c0ffee",
        "outcome": "failed" if failed else "success",
        "cause": "oom" if failed else None,
        "error_stage": "sampling" if failed else None,
        "error_node": "3" if failed else None,
        "startup_class": startup_class,
        "executor": "native",
        "timing": "baseline",
        "accepted_wall": "2024-06-07T00:00:00.000000Z",
        "total_ns": sum(stages.values()),
        "device_ns": None,
        "stages": stages,
        "wasted_ns": sum(stages.values()) if failed else 0,
        "wasted_kind": "estimated",
        "host_version": "0.0.0",
        "executed_nodes": executed,
        "cached_nodes": sorted(cached),
        "cached_in_run": [],
        "expected_nodes": list(prompt),
        "segments": segments,
        "visits": [
            {"class_type": prompt[n]["class_type"], "kind": "executed" if n in executed else "cached"}
            for n in prompt
        ],
        "memory": {"rss_bytes": 1_000_000},
        "marks": [],
        "artifacts": [],
    }


assert units.seed_inputs(PROMPT) == [("3", "seed")]
