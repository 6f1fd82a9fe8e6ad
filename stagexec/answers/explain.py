"""Why one run was faster or slower than another: per-stage deltas, and a sentence."""

from __future__ import annotations

import dataclasses
from typing import Any

from stagexec import stages as sets
from stagexec.answers import diagnose
from stagexec.answers.words import human, nodes, percent
from stagexec.reading import derive
from stagexec.reading.graph import Graph
from stagexec.reading.runs import Run

COMPLETE = frozenset({"success", "success_empty", "success_unverified"})
"""Outcomes of runs whose times can be compared."""

NAMED_FROM = 0.1
"""A stage is named as a reason from this share of the difference on."""

ABOUT = 0.1
"""Two times of a stage are `about as long` within this share of the longer one."""

SAME_WITHIN = 0.02
"""Two runs took about as long within this share of the longer one."""

NOT_SAVED = ("queue_wait", "executor_prepare")
"""Stages that a cache does not make shorter."""

SPOKEN = {
    "queue_wait": "waiting in the queue",
    "executor_prepare": "preparing the execution",
    "model_load_residency": "loading the model",
    "conditioning": "conditioning",
    "sampling": "sampling",
    "vae_decode": "decoding the latents",
    "native_materialize": "writing out the nodes' outputs",
    "postprocess": "postprocessing",
    "encode_mux": "encoding",
    "delivery_commit": "checking and committing the artifacts",
    "external_wait": "waiting for other tasks",
    "node_other": "other node code",
    "executor_overhead": "the loop between the nodes",
}


@dataclasses.dataclass(slots=True)
class StageDelta:
    """One stage in both runs; `delta_ns` is B minus A, `share` its part of the total difference."""

    stage: str
    a_ns: int
    b_ns: int
    delta_ns: int
    share: float | None


@dataclasses.dataclass(slots=True)
class Difference:
    """How run B differs from run A. Times in ns; `delta_ns` is B minus A."""

    run_a: str
    run_b: str
    total_a_ns: int
    total_b_ns: int
    delta_ns: int
    stages: list[StageDelta]
    changed: list[dict[str, Any]]
    """{what, a, b}: what is not the same in both, other than times."""
    warnings: list[str]
    verdict: str


class Side:
    """One of the two runs, with what the sentence needs to know of it."""

    def __init__(self, run: Run, name: str) -> None:
        self.run = run
        self.name = name
        self.total_ns = run.segments.total_ns()
        self.stages = derive.stage_times(run)
        visits = run.visits()
        self.lists = derive.node_lists(run, visits, Graph(run))
        self.executed = set(self.lists["executed_nodes"])
        self.from_cache = {*self.lists["cached_nodes"], *self.lists["cached_in_run"]} - self.executed
        self.expected = set(self.lists["expected_nodes"])
        self._visits = visits
        self._nodes_by_stage: dict[str, set[str]] | None = None

    def stage(self, name: str) -> int:
        """Nanoseconds in a stage, 0 when the run was never in it."""
        return self.stages.get(name, 0)

    def nodes_in(self, stage: str) -> set[str]:
        """Nodes whose visits spent time in `stage`."""
        if self._nodes_by_stage is None:
            times = derive.visit_times(self.run)
            self._nodes_by_stage = {}
            for visit in self._visits:
                spent = times[visit.visit].stages if visit.visit in times else {}
                for name in spent:
                    if visit.node_id is not None:
                        self._nodes_by_stage.setdefault(name, set()).add(visit.node_id)
        return self._nodes_by_stage.get(stage, set())

    def loaded(self) -> bool:
        """Whether a model is known to have been loaded: less time for it is then no sign of residency."""
        return _startup(self.run) == "process_cold" or bool(diagnose.loads(self.run))

    def had_from_cache(self, stage: str, other: Side) -> bool:
        """Whether what `other` did in `stage` came out of the cache here."""
        worked = other.nodes_in(stage)
        return bool(worked) and worked.isdisjoint(self.executed) and not worked.isdisjoint(self.from_cache)


def explain(a: Run, b: Run, name_a: str = "run A", name_b: str = "run B") -> Difference:
    """Compare B with A. `name_a` and `name_b` are how the sentence calls them, as in `the first run`."""
    one, two = Side(a, name_a), Side(b, name_b)
    delta = two.total_ns - one.total_ns
    deltas = []
    present = {**one.stages, **two.stages}
    # A journal may know stages that this reader does not; left out, the deltas would not add up.
    for stage in [*(s for s in sets.STAGES if s in present), *(s for s in present if s not in sets.STAGES)]:
        moved = two.stage(stage) - one.stage(stage)
        share = moved / delta if delta else None
        deltas.append(StageDelta(stage, one.stage(stage), two.stage(stage), moved, share))
    return Difference(
        run_a=a.run_id,
        run_b=b.run_id,
        total_a_ns=one.total_ns,
        total_b_ns=two.total_ns,
        delta_ns=delta,
        stages=deltas,
        changed=_changed(one, two),
        warnings=_warnings(a, b),
        verdict=_sentence(one, two, deltas),
    )


def _changed(a: Side, b: Side) -> list[dict[str, Any]]:
    pairs = [
        ("condition", a.run.condition_id, b.run.condition_id),
        ("outcome", a.run.outcome, b.run.outcome),
        ("startup_class", _startup(a.run), _startup(b.run)),
        ("seeds", _seeds(a.run), _seeds(b.run)),
        ("cached_nodes", sorted(a.from_cache), sorted(b.from_cache)),
        ("executed_nodes", sorted(a.executed), sorted(b.executed)),
    ]
    return [{"what": what, "a": left, "b": right} for what, left, right in pairs if left != right]


def _startup(run: Run) -> str | None:
    return run.started.startup_class if run.started else None


def _seeds(run: Run) -> list[Any]:
    return run.accepted.seeds if run.accepted else []


def _warnings(a: Run, b: Run) -> list[str]:
    found = []
    if a.accepted and b.accepted and a.accepted.prompt_hash != b.accepted.prompt_hash:
        found.append("the prompts differ in more than their seeds")
    if a.timing != b.timing:
        found.append(f"the timing modes differ: {a.timing} and {b.timing}")
    ours, theirs = (run.process.start.hostname if run.process.start else None for run in (a, b))
    if ours != theirs:
        found.append(f"the machines differ: {ours} and {theirs}")
    return found


def _sentence(a: Side, b: Side, deltas: list[StageDelta]) -> str:
    for side in (a, b):
        if side.run.outcome not in COMPLETE:
            return f"{_capital(side.name)} {_unfinished(side)}, so the two times cannot be compared."
    return f"{_capital(_headline(a, b))}: {'; '.join(_reasons(a, b, deltas))}."


def _unfinished(side: Side) -> str:
    if side.run.outcome is None:
        return f"is still under way after {human(side.total_ns)}"
    error = side.run.error
    where = f" in {error.stage}" if error and error.stage else ""
    node = f" (node {error.node_id})" if error and error.node_id else ""
    return f"ended as {side.run.outcome}{where}{node} after {human(side.total_ns)}"


def _headline(a: Side, b: Side) -> str:
    times = f"({human(a.total_ns)} → {human(b.total_ns)})"
    delta = b.total_ns - a.total_ns
    if abs(delta) <= SAME_WITHIN * max(a.total_ns, b.total_ns):
        return f"{b.name} took about as long as {a.name} {times}"
    return f"{b.name} was {human(abs(delta))} {'faster' if delta < 0 else 'slower'} than {a.name} {times}"


def _reasons(a: Side, b: Side, deltas: list[StageDelta]) -> list[str]:
    saved = not b.executed and b.from_cache and a.executed and b.total_ns < a.total_ns
    named: list[str] = []
    differs = abs(b.total_ns - a.total_ns) > SAME_WITHIN * max(a.total_ns, b.total_ns)
    main = [d for d in deltas if differs and d.share is not None and d.share >= NAMED_FROM]
    if saved:  # what the cache saved is one reason, and what it cannot save another
        main = [d for d in main if d.stage in NOT_SAVED]
    for delta in sorted(main, key=lambda d: -abs(d.delta_ns))[:3]:
        of_all = f"{percent(delta.share)} of the difference"
        named.append(f"{_reason(a, b, delta)} ({human(delta.a_ns)} → {human(delta.b_ns)}, {of_all})")
    if saved:
        return [*named, _all_cached(a, b)]
    named.append(_cache_count(a, b))
    if "sampling" not in [d.stage for d in main]:
        named += _sampling(a, b)
    return named


def _all_cached(a: Side, b: Side) -> str:
    count = len(b.from_cache & b.expected) or len(b.from_cache)
    what = (
        "nothing was sampled" if a.stage("sampling") and not b.stage("sampling") else "no node was executed"
    )
    whole = "all " if count > 1 and b.expected <= b.from_cache else ""
    return f"{whole}{nodes(count)} came from the cache, {what}"


def _cache_count(a: Side, b: Side) -> str:
    of = b.expected or b.from_cache | b.executed
    count = len(b.from_cache & of)
    if count:
        return f"{count} of {nodes(len(of))} came from the cache"
    if a.from_cache:
        return f"no node came from the cache, {len(a.from_cache)} did in {a.name}"
    return f"no node came from the cache, {nodes(len(b.executed))} executed"


def _sampling(a: Side, b: Side) -> list[str]:
    before, after = a.stage("sampling"), b.stage("sampling")
    if before and after:
        close = abs(after - before) <= ABOUT * max(before, after)
        how = "took about as long" if close else "took less" if after < before else "took longer"
        return [f"sampling {how} ({human(before)} → {human(after)})"]
    if before:
        return ["nothing was sampled"]
    return [f"it sampled ({human(after)}), {a.name} did not"] if after else []


def _reason(a: Side, b: Side, delta: StageDelta) -> str:
    """Why the time in a stage differs. Work that the cache saved is never credited to the work itself."""
    less = delta.delta_ns < 0
    if delta.stage == "model_load_residency":
        return _residency(a, b, delta)
    spoken = SPOKEN.get(delta.stage, delta.stage)
    if less and b.had_from_cache(delta.stage, a):
        return f"{spoken} fell away, its nodes came from the cache"
    if not less and a.had_from_cache(delta.stage, b):
        return f"{spoken} was done anew, {a.name} had it from the cache"
    return f"{spoken} took {'less' if less else 'longer'}"


def _residency(a: Side, b: Side, delta: StageDelta) -> str:
    few = 0.2
    if delta.delta_ns < 0 and delta.b_ns <= few * delta.a_ns and not b.loaded():
        return "the model was already resident" if b.stage("sampling") else "no model had to be loaded"
    if delta.delta_ns > 0 and delta.a_ns <= few * delta.b_ns and not a.loaded():
        return "the model had to be loaded"
    return f"loading the model took {'less' if delta.delta_ns < 0 else 'longer'}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
