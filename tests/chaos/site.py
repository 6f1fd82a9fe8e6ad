"""A real ComfyUI under test: its lives follow each other on one ledger; every prompt sent is remembered."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stagexec.bench import checkpoint as checkpoints
from stagexec.bench import lab, setup
from stagexec.bench.client import Refused, Unreachable, http_json
from stagexec.reading import store
from tests.chaos import shim, witness
from tests.chaos.played import Posted
from tests.host import graphs

HERE = Path(__file__).parent
PACKS = (HERE.parent / "host" / "nodes_pack", HERE / "pack")
CLOSED_S = 40.0
"""A prompt that stands in no history so long after its time is stuck."""

FILED_S = 30.0
"""A run whose prompt stands in history is closed so soon: its check is bounded."""


class Site:
    """Folders, ledger and rules of one server, whatever process serves it now."""

    def __init__(self, base: Path, library: Path | shim.Unavailable, host: Path | None = None) -> None:
        base.mkdir(parents=True)
        self.base = base
        self.ledger = base / "ledger"
        self.posted: list[Posted] = []
        self.allowed: frozenset[str] = frozenset()
        self.sheet = witness.sheet(base / "witness")
        self.layer = None if isinstance(library, shim.Unavailable) else shim.Shim(library, base / "control")
        env = {
            "CHAOS_WITNESS": str(self.sheet),
            "CHAOS_WITNESS_CODE": str(HERE / "witness.py"),
            "CHAOS_LEDGER": str(self.ledger),
            **(self.layer.environment if self.layer else {}),
        }
        self.launch = lab.Launch(
            comfyui=host or setup.find_host(None, fetch=False), base=base, ledger=self.ledger, env=env,
            custom_nodes=PACKS, checkpoints=checkpoints.checkpoint_path().parent,
        )  # fmt: skip
        self.server = lab.Server(self.launch)
        self._label = 0
        self.earlier: frozenset[str] = frozenset()
        """Prompts of the lives before this one: nothing is left that could write of them again."""

    @property
    def output(self) -> Path:
        """Where the server saves."""
        return self.server.output

    def start(self) -> None:
        """Another life, ready to take prompts. Raises lab.ServerDied."""
        if self.layer is not None:
            self.layer.heal()
        witness.sheet(self.sheet)
        self.earlier = frozenset(one.prompt_id for one in self.posted)
        self.server = lab.Server(self.launch)
        self.server.start().wait_ready()

    def lives(self) -> bool:
        """Whether the process is there."""
        return self.server.process is not None and self.server.process.poll() is None

    def label(self) -> int:
        """A number that no prompt had yet: nothing is cached."""
        self._label += 1
        return self._label

    def post(self, prompt: graphs.Prompt, kind: str, seconds: float = 30.0) -> Posted:
        """Send a prompt; `answered_ns` is set when a 200 came."""
        one = Posted(str(uuid.uuid4()), kind)
        self.posted.append(one)
        body = {"prompt": prompt, "prompt_id": one.prompt_id, "client_id": "chaos"}
        try:
            http_json(self.server.url, "POST", "/prompt", body, seconds)
        except (Unreachable, Refused) as problem:
            one.refused = str(problem)[:200]
        else:
            one.answered_ns = time.perf_counter_ns()
        return one

    def in_history(self, one: Posted) -> bool:
        """Whether the host has filed the prompt."""
        try:
            entry = http_json(self.server.url, "GET", f"/history/{one.prompt_id}", seconds=10.0)
        except (Unreachable, Refused):
            return False
        return bool(entry)

    def wait_closed(self, ones: list[Posted], seconds: float = CLOSED_S) -> list[str]:
        """Wait until host and ledger have filed these prompts; what never came, in words."""
        left = [one for one in ones if one.answered_ns is not None and one.closed_ns is None]
        filed = self.wait(lambda: all(map(self.in_history, left)) or not self.lives(), seconds)
        if not filed or not self.lives():
            return [
                f"{one.kind} stands in no history"
                for one in left
                if self.lives() and not self.in_history(one)
            ]
        open_ = lambda: self.open_of(left)  # noqa: E731
        self.wait(lambda: not open_(), FILED_S)
        troubles = [f"{one.kind} was filed by the host, and its run was never closed" for one in open_()]
        for one in left:
            one.closed_ns = time.perf_counter_ns()
        return troubles

    def open_of(self, ones: list[Posted]) -> list[Posted]:
        """Those whose runs are told as under way."""
        outcome: dict[Any, Any] = {run.prompt_id: run.outcome for run in store.load(self.ledger).runs}
        return [one for one in ones if one.prompt_id in outcome and outcome[one.prompt_id] is None]

    @staticmethod
    def wait(true: Callable[[], bool], seconds: float, pause_s: float = 0.05) -> bool:
        """Whether it came true in time."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end:
                return False
            time.sleep(pause_s)
        return True

    def probe(self) -> list[str]:
        """The next prompt runs: what is wrong with it, in words."""
        one = self.post(self.small(), "the next prompt")
        if one.answered_ns is None:
            return [f"the next prompt was refused: {one.refused}"]
        troubles = self.wait_closed([one])
        if troubles and self.told_dead():
            return []
        return troubles

    def told_dead(self) -> bool:
        """Whether the ledger says that the worker is gone."""
        return any(run.cause == "worker_died" for run in store.load(self.ledger).runs)

    def small(self) -> graphs.Prompt:
        """A prompt of three nodes that saves a picture."""
        return graphs.invert_save(color=self.label())

    def answered_by_http(self) -> set[str]:
        """The prompts that `/stagexec/runs` of the living server tells of."""
        rows = http_json(self.server.url, "GET", "/stagexec/runs?limit=1000", seconds=30.0)
        return {str(row["prompt_id"]) for row in rows}
