"""Who pressed the host's interrupt: a person, or code of a node. The host keeps one flag and no name."""

from __future__ import annotations

from typing import NamedTuple

from stagexec.record import live
from stagexec.record.guard import guarded
from stagexec.record.run import Run


class Press(NamedTuple):
    """The flag was raised by code, and stands. `runs`: ids of those that executed then; `text`: by whom."""

    at_ns: int
    runs: frozenset[str]
    text: str


_by_code: Press | None = None


@guarded
def pressed_by_code(door: str) -> None:
    """Code raised the flag while runs executed; `door` says from where (see host/doors.py)."""
    global _by_code
    runs = list(live.running.values())
    if not runs or _by_code is not None:
        return
    now = runs[0].clock()
    here = live.current_for_thread()
    who = (
        "code outside of every node"
        if here is None or here.node is None
        else "node {} ({})".format(*here.node)
    )
    _by_code = Press(now, frozenset(run.run_id for run in runs), f"{who} asked for the interrupt")
    for run in runs:
        node_id, node_class = (run.node or (None, None)) if run is here else (None, None)
        run.mark(
            "interrupt_pressed",
            {"door": door},
            ts_mono_ns=now,
            visit=run.visit if run is here else None,
            node_id=node_id,
            node_class=node_class,
        )


@guarded
def lowered() -> None:
    """The flag is down: what raised it is spent."""
    global _by_code
    _by_code = None


def cause_of(run: Run) -> tuple[str, str | None]:
    """The host's interrupt has ended this run: (user_cancel or interrupted_by_node, who asked if known).

    The first to ask counts.
    """
    press = _by_code
    lowered()
    came_first = press is not None and (run.cancel_ns is None or press.at_ns <= run.cancel_ns)
    if press is not None and came_first and run.run_id in press.runs:
        return "interrupted_by_node", press.text
    live.interrupted(run)
    return ("user_cancel" if run.cancel_ns is not None else "interrupted_by_node"), None
