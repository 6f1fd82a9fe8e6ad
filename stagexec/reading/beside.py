"""What stands beside a run: work between two runs and whom it delayed, slow questions to node classes, paths.

Nothing of it is in the run's segments, or it is named there by stage and visit alone.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from stagexec.reading import events
from stagexec.reading.runs import Run

PROFILES = "profiles"
"""Folder of a ledger that holds what was recorded of profiled runs."""


def of(run: Run) -> dict[str, Any]:
    """The fields of `show` that tell of it. Times in ns."""
    return {
        "after_run": after_run(run),
        "delayed_by": delayed_by(run),
        "held_ns": run.closed.held_ns if run.closed else None,
        "asked": asked(run),
        "is_changed_brought": is_changed_brought(run),
        "left_on_loop": left_on_loop(run),
    }


def after_run(run: Run) -> list[dict[str, Any]]:
    """What was done after this run, before the next: `what`, `ns`, bounds, and the runs that it delayed."""
    return [
        {
            "what": one.what,
            "ns": one.end_ns - one.start_ns,
            "start_ns": one.start_ns,
            "end_ns": one.end_ns,
            "delayed": [
                {"run_id": pair[0], "ns": pair[1]}
                for pair in one.delayed
                if isinstance(pair, list) and len(pair) == 2
            ],
        }
        for one in run.process.after
        if one.after == run.run_id
    ]


def delayed_by(run: Run) -> list[dict[str, Any]]:
    """What of this run's `queue_wait` was work between two runs: `what`, `ns`, `after_run` (a run's id)."""
    waits = [(start, end) for stage, _, start, end, _, _ in run.segments.rows() if stage == "queue_wait"]
    found = []
    for one in run.process.after:
        ns = sum(
            min(end, one.end_ns) - max(start, one.start_ns)
            for start, end in waits
            if start < one.end_ns and one.start_ns < end
        )
        if ns > 0:
            found.append({"what": one.what, "ns": ns, "after_run": one.after})
    return found


def asked(run: Run) -> list[dict[str, Any]]:
    """The questions to node classes, and the prompt handlers, that took long, in order of time.

    Several long answers of one node to one question are one: `ns` is their sum, `times` how many they were.
    """
    found: dict[Any, dict[str, Any]] = {}
    for mark, detail in _marks(run, "asked"):
        names = {name: detail.get(name) for name in ("what", "when", "handler")}
        key = (mark.node_id, *names.values())
        one = found.setdefault(
            key, {**names, "node_id": mark.node_id, "node_class": mark.node_class, "ns": 0, "times": 0}
        )
        one["ns"] += detail.get("ns", 0)
        one["times"] += 1
    return list(found.values())


def is_changed_brought(run: Run) -> list[str]:
    """Nodes whose answer to IS_CHANGED came with the prompt, so that their classes were not asked."""
    told = [detail.get("nodes") for _, detail in _marks(run, "is_changed_brought")]
    return [str(node) for nodes in told if isinstance(nodes, list) for node in nodes]


def left_on_loop(run: Run) -> list[dict[str, Any]]:
    """What nodes had left on the event loop when the last one was done: `what`, `name`, node."""
    return [
        {
            "what": detail.get("what"),
            "name": detail.get("name"),
            "node_id": mark.node_id,
            "node_class": mark.node_class,
            "visit": mark.visit,
        }
        for mark, detail in _marks(run, "left_on_loop")
    ]


def _marks(run: Run, name: str) -> list[tuple[events.Mark, dict[str, Any]]]:
    return [(one, one.detail) for one in run.marks if one.name == name and isinstance(one.detail, dict)]


def path_of(artifact: events.Artifact, run: Run) -> str | None:
    """Where an artifact lies; one of a profile in the ledger that the journal is in, also a moved one."""
    path = artifact.artifact
    if path is None or artifact.media != "profile":
        return path
    parts = PurePath(path.replace("\\", "/")).parts
    if PROFILES not in parts or not run.process.file:
        return path
    # <ledger>/journal/<day>/<file>
    ledger = PurePath(run.process.file).parent.parent.parent
    place = len(parts) - 1 - parts[::-1].index(PROFILES)
    return str(ledger.joinpath(*parts[place:]))
