"""Sends prompts to a server and hands back what the client saw beside what the ledger says of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stagexec.bench import lab
from stagexec.bench.client import Client, Message
from stagexec.reading import audit, rows, store
from stagexec.reading.runs import Run

MS = 1_000_000
CLOSED_SECONDS = 30.0


@dataclass
class Seen:
    """One prompt: what the client saw of it, and `ledger`, the object that `show --json` prints."""

    prompt_id: str
    ledger: dict[str, Any]
    messages: list[Message] = field(default_factory=list)
    history: dict[str, Any] | None = None

    @property
    def ended(self) -> tuple[str | None, str | None]:
        """(outcome, cause)."""
        return self.ledger["outcome"], self.ledger["cause"]

    @property
    def place(self) -> tuple[str | None, str | None, int | None]:
        """(node id, class, list index) of the error."""
        error = self.ledger["error"]
        return error["node_id"], error["node_class"], error["list_index"]

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """The data of the messages of one type, in order."""
        return [message["data"] for message in self.messages if message["type"] == kind]

    def visits_of(self, node_id: str) -> list[dict[str, Any]]:
        """The visits of one node."""
        return [visit for visit in self.ledger["visits"] if visit["node_id"] == node_id]

    def kinds(self) -> list[tuple[str, str]]:
        """(node id, kind) of each visit, in order."""
        return [(visit["node_id"], visit["kind"]) for visit in self.ledger["visits"]]

    def marks(self, name: str) -> list[dict[str, Any]]:
        """The marks of one name."""
        return [mark for mark in self.ledger["marks"] if mark["name"] == name]

    def artifacts(self, node_id: str | None) -> list[dict[str, Any]]:
        """The files of one node; those of None are the orphans."""
        return [one for one in self.ledger["artifacts"] if one["node_id"] == node_id]

    def stage_ms(self, stage: str) -> float:
        """Milliseconds in a stage."""
        return float(self.ledger["stages"].get(stage, 0)) / MS


class Witness:
    """One server with a connected client, and the reader of its ledger."""

    def __init__(self, server: lab.Server) -> None:
        self.server = server
        self.client: Client = server.client()
        self.folder = ledger_of(server)

    def close(self) -> None:
        """End the connection."""
        self.client.close()

    def run(self, prompt: Mapping[str, Any], **submit: Any) -> Seen:
        """Submit, wait for `executing {node: null}`, and for the ledger to close the run."""
        return self.wait(self.client.submit(prompt, **submit))

    def wait(self, prompt_id: str) -> Seen:
        """The end of a submitted prompt."""
        messages = self.client.wait(prompt_id)
        seen = self.read(prompt_id)
        seen.messages = messages
        seen.history = self.client.history(prompt_id)
        return seen

    def read(self, prompt_id: str) -> Seen:
        """What the ledger says once the run is closed; checks what must hold of every run."""
        return Seen(prompt_id, sound(self.folder, closed_run(self.folder, prompt_id)))


def ledger_of(server: lab.Server) -> Path:
    """The ledger's folder of a server that was given one."""
    folder = server.launch.ledger
    assert folder is not None
    return folder


def closed_run(folder: Path, prompt_id: str) -> Run:
    """The run of a prompt, once it is closed."""
    end = time.monotonic() + CLOSED_SECONDS
    while True:
        found = [run for run in store.load(folder).runs if run.prompt_id == prompt_id]
        if found and found[-1].outcome is not None:
            return found[-1]
        assert time.monotonic() < end, f"the ledger has not closed {prompt_id}"
        time.sleep(0.02)


def sound(folder: Path, run: Run) -> dict[str, Any]:
    """`show` of a run, after the checks that hold for every run, whatever became of it."""
    shown = rows.detail(run)
    segments = shown["segments"]
    assert sum(one["end_ns"] - one["start_ns"] for one in segments) == shown["total_ns"]
    assert sum(shown["stages"].values()) == shown["total_ns"]
    assert shown["finished_mono_ns"] - shown["accepted_mono_ns"] == shown["total_ns"]
    edges = [shown["accepted_mono_ns"], *(one["end_ns"] for one in segments)]
    assert [one["start_ns"] for one in segments] == edges[:-1]
    assert shown["faults"] == []
    assert errors(folder, run.run_id) == []
    return shown


def errors(folder: Path, run_id: str | None = None) -> list[str]:
    """What `audit` calls an error: of one run and of the journal as a whole, or of everything."""
    found = [one for one in audit.audit(folder) if one.severity == "error"]
    if run_id is not None:
        found = [one for one in found if one.run_id in (None, run_id)]
    return [f"{one.kind}: {one.what}" for one in found]


def command(*words: str | Path, timeout: float = 120.0, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """`stagexec …` in a process of its own."""
    line = [sys.executable, "-m", "stagexec", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout, **kwargs)


def printed(*words: str | Path) -> Any:
    """What `stagexec … --json` prints, decoded; the command must succeed."""
    done = command(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def prefix(word: str = "t") -> str:
    """A file name prefix that no other test uses."""
    return f"{word}-{uuid.uuid4().hex[:8]}"
