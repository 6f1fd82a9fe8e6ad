"""Parts of the loop's own time that the host's own functions take: named where they took long, in their run.

Our loop names most of its parts itself. What stands here is seen at functions of the host, for its own loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

from stagexec.record import live


def timed(part: str, original: Callable[..., Any], in_node: Callable[[], bool] | None = None) -> Any:
    """`original`, whose time is the part `part` of the run that its thread executes.

    `in_node`: tells whether a node of the host's own loop is open, of whose stage the part is then taken out.
    Without it only time is named that is the loop's already.
    """

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        run = live.run
        if run is not None and run.thread != get_ident():
            run = live.current_for_thread()
        if run is None:
            return original(*args, **kwargs)
        ledger = run.ledger
        of_node = in_node is not None and in_node()
        begun_ns = run.clock()
        try:
            return original(*args, **kwargs)
        finally:
            if of_node or in_node is None:
                ledger.carve(part, begun_ns, of_node)

    return call


def eviction(_module: Any, original: Any) -> Any:
    """The cache gives memory back under RAM pressure."""
    return timed("eviction", original)
