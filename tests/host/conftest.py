"""A colour of its own for each test."""

from __future__ import annotations

import itertools

import pytest

_colors = itertools.count(1)


@pytest.fixture
def color() -> int:
    """A colour that no other test gives its EmptyImage: nothing of the graph is cached."""
    return next(_colors)
