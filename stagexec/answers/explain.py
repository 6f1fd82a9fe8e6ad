"""Why one run was faster or slower than another: per-stage deltas, and a sentence."""

from __future__ import annotations

import dataclasses
from typing import Any

from stagexec import stages as sets
from stagexec.answers.words import human, nodes, percent, size
from stagexec.reading import cpu, derive, disk, parts, startup
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

BUSY = 0.2
"""From so much more of all CPUs on that other programs had, a longer time is not laid to the work itself."""

MOST_NAMED = 3
"""So many reasons either way are named one by one."""

NOT_SAVED = ("queue_wait", "executor_prepare")
"""Stages that a cache does not make shorter."""

WAITED = ("queue_wait", "external_wait")
"""Stages that other programs on the machine do not make longer."""

NOT_CACHED = ("queue_wait", "executor_prepare", "executor_overhead", "delivery_commit", "external_wait")
"""Stages of which nothing is ever had from the cache."""

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
    parts: dict[str, int] = dataclasses.field(default_factory=dict)
    """Part -> B minus A, ns; they add up to `delta_ns`. Empty where neither run has parts in this stage."""


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
        self.startup = run.startup_class
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
        facts = startup.facts_of(self.run)
        return self.startup == startup.COLD or (facts is not None and facts.is_load)

    def had_from_cache(self, stage: str, other: Side) -> bool:
        """Whether what `other` did in `stage` came out of the cache here."""
        worked = other.nodes_in(stage)
        return bool(worked) and worked <= self.from_cache


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
        of_parts = _parts(one, two, stage)
        deltas.append(StageDelta(stage, one.stage(stage), two.stage(stage), moved, share, of_parts))
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


def _parts(a: Side, b: Side, stage: str) -> dict[str, int]:
    sides = [parts.part_times(side.run).get(stage) or {parts.REST: side.stage(stage)} for side in (a, b)]
    if all(list(side) == [parts.REST] for side in sides):
        return {}
    left, right = sides
    return {name: right.get(name, 0) - left.get(name, 0) for name in {**left, **right}}


def _changed(a: Side, b: Side) -> list[dict[str, Any]]:
    pairs = [
        ("condition", a.run.condition_id, b.run.condition_id),
        ("outcome", a.run.outcome, b.run.outcome),
        ("startup_class", a.startup, b.startup),
        ("seeds", _seeds(a.run), _seeds(b.run)),
        ("cached_nodes", sorted(a.from_cache), sorted(b.from_cache)),
        ("executed_nodes", sorted(a.executed), sorted(b.executed)),
    ]
    return [{"what": what, "a": left, "b": right} for what, left, right in pairs if left != right]


def _seeds(run: Run) -> list[Any]:
    return run.accepted.seeds if run.accepted else []


def _warnings(a: Run, b: Run) -> list[str]:
    found = []
    if is_other_work(a, b):
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
    told = _reasons(a, b, deltas)
    alike = artifacts_alike(a.run, b.run)
    if alike is not None:
        told.append(alike)
    found = f"{_headline(a, b)}: {'; '.join(told)}."
    return f"The two runs are of different work: {found}" if is_other_work(a.run, b.run) else _capital(found)


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


@dataclasses.dataclass(slots=True)
class Clause:
    """Something that is said of one stage, or of several: its figure is `moved_ns` of the difference."""

    text: str
    moved_ns: int
    ends: tuple[int, int] | None = None
    """ns in A and in B; None where several stages are meant."""


def _clauses(a: Side, b: Side, deltas: list[StageDelta]) -> tuple[list[Clause], list[Clause]]:
    """(what made the difference, what went against it), the largest first. They are of the table alone."""
    saved = _is_saved(a, b)
    differs = abs(b.total_ns - a.total_ns) > SAME_WITHIN * max(a.total_ns, b.total_ns)
    main = [d for d in deltas if differs and d.share is not None and d.share >= NAMED_FROM]
    against = [d for d in deltas if differs and d.share is not None and d.share <= -NAMED_FROM]
    if saved:  # what the cache saved is one reason, and what it cannot save another
        main, against = ([d for d in some if d.stage in NOT_SAVED] for some in (main, against))
    first, second = (
        [
            Clause(_reason(a, b, d), d.delta_ns, (d.a_ns, d.b_ns))
            for d in sorted(some, key=lambda d: -abs(d.delta_ns))[:MOST_NAMED]
        ]
        for some in (main, against)
    )
    if saved:
        of_cache = sum(d.delta_ns for d in deltas if d.stage not in NOT_SAVED)
        first.append(Clause(_all_cached(a, b), of_cache))
    return first, second


def _is_saved(a: Side, b: Side) -> bool:
    return bool(not b.executed and b.from_cache and a.executed and b.total_ns < a.total_ns)


def _reasons(a: Side, b: Side, deltas: list[StageDelta]) -> list[str]:
    main, against = _clauses(a, b, deltas)
    total = b.total_ns - a.total_ns
    left = 100
    named = []
    for clause in main:
        share = round(100 * clause.moved_ns / total) if total else 0
        left -= share
        whole = clause.ends is None and len(main) == 1 and share == 100
        named.append(clause.text if whole else f"{clause.text} ({_figure(clause)}{share}% of the difference)")
    for at, clause in enumerate(against):
        share = round(100 * clause.moved_ns / total)
        left -= share
        how = "partly offset: " if not at else ""
        named.append(f"{how}{clause.text} ({_figure(clause)}{share}%)")
    if left and (main or against):
        named.append(f"the other stages {left}%")
    if _is_saved(a, b):
        return named
    named.append(_cache_count(a, b))
    spoken = {clause.text for clause in (*main, *against)}
    if not any("sampling" in text for text in spoken):
        named += _sampling(a, b)
    return named


def _figure(clause: Clause) -> str:
    return "" if clause.ends is None else f"{human(clause.ends[0])} → {human(clause.ends[1])}, "


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
        if abs(after - before) <= ABOUT * max(before, after):
            how = "took about as long"
        elif after > before and (share := _busy(b, a, "sampling")) is not None:
            how = f"was beside other programs, which had {percent(share)} of the machine"
        else:
            how = "took less" if after < before else "took longer"
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
    if delta.stage not in NOT_CACHED:  # the loop itself, and what follows execution, is in no cache
        if less and b.had_from_cache(delta.stage, a):
            return f"{spoken} was not needed, its nodes came from the cache"
        if not less and a.had_from_cache(delta.stage, b):
            return f"{spoken} ran again, {a.name} had it from the cache"
    slow, fast = (a, b) if less else (b, a)
    share = None if delta.stage in WAITED else _busy(slow, fast, delta.stage)
    if share is not None:
        how = f"while other programs had {percent(share)} of the machine in {slow.name}"
        return f"{spoken} took {'less' if less else 'its time'} {how}"
    return f"{spoken} took {'less' if less else 'longer'}"


def _busy(slow: Side, fast: Side, stage: str) -> float | None:
    """The share that other programs had of the machine in a stage, where that can be why it took longer."""
    share = cpu.machine_busy(slow.run, stage)
    if share is None or share - (cpu.machine_busy(fast.run, stage) or 0.0) < BUSY:
        return None
    return share


def _residency(a: Side, b: Side, delta: StageDelta) -> str:
    few = 0.2
    if delta.delta_ns < 0 and delta.b_ns <= few * delta.a_ns and not b.loaded():
        return "the model was already resident" if b.stage("sampling") else "no model had to be loaded"
    from_disk = _from_disk(b) if delta.delta_ns > 0 and not _from_disk(a) else ""
    if delta.delta_ns > 0 and b.startup == startup.SWITCHED and a.startup != startup.SWITCHED:
        between = b.run.startup.between if b.run.startup else None
        why = f"run {between[:8]} came between" if between else "memory was given back under pressure"
        return f"the model was loaded again because {why}{from_disk}"
    if delta.delta_ns > 0 and delta.a_ns <= few * delta.b_ns and not a.loaded():
        return f"the model had to be loaded{from_disk}"
    return f"loading the model took {'less' if delta.delta_ns < 0 else 'longer'}{from_disk}"


def _from_disk(side: Side) -> str:
    """`, read from disk this time (178 MB at 130 MB/s)`, where files came from disk and not from memory."""
    found = disk.total(side.run) or {}
    count, from_disk, ns = found.get("bytes"), found.get("disk_bytes"), found.get("ns")
    if not count or not from_disk or not ns or 2 * from_disk < count:
        return ""
    return f", read from disk this time ({size(from_disk)} at {size(from_disk * 1_000_000_000 // ns)}/s)"


def is_other_work(a: Run, b: Run) -> bool:
    """Whether the two are known to have been asked for different graphs, seeds apart."""
    hashes = [run.accepted.prompt_hash if run.accepted else None for run in (a, b)]
    return None not in hashes and hashes[0] != hashes[1]


def artifacts_alike(a: Run, b: Run) -> str | None:
    """`same picture, by hash`, or that they differ; None where either delivered nothing with a hash."""
    sides = [
        sorted((one.media or "other", one.sha256) for one in run.artifacts if _is_hashed(one))
        for run in (a, b)
    ]
    if not all(sides):
        return None
    media = {kind for side in sides for kind, _ in side}
    noun = NOUNS.get(media.pop(), "file") if len(media) == 1 else "file"
    many = "s" if max(map(len, sides)) > 1 else ""
    return f"same {noun}{many}, by hash" if sides[0] == sides[1] else f"different {noun}{many}"


def _is_hashed(artifact: Any) -> bool:
    return artifact.sha256 is not None and artifact.media != "profile" and not artifact.orphan


NOUNS = {"image": "picture", "video": "video", "audio": "sound"}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
