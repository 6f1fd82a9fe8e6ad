"""Servers that run the same scenes: stock ComfyUI, ours, and ours with the host's own executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from stagexec.bench import lab

from tests.transparency.twins import Twins

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

Start = Callable[..., Twins]


def start_twins(servers: Any, labels: Sequence[str], *args: str, packs: Sequence[str] = ("odd",)) -> Twins:
    """Servers of the given labels with the test nodes and `packs`, started at the same time."""
    folders = (NODES_PACK, *(PACKS / name for name in packs))
    started = {}
    for label in labels:
        launch, more = LAUNCHERS[label]
        started[label] = servers(
            *more, *args, ready=False, hash_seed=HASH_SEED, custom_nodes=folders, **launch
        )
    for server in started.values():
        server.wait_ready()
    return Twins(started)


@pytest.fixture(scope="session")
def twins(shared_servers: Any) -> Twins:
    """Stock and our native loop."""
    return start_twins(shared_servers, ("stock", "native"))


@pytest.fixture(scope="session")
def host_executor(shared_servers: Any) -> Twins:
    """Stock and ours with the host's own executor, on a stock server of its own: caches must be alike."""
    return start_twins(shared_servers, ("stock", "host"))


@pytest.fixture
def start(server: Any) -> Iterator[Start]:
    """`start("stock", "native", args=("--cache-none",), packs=("odd",))`: servers for one test."""

    def begin(*labels: str, args: Sequence[str] = (), packs: Sequence[str] = ("odd",)) -> Twins:
        return start_twins(server, labels, *args, packs=packs)

    yield begin
