"""Servers that run the same scenes: stock ComfyUI, ours, and ours with the host's own executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.transparency.twins import Twins, start_twins

Start = Callable[..., Twins]


@pytest.fixture(scope="session")
def twins(shared_servers: Any) -> Twins:
    """Stock and our native loop."""
    return start_twins(shared_servers, ("stock", "native"))


@pytest.fixture(scope="session")
def host_executor(shared_servers: Any) -> Twins:
    """Stock and ours with the host's own executor, on a stock server of its own: caches must be alike."""
    return start_twins(shared_servers, ("stock", "host"))


@pytest.fixture
def start(server: Any) -> Start:
    """`start("stock", "native", args=("--cache-none",), packs=("odd",))`: servers for one test."""

    def begin(
        *labels: str, args: Sequence[str] = (), packs: Sequence[str] = ("odd", "frames"), **launch: Any
    ) -> Twins:
        return start_twins(server, labels, *args, packs=packs, **launch)

    return begin
