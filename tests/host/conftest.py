"""Witnesses: a running server beside the reader of its ledger."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from stagexec.bench import lab
from tests.conftest import Servers
from tests.host.witness import Witness

_colors = itertools.count(1)


@pytest.fixture(scope="session")
def witness(ours: lab.Server) -> Iterator[Witness]:
    """The server that most tests share, in the native loop."""
    one = Witness(ours)
    yield one
    one.close()


@pytest.fixture(scope="session")
def host_witness(shared_servers: Servers) -> Iterator[Witness]:
    """A server whose prompts run in the host's own loop, with the ledger around it."""
    one = Witness(shared_servers("--stagexec-executor", "host", hash_seed=0))
    yield one
    one.close()


@pytest.fixture
def color() -> int:
    """A colour that no other test gives its EmptyImage: nothing of the graph is cached."""
    return next(_colors)
