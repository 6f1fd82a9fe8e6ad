"""Two runs side by side in full: times, condition, residency, cache, nodes, and the sentence."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from stagexec.answers import cache_defeat
from stagexec.answers.explain import Difference, explain
from stagexec.reading import conditions, derive, named, parts
from stagexec.reading.graph import Graph
from stagexec.reading.runs import Run

LISTS = (
    "selected_outputs",
    "expected_nodes",
    "cached_nodes",
    "cached_in_run",
    "executed_nodes",
    "not_executed",
)


@dataclasses.dataclass(slots=True)
class Comparison(Difference):
    """What `diff --json` prints. Nodes are ids; a condition's values are as in the manifest."""

    conditions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """{field, a, b} of each condition field that is not the same; null values carry their reason as text."""
    residency: dict[str, Any] = dataclasses.field(default_factory=dict)
    """`a`, `b`: {model class: {asked, resident, bytes}}: how often asked for, how often there already."""
    lists: dict[str, dict[str, list[str]]] = dataclasses.field(default_factory=dict)
    """node list -> {only_a, only_b}; lists that agree are left out."""
    re_executed: list[cache_defeat.ReExecution] = dataclasses.field(default_factory=list)
    """Nodes that B executed although A, or the run before B, had them done; and why."""
    named_share: dict[str, float | None] = dataclasses.field(default_factory=dict)
    """`a`, `b`: the share of the run that has a name; null of one without length."""
    steps: dict[str, dict[str, Any] | None] = dataclasses.field(default_factory=dict)
    """`a`, `b`: the steps of its samplers, see reading/parts.py; null where none were seen."""
    compared_with: str | None = None
    """Run that `re_executed` compares with; null when no earlier run of B's process fits."""


def diff(
    a: Run,
    b: Run,
    ledger: pathlib.Path | None = None,
    runs: Sequence[Run] = (),
    name_a: str = "run A",
    name_b: str = "run B",
) -> Comparison:
    """Compare B with A. `ledger` has the manifests; among `runs` is the one before B in its process."""
    plain = explain(a, b, name_a, name_b)
    found = Comparison(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)})
    if ledger is not None:
        found.conditions = changed_fields(ledger, a.condition_id, b.condition_id)
        found.warnings += _unknown_conditions(ledger, a, b)
    found.residency = {"a": residency(a), "b": residency(b)}
    found.lists = _lists(a, b)
    found.named_share = {"a": named.share(a), "b": named.share(b)}
    found.steps = {"a": parts.steps(a), "b": parts.steps(b)}
    before = a if _is_before(a, b) else cache_defeat.previous(b, runs)
    if before is not None:
        found.compared_with = before.run_id
        found.re_executed = cache_defeat.re_executions(b, before)
    found.warnings += _clocks(a, b)
    return found


def _is_before(a: Run, b: Run) -> bool:
    started = a.started is not None and b.started is not None
    return a.process.file == b.process.file and started and a.started.ts_mono_ns < b.started.ts_mono_ns  # type: ignore[union-attr]


def _clocks(a: Run, b: Run) -> list[str]:
    if a.process.file == b.process.file:
        return []
    return ["the runs are of two processes, so of two clocks: only durations are compared"]


def changed_fields(ledger: pathlib.Path, id_a: str | None, id_b: str | None) -> list[dict[str, Any]]:
    """{field, a, b} of what differs between two conditions of a ledger; packs by name."""
    if id_a == id_b:
        return []
    a, b = conditions.manifest(ledger, id_a), conditions.manifest(ledger, id_b)
    if a is None or b is None:
        return []
    found = []
    for name in [*a.fields, *(name for name in b.fields if name not in a.fields)]:
        left, right = _value(a, name), _value(b, name)
        if left == right:
            continue
        row = {"field": name, "a": left, "b": right}
        if name == "custom_nodes_hash":
            row["packs"] = _packs(ledger, left, right)
        found.append(row)
    return found


def _value(manifest: conditions.Manifest, name: str) -> Any:
    value = manifest.fields.get(name)
    return value if value is not None else f"({manifest.reasons.get(name, 'not a field of that version')})"


def _packs(ledger: pathlib.Path, left: Any, right: Any) -> list[str]:
    a, b = conditions.lock(ledger, str(left)), conditions.lock(ledger, str(right))
    return sorted(name for name in {*a, *b} if a.get(name) != b.get(name))


def _unknown_conditions(ledger: pathlib.Path, a: Run, b: Run) -> list[str]:
    found = []
    for name, run in (("A", a), ("B", b)):
        if run.condition_id is None:
            found.append(f"the condition of run {name} is not known")
        elif a.condition_id != b.condition_id and conditions.manifest(ledger, run.condition_id) is None:
            found.append(f"the manifest of run {name}'s condition is not in this ledger")
    return found


def residency(run: Run) -> dict[str, dict[str, int]]:
    """Model class -> {asked, resident, bytes}: from each time that models were asked onto the device."""
    return residency_of(mark.detail for mark in run.marks if mark.name == "model_load")


def residency_of(details: Iterable[Any]) -> dict[str, dict[str, int]]:
    """The same of the details of `model_load` marks."""
    found: dict[str, dict[str, int]] = {}
    for detail in details:
        for model in detail.get("models", ()) if isinstance(detail, dict) else ():
            one = found.setdefault(str(model.get("class")), {"asked": 0, "resident": 0, "bytes": 0})
            one["asked"] += 1
            one["resident"] += bool(model.get("resident"))
            one["bytes"] = max(one["bytes"], model.get("bytes") or 0)
    return found


def _lists(a: Run, b: Run) -> dict[str, dict[str, list[str]]]:
    left, right = (derive.node_lists(run, run.visits(), Graph(run)) for run in (a, b))
    found = {}
    for name in LISTS:
        only_a = [node for node in left[name] if node not in set(right[name])]
        only_b = [node for node in right[name] if node not in set(left[name])]
        if only_a or only_b:
            found[name] = {"only_a": only_a, "only_b": only_b}
    return found
