"""The same scene on several servers, and what differs."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench import lab
from stagexec.bench.client import Listener
from stagexec.bench.lab import Server
from tests.transparency.observe import Observer

Scene = Callable[[Observer], None]
Seen = list[tuple[str, Any]]

MAX_LINES = 80
PACKS = Path(__file__).parent / "packs"
NODES_PACK = Path(__file__).resolve().parents[1] / "host" / "nodes_pack"
HASH_SEED = 7
"""The host sends sets as lists: their order hangs on the seed of Python's string hash."""

LAUNCHERS: Mapping[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "stock": ({"launcher": lab.STOCK}, ()),
    "native": ({}, ("--stagexec-executor", "native")),
    "host": ({}, ("--stagexec-executor", "host")),
}
"""Label -> how a server is started, and our further arguments."""


class Twins:
    """Servers that must be told apart by nothing a client can see. The first one is the measure."""

    def __init__(self, servers: Mapping[str, Server]) -> None:
        self.servers = dict(servers)

    def same(self, name: str, scene: Scene, listen: type[Listener] | None = Listener) -> Seen:
        """Run the scene on each server; fail on any difference. Gives what was seen on the first."""
        seen: dict[str, Seen] = {}
        problems: list[BaseException] = []
        for label, server in self.servers.items():
            try:  # all of them: a scene cut short on one server would put the next scenes out of step
                seen[label] = watch(server, name, scene, listen)
            except Exception as problem:  # noqa: BLE001 (raised below)
                problem.add_note(f"on the server {label}") if hasattr(problem, "add_note") else None
                problems.append(problem)
        if problems:
            raise problems[0]
        first, *others = seen
        for label in others:
            fail_on_difference(first, seen[first], label, seen[label])
        return seen[first]


def start_twins(
    servers: Any, labels: Sequence[str], *args: str, packs: Sequence[str] = ("odd", "frames"), **launch: Any
) -> Twins:
    """Servers of the given labels with the test nodes and `packs`, started at the same time."""
    folders = (NODES_PACK, *(PACKS / name for name in packs))
    started = {}
    for label in labels:
        how, more = LAUNCHERS[label]
        started[label] = servers(
            *more, *args, ready=False, hash_seed=HASH_SEED, custom_nodes=folders, **how, **launch
        )
    for server in started.values():
        server.wait_ready()
    return Twins(started)


def watch(server: Server, name: str, scene: Scene, listen: type[Listener] | None) -> Seen:
    """Everything that was seen of one scene on one server."""
    observer = Observer(server, name, listen)
    try:
        scene(observer)
    finally:
        observer.close()
    return observer.seen


def fail_on_difference(first: str, one: Seen, second: str, other: Seen) -> None:
    """Fail with the lines that differ. Text is compared, so the order of keys counts."""
    if as_lines(one) == as_lines(other):
        return
    lines = list(difflib.unified_diff(as_lines(one), as_lines(other), first, second, lineterm="", n=6))
    more = f"\n… and {len(lines) - MAX_LINES} lines more" if len(lines) > MAX_LINES else ""
    pytest.fail("\n".join(lines[:MAX_LINES]) + more, pytrace=False)


def as_lines(seen: Seen) -> list[str]:
    """What was seen as text, a value a line."""
    return json.dumps(seen, indent=1, ensure_ascii=False).splitlines()


def messages(seen: Seen, kind: str) -> list[Any]:
    """The data of all messages of one type."""
    return [data for what, data in seen if what == f"message {kind}"]
