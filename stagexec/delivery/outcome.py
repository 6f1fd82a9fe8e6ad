"""How a run ended, from what it delivered: one of stages.OUTCOMES, with its cause and place."""

from __future__ import annotations

from typing import Any

from stagexec.record import children
from stagexec.record.children import ChildFailure
from stagexec.record.run import Run

ARTIFACT_CAUSES = {
    "missing": "artifact_missing",
    "corrupt": "artifact_corrupt",
    "nonfinite": "artifact_nonfinite",
    "overwritten": "artifact_missing",
}


class Delivered:
    """The states of one node's artifacts."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.first_bad: str | None = None
        self.lost_to: str | None = None

    def add(self, row: dict[str, Any]) -> None:
        """One more artifact: its event's fields."""
        self.states.append(row["state"])
        self.first_bad = self.first_bad or row["first_bad"]
        if row["state"] == "overwritten":
            self.lost_to = self.lost_to or row["reason"]

    @property
    def failure(self) -> str | None:
        """The cause, when one of the artifacts is not what it should be."""
        return next((ARTIFACT_CAUSES[state] for state in self.states if state in ARTIFACT_CAUSES), None)


Decision = tuple[str, "str | None", "dict[str, Any] | None"]


def decide(run: Run, delivered: dict[str, Delivered], values: dict[str, int]) -> Decision:
    """(outcome, cause, error). `values`: how many outputs that are no files each node announced."""
    good = [d for d in delivered.values() if d.failure is None]
    failing = {node_id: d for node_id, d in delivered.items() if d.failure is not None}
    sent = reached(run)
    anything = bool(good) or bool(values) or bool(sent)
    if run.error is not None:
        return _after_error(run, anything)
    child = children.unanswered(run)
    if child is not None:
        return ("partial" if anything else "failed"), child.cause, _child_place(child)
    if failing:
        node_id, one = next(iter(failing.items()))
        error = _place(run, node_id, "delivery_commit")
        if one.first_bad is not None:
            error = _place(run, one.first_bad, "delivery_commit")
        elif one.lost_to is not None:
            error["message"] = one.lost_to
        return ("partial" if anything else "failed"), one.failure, error
    blocked = run.blocked[0] if run.blocked else None
    stopped_early = run.until not in (None, "commit") and blocked is None
    if not delivered and stopped_early:
        return "success", None, None  # it was asked to deliver nothing
    if not delivered and not values and not sent:
        return "success_empty", ("blocked" if blocked else None), _blocked_place(blocked)
    if blocked is not None and _missing_outputs(run, delivered, values):
        return "partial", "blocked", _blocked_place(blocked)
    states = [state for d in delivered.values() for state in d.states]
    if not states or "unverified" in states:
        return "success_unverified", None, None
    return "success", None, None


def _after_error(run: Run, anything: bool) -> Decision:
    assert run.error is not None
    cause = run.error["cause"]
    error = {key: value for key, value in run.error.items() if key != "cause"}
    child = children.of_visit(run, run.error["visit"])
    if cause == "node_exception" and child is not None:  # its end was seen after the node's exception
        cause = child.cause
        error.update(stage="encode_mux", message=error["message"] or child.text())
    if cause == "user_cancel":
        return "cancelled", cause, error
    return ("partial" if anything else "failed"), cause, error


def reached(run: Run) -> list[str]:
    """Nodes that ran to their end and whose messages reached a client."""
    return [node for node, one in run.trail.sent.items() if one.reached and node in run.executed_nodes]


def unreached(run: Run) -> str | None:
    """What is to be said of messages that reached no client; None where there are none."""
    lost = {node: one for node, one in run.trail.sent.items() if one.reached < one.messages}
    if not lost:
        return None
    count = sum(one.messages - one.reached for one in lost.values())
    nodes = ", ".join(lost)
    return f"{count} message{'s' if count > 1 else ''} of node {nodes} reached no client: none was connected"


def unchecked(run: Run) -> Decision:
    """How a run that the host has filed ended, when its files cannot be checked any more."""
    return _after_error(run, False) if run.error is not None else ("success_unverified", None, None)


def _missing_outputs(run: Run, delivered: dict[str, Delivered], values: dict[str, int]) -> bool:
    """Did a selected output neither deliver nor run to its end?"""
    had = set(delivered) | set(values) | run.executed_nodes | run.cached
    stopped = {row["node_id"] for row in run.blocked}
    return any(node_id in stopped or node_id not in had for node_id in run.outputs)


def _place(run: Run, node_id: str, stage: str) -> dict[str, Any]:
    return {
        "stage": stage,
        "visit": run.visit_no_of.get(node_id),
        "node_id": node_id,
        "node_class": run.class_of.get(node_id),
        "list_index": None,
        "exception_type": None,
        "message": None,
    }


def _child_place(child: ChildFailure) -> dict[str, Any]:
    return {
        "stage": "encode_mux",
        "visit": child.visit,
        "node_id": child.node_id,
        "node_class": child.node_class,
        "list_index": None,
        "exception_type": None,
        "message": child.text(),
    }


def _blocked_place(blocked: dict[str, Any] | None) -> dict[str, Any] | None:
    if blocked is None:
        return None
    return {
        "stage": "executor_overhead",
        "visit": blocked["visit"],
        "node_id": blocked["node_id"],
        "node_class": blocked["node_class"],
        "list_index": None,
        "exception_type": None,
        "message": blocked["message"],
    }
