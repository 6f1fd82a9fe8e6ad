"""Diagnoses of one run from evidence in the journal, each with its rule and its figures."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from stagexec import stages as sets
from stagexec.answers import first_second
from stagexec.answers.first_second import ONE_TIME_SHARE
from stagexec.answers.words import human, percent, size
from stagexec.reading import derive, device, startup
from stagexec.reading.graph import Graph
from stagexec.reading.runs import Run

FRAGMENTED, FRAGMENTED_BYTES = 0.3, 500_000_000
"""Memory that is held and not used counts from this share and size on."""

COMPUTED = frozenset(startup.CLASSES) - {startup.CACHED}

SWING = 0.25
"""A fall or rise of allocated memory counts from this share of the run's highest reading on."""

FEWEST_CYCLES = 3
RATIO_HIGH, RATIO_LOW = 1.5, 1 / 1.5
SHORTEST_NS = 1_000_000
"""Stages with less device time say nothing by their ratio."""


class Diagnosis(msgspec.Struct, kw_only=True):
    """What was found, by which rule, from which figures. `severity`: `problem`, or `note` for plain facts."""

    name: str
    severity: Literal["problem", "note"]
    says: str
    rule: str
    figures: dict[str, Any]


Rule = Callable[[Run, Sequence[Run]], list[Diagnosis]]


def diagnose(run: Run, others: Sequence[Run] = ()) -> list[Diagnosis]:
    """All that the rules find in `run`; `others` are the ledger's runs, of which the same process counts."""
    same = [one for one in others if one.process is run.process and one.started is not None]
    same.sort(key=lambda one: one.started.ts_mono_ns if one.started else 0)
    return [found for rule in RULES for found in rule(run, same)]


def model_reload(run: Run, same: Sequence[Run]) -> list[Diagnosis]:
    """The same model loaded more than once in a run, or in run after run."""
    found = []
    for key, count in loads(run).items():
        if count > 1:
            says = f"{key[1]} ({size(key[2])}) was loaded {count} times in this run"
            rule = "a model that is not resident was asked onto the device more than once in a run"
            figures = {"class": key[1], "bytes": key[2], "loads": count}
            found.append(_problem("model_reload", says, rule, figures))
    before = [one for one in same if started_ns(one) < started_ns(run)]
    if before and same_work(before[-1], run):
        again = loads(run).keys() & loads(before[-1]).keys()
        for _, name, bytes_ in sorted(again, key=str):
            says = f"{name} ({size(bytes_)}) was loaded again, as in the run before"
            rule = "a model was loaded both in this run and in the run of the same nodes before it"
            figures = {"class": name, "bytes": bytes_, "run_before": before[-1].run_id}
            found.append(_problem("model_reload_every_run", says, rule, figures))
    return found


def loads(run: Run) -> Counter[tuple[Any, str, int | None]]:
    """(identity, class, bytes) of each model that was not on the device when asked for -> how often."""
    found: Counter[tuple[Any, str, int | None]] = Counter()
    for mark in run.marks:
        if mark.name == "model_load":
            for model in (mark.detail or {}).get("models", ()):
                if not model.get("resident"):
                    found[model.get("id"), str(model.get("class")), model.get("bytes")] += 1
    return found


def memory_sawtooth(run: Run, _same: Sequence[Run]) -> list[Diagnosis]:
    """Allocated memory that falls and rises again and again: models take turns on the device."""
    columns = device.memory(run)
    readings = [value for value in columns.get("allocated_bytes", ()) if value is not None]
    most = max(readings, default=0)
    cycles = swings(readings, SWING * most) if most else 0
    if cycles < FEWEST_CYCLES:
        return []
    says = f"allocated device memory fell and rose {cycles} times by a quarter of its {size(most)} or more"
    rule = (
        f"at least {FEWEST_CYCLES} falls of {percent(SWING)} of the highest reading, each followed by a rise"
    )
    figures = {"cycles": cycles, "highest_bytes": most, "lowest_bytes": min(readings)}
    return [_problem("memory_sawtooth", says, rule, figures)]


def swings(values: Sequence[int], least: float) -> int:
    """How often `values` fall by `least` or more and then rise by `least` or more."""
    cycles, falling = 0, True
    extreme = values[0] if values else 0
    for value in values:
        if falling:
            extreme = max(extreme, value)
            if extreme - value >= least:
                falling, extreme = False, value
        else:
            extreme = min(extreme, value)
            if value - extreme >= least:
                cycles, falling, extreme = cycles + 1, True, value
    return cycles


def host_device_ratio(run: Run, _same: Sequence[Run]) -> list[Diagnosis]:
    """Stages whose host time is not their device time: work that another stage waits for, or a slow host."""
    on_device = device.times(run)
    known: Counter[str] = Counter()  # host time of the segments whose device time is known: like with like
    for (stage, _, start, end, _, _), length in zip(run.segments.rows(), on_device.segments, strict=True):
        if length is not None:
            known[stage] += end - start
    found = []
    for stage, host_ns in known.items():
        device_ns = on_device.stages.get(stage)
        if device_ns is None or device_ns < SHORTEST_NS or stage in sets.HOST_STAGES:
            continue
        ratio = host_ns / device_ns
        if RATIO_LOW < ratio < RATIO_HIGH:
            continue
        why = (
            "it waits for device work of earlier stages"
            if ratio > 1
            else "its work is awaited in a later stage"
        )
        says = f"{stage}: host {human(host_ns)}, device {human(device_ns)}; {why}"
        rule = f"host time ÷ device time of a stage outside {RATIO_LOW:.2f} to {RATIO_HIGH}"
        figures = {"stage": stage, "host_ns": host_ns, "device_ns": device_ns, "ratio": ratio}
        found.append(_note("host_device_ratio", says, rule, figures))
    return found


def one_time_cost(run: Run, same: Sequence[Run]) -> list[Diagnosis]:
    """How much of a first run's time was paid once, against the next run of the same work."""
    mine = [one for one in same if same_graph(one, run) and worked(one)]
    if len(mine) < 2:
        return []
    first = mine[0]
    # A run that had to load again what the process had says nothing about what a second run costs.
    second = next((one for one in mine[1:] if not first_second.reloaded(one)), mine[1])
    if run not in (first, second) or first_second.reloaded(second):
        return []
    if first.outcome != "success" or second.outcome != "success" or not same_work(first, second):
        return []
    found = first_second.split(first, second)
    if found.share is None:
        return []
    mostly = found.share >= ONE_TIME_SHARE
    rule = (
        f"once ÷ first against {ONE_TIME_SHARE}, on two runs that sampled as often; once: loading, compiling "
        "and the first step's excess that the second did not have"
    )
    figures = {"first": first.run_id, "second": second.run_id, **first_second.figures(found)}
    name = "one_time_cost" if mostly else "per_run_cost"
    return [_note(name, first_second.says(found), rule, figures)]


def reloaded(run: Run, same: Sequence[Run]) -> list[Diagnosis]:
    """A model that the process had, loaded again: because of one other run, or in turns all the time."""
    if not first_second.reloaded(run) or run.startup is None:
        return []
    before = [one for one in same if started_ns(one) < started_ns(run) and one.startup_class in COMPUTED]
    turns = list(itertools.takewhile(first_second.reloaded, [run, *reversed(before)]))
    spent = sum(derive.stage_times(one).get("model_load_residency", 0) for one in turns)
    between = run.startup.between
    facts = startup.facts_of(run)
    why = (
        f"because run {between[:8]} ran between" if between else "after memory was given back under pressure"
    )
    figures: dict[str, Any] = {"between": between, "runs": len(turns), "load_ns": spent}
    figures["models"] = sorted({name for _, name, _ in loads(run)})
    figures["read"] = facts.read if facts else 0
    rule = "a model was loaded that an earlier run of the process had used, and the run before had not"
    if len(turns) < 2:
        says = f"{_models(run)} loaded again {why} ({human(spent)})"
        return [_problem("model_reloaded", says, rule, figures)]
    says = (
        f"models take turns: {len(turns)} runs in a row loaded again what the process had had, "
        f"{human(spent)} in all; the last {why}"
    )
    return [_problem("model_thrash", says, f"{rule}, in one run after another", figures)]


def _models(run: Run) -> str:
    sizes = {name: bytes_ for _, name, bytes_ in loads(run)}
    told = [f"{name} ({size(bytes_)})" for name, bytes_ in sorted(sizes.items())]
    return f"{', '.join(told)} {'was' if len(told) == 1 else 'were'}" if told else "models were"


def evicted(run: Run, _same: Sequence[Run]) -> list[Diagnosis]:
    """The host gave memory back under pressure during the run."""
    spans = [(s, e) for _, part, s, e, _, _ in run.segments.rows() if part == "eviction"]
    spent = sum(end - start for start, end in spans)
    if spent < startup.EVICTED_NS:
        return []
    given = sum(_given_back(run, start, end) for start, end in spans)
    told = f" ({size(given)})" if given else ""
    says = f"evicted under RAM pressure{told}: it took {human(spent)}, and what was evicted is computed again"
    rule = "time in the part `eviction`; bytes by the process's memory before and after, where it was read"
    return [_problem("ram_eviction", says, rule, {"ns": spent, "bytes": given or None})]


def _given_back(run: Run, start: int, end: int) -> int:
    """Bytes by which the process's memory fell from the last reading before to the first after."""
    columns = device.memory(run)
    told = zip(columns.get("at_ns", ()), columns.get("rss_bytes", ()), strict=True)
    readings = [(at, value) for at, value in told if value is not None]
    before = next((value for at, value in reversed(readings) if at is not None and at <= start), None)
    after = next((value for at, value in readings if at is not None and at >= end), None)
    return 0 if before is None or after is None else max(0, int(before - after))


def fragmentation(run: Run, _same: Sequence[Run]) -> list[Diagnosis]:
    """Device memory that the allocator held and nothing used, where it held most."""
    columns = device.memory(run)
    pairs = zip(columns.get("reserved_bytes", ()), columns.get("allocated_bytes", ()), strict=True)
    known = [(held, used) for held, used in pairs if held is not None and used is not None]
    if not known:
        return []
    held, used = max(known)
    idle = held - used
    if idle < FRAGMENTED_BYTES or idle < FRAGMENTED * held:
        return []
    says = f"the allocator held {size(held)} of device memory and {size(used)} was in use: {size(idle)} idle"
    rule = f"reserved − allocated at the highest reading from {percent(FRAGMENTED)} of it on"
    figures = {"reserved_bytes": held, "allocated_bytes": used, "idle_bytes": idle}
    return [_note("fragmentation", says, rule, figures)]


def tiled_retry(run: Run, _same: Sequence[Run]) -> list[Diagnosis]:
    """A decode or encode that ran out of memory and was done again in tiles."""
    retries = [mark for mark in run.marks if mark.name == "tiled_retry"]
    if not retries:
        return []
    spent = sum(
        end - start
        for stage, part, start, end, _, _ in run.segments.rows()
        if (stage, part) == ("vae_decode", "tiled_retry")
    )
    out_of_memory = sum(mark.name == "oom_seen" for mark in run.marks)
    says = f"the VAE ran out of memory and {human(spent)} went into doing its work again in tiles"
    rule = "the host's tiles were called inside a plain decode or encode"
    figures = {"retries": len(retries), "oom_seen": out_of_memory, "tiled_retry_ns": spent}
    return [_problem("tiled_retry", says, rule, figures)]


def recompiles(run: Run, same: Sequence[Run]) -> list[Diagnosis]:
    """Graphs that torch.compile made in this run; a problem when the same work had been compiled before."""
    counts: Counter[str] = Counter()
    for mark in run.marks:
        if mark.name == "compiled":
            counts.update(mark.detail or {})
    graphs = counts["unique_graphs"]
    if not graphs:
        return []
    before = [
        one for one in same if started_ns(one) < started_ns(run) and same_graph(one, run) and worked(one)
    ]
    rule = "dynamo's count of unique graphs grew during the run"
    figures = {**counts, "runs_before": len(before)}
    if before:
        says = f"torch.compile made {graphs} graphs again, after {len(before)} runs of the same nodes"
        return [_problem("recompiled", says, f"{rule}, and the same nodes had run before", figures)]
    return [_note("compiled", f"torch.compile made {graphs} graphs in this run", rule, figures)]


def attention(run: Run, _same: Sequence[Run]) -> list[Diagnosis]:
    """Which attention function ran, call by call, beside the one asked for."""
    mark = next((one for one in run.marks if one.name == "attention"), None)
    if mark is None:
        return []
    detail = mark.detail or {}
    calls = {str(name): int(count) for name, count in (detail.get("calls") or {}).items()}
    total = sum(calls.values())
    asked = detail.get("asked")
    spoken = ", ".join(f"{name} {count}×" for name, count in sorted(calls.items(), key=lambda one: -one[1]))
    figures = {"calls": calls, "configured": detail.get("configured"), "asked": asked}
    other = total - calls.get(asked, 0) if asked is not None else 0
    if other:
        says = f"{asked} was asked for, and {percent(other / total)} of the calls ran another: {spoken}"
        rule = "calls of another attention function than the command line asks for"
        return [_problem("attention_other", says, rule, figures)]
    return [
        _note(
            "attention", f"calls by function: {spoken}", "calls counted outside of compiled graphs", figures
        )
    ]


def vae_dtype(run: Run, _same: Sequence[Run]) -> list[Diagnosis]:
    """The dtype of the VAE's weights as they decoded."""
    used: Counter[str] = Counter()
    for mark in run.marks:
        if mark.name == "model_load" and mark.stage_id == "vae_decode":
            used.update(str(m["dtype"]) for m in (mark.detail or {}).get("models", ()) if m.get("dtype"))
    if not used:
        return []
    rule = "dtype of the weights of the model that a decode asked onto the device"
    return [_note("vae_dtype", f"the VAE decoded in {', '.join(sorted(used))}", rule, {"dtypes": dict(used)})]


def nonfinite(run: Run, _same: Sequence[Run]) -> list[Diagnosis]:
    """NaN or infinite values in what was delivered, and the node that made the first."""
    bad = [one for one in run.artifacts if one.state == "nonfinite"]
    if not bad:
        return []
    nodes = sorted({one.first_bad for one in bad if one.first_bad is not None})
    classes = Graph(run).class_of
    times = derive.visit_times(run)
    sampled = {v.node_id for v in run.visits() if v.visit in times and "sampling" in times[v.visit].stages}
    first = [f"node {node} ({classes.get(node)})" for node in nodes]
    latents = [node for node in nodes if node in sampled]
    says = (
        f"{len(bad)} files hold NaN or infinite values, first made by {', '.join(first) or 'an unknown node'}"
    )
    if latents:
        says += ": the latents were bad before they were decoded"
    rule = "tensors of the files are not finite; the first node whose outputs were not, in order of execution"
    figures = {"files": len(bad), "first_bad": nodes, "latents": latents}
    return [_problem("nonfinite_latents" if latents else "nonfinite", says, rule, figures)]


RULES: tuple[Rule, ...] = (
    model_reload,
    reloaded,
    evicted,
    memory_sawtooth,
    fragmentation,
    host_device_ratio,
    one_time_cost,
    tiled_retry,
    recompiles,
    attention,
    vae_dtype,
    nonfinite,
)
"""In the order in which `show` prints them."""


def same_graph(a: Run, b: Run) -> bool:
    """Were both asked for the same nodes and values, seeds apart, in the same timing mode?"""
    one, two = a.accepted, b.accepted
    if one is None or two is None or one.prompt_hash is None or a.timing != b.timing:
        return False
    return one.prompt_hash == two.prompt_hash


def same_work(a: Run, b: Run) -> bool:
    """Did both sample as often? Loaders may come from the cache: that is a one-time cost too."""
    return same_graph(a, b) and samplings(a) == samplings(b) > 0


def worked(run: Run) -> bool:
    """Did it sample at all, rather than take everything from the cache?"""
    return samplings(run) > 0


def samplings(run: Run) -> int:
    """Visits that executed and were in `sampling`, whatever their node's class stands for."""
    times = derive.visit_times(run)
    executed = (v.visit for v in run.visits() if v.kind == "executed")
    return sum(number in times and "sampling" in times[number].stages for number in executed)


def started_ns(run: Run) -> int:
    """When execution began; 0 when it never did."""
    return run.started.ts_mono_ns if run.started else 0


def _problem(name: str, says: str, rule: str, figures: dict[str, Any]) -> Diagnosis:
    return Diagnosis(name=name, severity="problem", says=says, rule=rule, figures=figures)


def _note(name: str, says: str, rule: str, figures: dict[str, Any]) -> Diagnosis:
    return Diagnosis(name=name, severity="note", says=says, rule=rule, figures=figures)
