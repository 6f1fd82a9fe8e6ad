"""The states a unit asks for, the steps of one measure in each, and the proof from the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNTIL = ("delivery", "native", "postprocess", "encode", "commit")
"""Where a run may be asked to end."""

AFTER = {
    "native": ("postprocess", "encode_mux"),
    "postprocess": ("encode_mux",),
}
"""End of a run -> stages that lie behind it."""

READ_PARTS = ("read", "build")
"""Parts of `model_load_residency` that mean a model came from its file."""

WARMUP_SEEDS = 500_000
SETTLE_SEEDS = 900_000


@dataclass(frozen=True)
class Step:
    """One run of a measure: what it is called in the tables, its seed's shift, the other workflow or not."""

    position: str
    shift: int = 0
    switched: bool = False
    first: bool = False


@dataclass(frozen=True)
class State:
    """How a unit's measures are made.

    `launch_each`: a new process for each measure; `few`: five measures by default, not ten;
    `same_seed`: every run is the same request; `cache_none`: the host runs without a cache between prompts.
    """

    about: str
    steps: tuple[Step, ...] = (Step(""),)
    launch_each: bool = False
    few: bool = False
    same_seed: bool = False
    args: tuple[str, ...] = ()
    shares_server: bool = False


STATES: dict[str, State] = {
    "process_cold": State("the first run of a process", (Step("", first=True),), launch_each=True, few=True),
    "first_second": State(
        "the first run of a process, then a second one with a new seed",
        (Step("first", first=True), Step("second", shift=1)),
        launch_each=True,
        few=True,
    ),
    "cached": State("the same request again, answered by the cache", same_seed=True),
    "same_again": State("the same request again, cached or not", same_seed=True),
    "same_process": State("a new seed in the same process, cached or not"),
    "recompute": State("models resident, a new seed: everything below the seed is computed"),
    "no_cache": State(
        "models resident, the host's cache is off: everything is computed",
        args=("--cache-none",),
        shares_server=True,
    ),
    "switch": State(
        "workflow A, then B, then A again",
        (Step("A"), Step("B", shift=1, switched=True), Step("A again", shift=2)),
        few=True,
    ),
    "queue": State("several requests at once, behind others"),
}


def steps(state: str, concurrency: int = 1) -> tuple[Step, ...]:
    """The runs of one measure, in order. A queue's are its concurrent requests."""
    if state == "queue":
        return tuple(Step(f"request {number + 1}", shift=number) for number in range(concurrency))
    return STATES[state].steps


def seed_inputs(prompt: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(node id, input name) of every seed in a prompt: integer inputs with a seed's name."""
    return [
        (node_id, name)
        for node_id, node in prompt.items()
        for name, value in node.get("inputs", {}).items()
        if type(value) is int and (name in ("seed", "noise_seed") or name.endswith("_seed"))
    ]


def below(prompt: Mapping[str, Any], roots: set[str]) -> set[str]:
    """`roots` and every node that depends on one of them."""
    users: dict[str, list[str]] = {}
    for node_id, node in prompt.items():
        for value in node.get("inputs", {}).values():
            if isinstance(value, list) and len(value) == 2 and str(value[0]) in prompt:
                users.setdefault(str(value[0]), []).append(node_id)
    found, left = set(roots), list(roots)
    while left:
        for user in users.get(left.pop(), ()):
            if user not in found:
                found.add(user)
                left.append(user)
    return found


def wrong_state(state: str, step: Step, run: Mapping[str, Any], prompt: Mapping[str, Any]) -> str | None:
    """Why a run was not in the state its unit asks for; None when the ledger shows that it was.

    `run` is an object of `show`.
    """
    if run["outcome"] in ("failed", "cancelled", "lost"):
        return None  # a failure is a result, in whatever state it came
    if step.first:
        if run["startup_class"] != "process_cold":
            return f"the run was not the first of its process ({run['startup_class']})"
        return None
    if run["startup_class"] == "process_cold":
        return "the process was not warm: nothing had been computed in it (process_cold)"
    check = _CHECKS.get(state)
    if check and (why := check(run, prompt)):
        return why
    if state == "recompute" and run["startup_class"] in NOT_RECOMPUTED:
        return f"the run was {run['startup_class']}"
    return None


def _executed(run: Mapping[str, Any]) -> set[str]:
    return set(run["executed_nodes"])


def _cached(run: Mapping[str, Any]) -> set[str]:
    return {*run["cached_nodes"], *run["cached_in_run"]}


def _is_recomputed(run: Mapping[str, Any], prompt: Mapping[str, Any]) -> str | None:
    seeds = {node_id for node_id, _ in seed_inputs(prompt)}
    wanted = below(prompt, seeds) & set(run["expected_nodes"])
    if not seeds:
        return "the workflow has no seed that would make the host compute again"
    left = sorted(wanted - _executed(run))
    if left:
        return f"nodes {', '.join(left)} were not executed"
    return None


def _is_resident(run: Mapping[str, Any], prompt: Mapping[str, Any]) -> str | None:
    if why := _is_recomputed(run, prompt):
        return why
    read = sum(
        segment["end_ns"] - segment["start_ns"]
        for segment in run["segments"]
        if segment["stage"] == "model_load_residency" and segment["part"] in READ_PARTS
    )
    return "a model was read from its file again" if read else None


def _is_cached(run: Mapping[str, Any], prompt: Mapping[str, Any]) -> str | None:
    if not _cached(run):
        return "nothing came from the cache"
    ran = sorted(_executed(run) & {node_id for node_id, _ in seed_inputs(prompt)})
    return f"nodes {', '.join(ran)} were executed" if ran else None


def _is_uncached(run: Mapping[str, Any], _prompt: Mapping[str, Any]) -> str | None:
    hits = sorted(_cached(run))
    if hits:
        return f"nodes {', '.join(hits)} came from the cache"
    left = sorted(set(run["expected_nodes"]) - _executed(run))
    return f"nodes {', '.join(left)} were not executed" if left else None


NOT_RECOMPUTED = ("model_switch_A_B_A", "cache_hit_rerun")
"""Classes that a run in the state `recompute` must not have. An arm that keeps no model on the device uploads
in every run: that is its nature, and the cell still takes no runs of two classes."""

_CHECKS = {
    "recompute": _is_resident,
    "first_second": _is_resident,
    "cached": _is_cached,
    "no_cache": _is_uncached,
    "switch": _is_recomputed,
}


def beyond(until: str, run: Mapping[str, Any]) -> str | None:
    """Why a run did not end where it was asked to; None when nothing of it lies behind that point."""
    if until != "delivery" and run.get("until") != until:
        return f"the server did not take the stop point {until}"
    late = [stage for stage in AFTER.get(until, ()) if run["stages"].get(stage)]
    return f"the run went on into {', '.join(late)}" if late else None
