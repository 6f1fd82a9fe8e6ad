"""The closed sets of the ledger: stages, parts, outcomes, causes, and the words that go with them."""

from __future__ import annotations

OPEN_STAGE = "<open stage>"
"""Marks a seam whose work can be of any stage: it names the time, and the stage stays as it is."""

NODE_CLASS = "<node class>"
"""Marks a stage whose part is the class name of the node, an open set by nature."""

STAGES: dict[str, tuple[str, ...]] = {
    "queue_wait": (),
    "executor_prepare": ("plan", "cache_resolve", "cleanup"),
    "model_load_residency": ("read", "build", "upload", "offload"),
    "conditioning": ("tokenize", "encode", "vae_encode", "control"),
    "sampling": ("step", "compile", "preview"),
    "vae_decode": ("decode", "tiled", "tiled_retry"),
    "native_materialize": ("transfer", "write"),
    "postprocess": (NODE_CLASS,),
    "encode_mux": ("encode", "mux"),
    "delivery_commit": ("fsync", "rename", "copy", "upload", "verify"),
    "external_wait": (),
    "node_other": (NODE_CLASS,),
    "executor_overhead": ("inputs", "messages", "cache", "eviction", "gc", "host_cleanup"),
}
"""Every stage, in the order of a run's life, with its parts. One is open per run at any instant."""

HOST_STAGES = frozenset(
    {"queue_wait", "executor_prepare", "executor_overhead", "external_wait", "delivery_commit"}
)
"""Stages in which no node works on the device's worker; the others are what a wasted visit wastes."""

COMPUTE_STAGES = frozenset(
    {"conditioning", "sampling", "vae_decode", "postprocess", "encode_mux", "node_other"}
)
"""Stages that make something: a run's time outside of them is its non-compute share. What a node does that
belongs to no stage counts as making."""

OUTCOMES = (
    "success",
    "success_empty",
    "success_unverified",
    "partial",
    "failed",
    "cancelled",
    "lost",
)

CAUSES = (
    "oom",
    "node_exception",
    "interrupted_by_node",
    "user_cancel",
    "blocked",
    "cycle",
    "missing_node",
    "worker_escape",
    "encode_failed",
    "delivery_failed",
    "artifact_missing",
    "artifact_corrupt",
    "artifact_nonfinite",
    "disk_full",
    "process_died",
    "process_stopped",
    "worker_died",
)

ORIGINS = ("seam", "table", "type", "none")
"""Where a node's stage comes from, most certain first."""

VISIT_KINDS = ("executed", "cached", "blocked", "failed", "pending")

ARTIFACT_STATES = ("verified", "unverified", "missing", "corrupt", "nonfinite", "overwritten")

TIMING_MODES = ("baseline", "events", "profile")

EXECUTORS = ("native", "host")

SEAM_STATES = ("installed", "absent", "refused", "lost")

SEAM_KINDS = ("stage", "replace", "probe")


def check(stage: str, part: str | None) -> None:
    """Raise ValueError unless `stage` is a stage and `part` is one of its parts (or None)."""
    if stage not in STAGES:
        raise ValueError(f"unknown stage {stage!r}; the stages are: {', '.join(STAGES)}")
    parts = STAGES[stage]
    if part is None or NODE_CLASS in parts or part in parts:
        return
    known = ", ".join(parts) if parts else "none"
    raise ValueError(f"unknown part {part!r} of stage {stage!r}; its parts are: {known}")
