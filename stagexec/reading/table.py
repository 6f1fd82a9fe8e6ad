"""A run as one flat row: what the index, Parquet files and the report verbs have in common."""

from __future__ import annotations

from typing import Any

import msgspec

from stagexec import stages as sets
from stagexec.reading import derive, named, rows, shares, startup
from stagexec.reading.runs import Run

TEXT, WHOLE, TRUTH = "VARCHAR", "BIGINT", "BOOLEAN"

FACTS: dict[str, str] = {
    "run_id": TEXT,
    "prompt_id": TEXT,
    "condition_id": TEXT,
    "prompt_hash": TEXT,
    "outcome": TEXT,
    "cause": TEXT,
    "error_stage": TEXT,
    "error_node": TEXT,
    "error_class": TEXT,
    "error_pack": TEXT,
    "startup_class": TEXT,
    "startup_raw": TEXT,
    "startup_between": TEXT,
    "started_ns": WHOLE,
    "models": TEXT,
    "executor": TEXT,
    "timing": TEXT,
    "host_version": TEXT,
    "hostname": TEXT,
    "accepted_wall_ns": WHOLE,
    "total_ns": WHOLE,
    "device_ns": WHOLE,
    "device_reason": TEXT,
    "validate_ns": WHOLE,
    "wasted_ns": WHOLE,
    "wasted_kind": TEXT,
    "cancel_latency_ns": WHOLE,
    "cancel_had_effect": TRUTH,
    "delivered": WHOLE,
    "executed_visits": WHOLE,
    "lower_bound": TRUTH,
    "warmup": TRUTH,
    "pictures": WHOLE,
    "unnamed_ns": WHOLE,
}
"""Column -> DuckDB type. Times in ns. `delivered`: artifacts that are there, our own traces apart, and
messages that reached a client; `cancel_had_effect`: null without a cancel;
`executed_visits`: visits that executed their node, which runs of one condition share unless the cache had
more for one of them; `lower_bound`: the host pages weights in while it samples, so model_load_residency is
more than it shows. `warmup`: not in statistics. `pictures`: see shares.pictures.
`unnamed_ns`: what of the total has no name, see named.parts; null in Parquet files of earlier releases.
`startup_raw`: what the writer said; `startup_between`: the run that came between; `started_ns`: start of
execution on the process's clock; `models`: startup.Facts as JSON."""

STAGE_COLUMNS: dict[str, str] = {stage: f"{stage}_ns" for stage in sets.STAGES}
"""stage -> column; null where the run was never in the stage."""

OTHER = "other_stages"
"""JSON object of stages that this version does not know; null without any."""

COLUMNS: dict[str, str] = {**FACTS, **dict.fromkeys(STAGE_COLUMNS.values(), WHOLE), OTHER: TEXT}

STAGE_NAMES = (*STAGE_COLUMNS.values(), OTHER)

PLACE: dict[str, str] = {"file": TEXT, "first_byte": WHOLE, "end_byte": WHOLE}
"""Where the run's lines lie in the ledger; in the index only."""

KEPT = ("verified", "unverified")


def is_delivered(artifact: Any) -> bool:
    """Whether an artifact is there for the person who asked: a profile's trace is ours."""
    return artifact.state in KEPT and not artifact.orphan and artifact.media != "profile"


def delivered_outputs(run: Run) -> int:
    """Artifacts that are there, and messages that reached a client."""
    sent = (one["reached"] for one in derive.messages(run) if one["delivered"])
    return sum(map(is_delivered, run.artifacts)) + int(sum(sent))


def packs(run: Run) -> dict[str, str]:
    """Class name -> node pack, as far as the journal tells."""
    return run.identity.packs if run.identity is not None else {}


def flat(run: Run) -> dict[str, Any]:
    """The row of a run: every one of COLUMNS."""
    unnamed_ns = named.parts(run)["unnamed_ns"]
    summary = rows.summary(run, unnamed_ns)
    error = run.error
    more = {
        "prompt_hash": run.accepted.prompt_hash if run.accepted else None,
        "startup_raw": run.started.startup_class if run.started else None,
        "startup_between": run.startup.between if run.startup else None,
        "started_ns": rows.started_ns(run),
        "models": startup.cell(startup.facts_of(run)),
        "error_class": error.node_class if error else None,
        "error_pack": packs(run).get(error.node_class or "") if error else None,
        "hostname": run.process.start.hostname if run.process.start else None,
        "accepted_wall_ns": rows.accepted_wall_ns(run),
        "delivered": delivered_outputs(run),
        "executed_visits": sum(visit.kind == "executed" for visit in run.visits()),
        "lower_bound": any(m.name == "dynamic_vram" for m in run.marks),
        "unnamed_ns": rows.fit(unnamed_ns),
    }
    found = {name: more[name] if name in more else summary[name] for name in FACTS}
    return {**found, **dict(zip(STAGE_NAMES, stage_cells(summary["stages"]), strict=True))}


def stage_cells(stages: dict[str, int]) -> list[Any]:
    """The cells of {stage: ns}: one for each of STAGES, then the others as JSON."""
    cells: list[Any] = list(map(stages.get, sets.STAGES))
    other = (
        {}
        if stages.keys() <= sets.STAGES.keys()
        else {s: n for s, n in stages.items() if s not in sets.STAGES}
    )
    cells.append(msgspec.json.encode(other).decode() if other else None)
    return cells


def stages_of(row: dict[str, Any]) -> dict[str, int]:
    """{stage: ns} of a row."""
    found = {stage: row[column] for stage, column in STAGE_COLUMNS.items() if row[column] is not None}
    return {**found, **(msgspec.json.decode(row[OTHER]) if row[OTHER] else {})}


SUMMARY = (
    "run_id", "prompt_id", "condition_id", "outcome", "cause", "error_stage", "error_node", "startup_class",
    "startup_evidence", "executor", "timing", "accepted_wall", "total_ns", "device_ns", "device_reason",
    "validate_ns", "stages", "wasted_ns", "wasted_kind", "cancel_latency_ns", "cancel_had_effect",
    "host_version", "warmup", "named_share", "pictures", "pictures_per_s", "non_compute_share",
)  # fmt: skip


def summary_of(row: dict[str, Any]) -> dict[str, Any]:
    """The object of `runs --json` of a row: what `rows.summary` gives for the run itself."""
    stages, facts = stages_of(row), startup.from_cell(row["models"])
    derived = {
        "accepted_wall": rows.iso(row["accepted_wall_ns"]),
        "stages": stages,
        "named_share": named.share_of(row["total_ns"], row["unnamed_ns"]),
        "startup_evidence": startup.evidence(row["startup_class"], row["startup_between"], facts),
        **shares.of(stages, row["total_ns"], row["pictures"]),
    }
    return {name: derived[name] if name in derived else row[name] for name in SUMMARY}
