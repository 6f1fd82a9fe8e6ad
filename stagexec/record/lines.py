"""A line of the journal on its way into the file, and what sets some lines apart."""

from __future__ import annotations

import threading
from typing import NamedTuple

CLOSING = ("run_closed", "process_end")
"""Events after which nothing more is written of what they close."""

VITAL = frozenset(
    ("run_accepted", "run_started", "run_executed", "artifact", "run_closed", "process_end", "lost_events")
)
"""Events that tell that a run was there and how it ended: on a full disk they go before its segments."""


WRITTEN = "_written"
"""Key of an event that is waited for; it is not written."""


class Line(NamedTuple):
    """One event as it is written."""

    data: bytes
    run_id: str | None
    vital: bool
    ends_run: bool
    written: threading.Event | None = None
    """Set when the file has it."""
