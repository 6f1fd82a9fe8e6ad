"""What was held fixed in a run: a closed, canonical manifest and the hash that names it."""

from __future__ import annotations

import hashlib
import math
import os
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stagexec.record.words import seed_input

MEANING: dict[str, str] = {
    "workflow_hash": "SHA-256 of the editor's workflow, without seeds, layout and titles",
    "api_prompt_hash": "SHA-256 of the API prompt, without the values of seeds",
    "selected_outputs": "node ids asked for, sorted",
    "host_version": "the host's version text",
    "host_commit": "commit of the host's checkout",
    "frontend_version": "version of the host's web interface",
    "custom_nodes_hash": "hash of the names and versions of all custom node packs",
    "model_hash": "content hash of the diffusion model or checkpoint; a list when there are several",
    "vae_hash": "content hash of the VAE file, when it is a file of its own",
    "text_encoder_hash": "content hash of the text encoder; a list when there are several",
    "lora_hashes": "content hashes of the LoRA files with their strengths, in order of use",
    "gpu_uuid": "the device's own id",
    "gpu_model": "the device's name",
    "gpu_vram_bytes": "memory of the device",
    "gpu_power_limit_mw": "enforced power limit, milliwatts",
    "gpu_clocks_policy": "locked or application clocks, as the driver tells; free when none are set",
    "cpu": "model name and number of logical cores",
    "ram_bytes": "memory of the machine, or of the container's limit",
    "driver": "version of the device driver",
    "cuda": "version of CUDA (or ROCm) that torch was built for",
    "torch": "torch's version",
    "python": "Python's version",
    "os": "operating system, release and machine",
    "precision": "dtypes of weights and of compute, per model, as they are at run time",
    "quantization": "format of quantised weights, per model, as they are at run time",
    "attention_backend": "the attention function in use, as it is at run time",
    "compile_mode": "how the model was compiled, as it is at run time",
    "vram_mode": "the host's memory mode, dynamic memory included",
    "cache_mode": "the host's cache between prompts",
    "timing_mode": "baseline, events or profile",
    "executor": "native or host",
    "width": "pixels",
    "height": "pixels",
    "frames": "number of frames of a video; 1 for an image",
    "fps": "frames a second of the delivered video",
    "batch": "images or videos made together",
    "steps": "sampling steps; a list when there are several samplers",
    "sampler": "sampler names, in the same way",
    "scheduler": "scheduler names, in the same way",
    "cfg": "guidance scales, in the same way",
    "vae_tiling": "tile sizes of a tiled decode or encode; false when not tiled",
    "preview_mode": "how previews are made during sampling",
    "postprocess_chain": "class names of the nodes that work on what a sampler or a decoder made, in order",
    "ffmpeg_version": "version of the encoder program or library",
    "ffmpeg_build": "its build configuration, or a hash of it",
    "codec": "encoder name",
    "preset": "encoder preset",
    "quality": "rate control: crf, bit rate or quality, as text",
    "pixel_format": "pixel format of the encoded stream",
    "filters": "filter graph given to the encoder",
    "container": "container format of the delivered file",
    "encoder_threads": "threads given to the encoder; 0 when left to it",
    "hwaccel": "hardware encoder or decoder in use",
    "temp_storage": "device or mount that temporary files are written to",
    "final_storage": "device or mount that artifacts are delivered to",
    "filesystem": "file system of the final storage",
    "delivery_semantics": "what a delivered file has been through: written, synced, renamed, uploaded",
    "queue_policy": "order in which the queue gives out runs",
    "concurrency": "runs that may execute at the same time",
}
"""Every field of a condition and what it holds. Closed: a field more or less is another format."""

FIELDS: tuple[str, ...] = tuple(MEANING)

NOT_RECORDED = "not recorded in this version"

SEED_NAMES = frozenset(("seed", "noise_seed"))
SEED_SUFFIX = "_seed"

AFTER_GENERATE = frozenset(("fixed", "increment", "decrement", "randomize"))
"""What the editor writes after the value of a seed widget: the only sign of it in a workflow."""

OUTSIDE_PROMPT = frozenset(("_meta", "is_changed"))
"""Keys of a node of the API prompt that do not say what it computes: titles, and the host's own notes."""

DEEPEST = 64
"""Nesting below which a value that JSON cannot hold is named by its type."""

Seeds = list[list[Any]]
"""`[node id, input name, value]` of each seed left out of a hash."""


class Manifest(msgspec.Struct, frozen=True):
    """All FIELDS, normalised, and for each that is null the reason."""

    fields: dict[str, Any]
    reasons: dict[str, str]


def manifest(fields: Mapping[str, Any], reasons: Mapping[str, str], strict: bool = False) -> Manifest:
    """A full manifest. A field not given, or None, is null with its reason.

    A null without a reason gets NOT_RECORDED, or with `strict` raises ValueError. ValueError too for
    a name that is not one of FIELDS. Reasons are hashed with the rest, so they must be fixed words:
    no paths, addresses or times. A reason for a field that has a value is dropped.
    """
    strange = sorted({*fields, *reasons} - MEANING.keys())
    if strange:
        raise ValueError(f"not a field of a condition: {', '.join(strange)}")
    values = {name: _plain(fields.get(name)) for name in FIELDS}
    nulls = [name for name in FIELDS if values[name] is None]
    unexplained = [name for name in nulls if not reasons.get(name)]
    if strict and unexplained:
        raise ValueError(f"null without a reason: {', '.join(unexplained)}")
    return Manifest(values, {name: reasons.get(name) or NOT_RECORDED for name in nulls})


def canonical(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no spaces, UTF-8. What JSON cannot hold is named by its type."""
    try:
        return msgspec.json.encode(value, order="deterministic", enc_hook=_type_name)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return msgspec.json.encode(_plain(value), order="deterministic")


def condition_id(whole: Manifest) -> str:
    """SHA-256 of the canonical manifest, 64 hex digits: also that of the file that `store` writes."""
    return hashlib.sha256(canonical(whole)).hexdigest()


def store(folder: Path, whole: Manifest) -> Path:
    """Write `<folder>/conditions/<condition_id>.json` unless it is there whole; `folder` is the ledger.

    A reader never sees half a file. Raises OSError.
    """
    data = canonical(whole)
    target = folder / "conditions" / f"{hashlib.sha256(data).hexdigest()}.json"
    if _is_whole(target, data):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f".{target.stem}.{uuid.uuid4().hex}")
    try:
        scratch.write_bytes(data)
        os.replace(scratch, target)
    except OSError:
        scratch.unlink(missing_ok=True)
        if not _is_whole(target, data):  # else another process was first, and held it open on Windows
            raise
    return target


def _is_whole(target: Path, data: bytes) -> bool:
    try:
        return target.stat().st_size == len(data)
    except FileNotFoundError:
        return False


def api_prompt_hash(prompt: Mapping[str, Any]) -> tuple[str, Seeds]:
    """SHA-256 of the API prompt without seeds' values, and those seeds. Linear; never raises for its values.

    Node ids count, the order of keys does not. Titles (`_meta`) and `is_changed` do not count.
    """
    seeds: Seeds = []
    stripped: dict[str, Any] = {}
    for node_id, node in prompt.items():
        if not isinstance(node, Mapping):
            stripped[node_id] = node
            continue
        kept = node
        if not OUTSIDE_PROMPT.isdisjoint(node):
            kept = {key: value for key, value in node.items() if key not in OUTSIDE_PROMPT}
        inputs = kept.get("inputs")
        if isinstance(inputs, Mapping):
            names = [name for name, value in inputs.items() if type(value) is int and _is_seed(name)]
            if names:
                kept = {**kept, "inputs": {**inputs, **dict.fromkeys(names)}}
                seeds.extend([str(node_id), seed_input(name), inputs[name]] for name in names)
        stripped[node_id] = kept
    return hashlib.sha256(canonical(stripped)).hexdigest(), seeds


def _is_seed(name: Any) -> bool:
    return name in SEED_NAMES or (isinstance(name, str) and name.endswith(SEED_SUFFIX))


def workflow_hash(extra_data: Any, seeds: Iterable[list[Any]] = ()) -> tuple[str | None, str | None]:
    """`(SHA-256, None)` of the editor's workflow in a prompt's extra data, else `(None, reason)`.

    Counted are nodes (id, type, mode, inputs, widget values), links and subgraphs; not layout, titles
    or view. Seeds are not counted either: widget values have no names, so a seed is a number followed
    by what becomes of it after the run, or the first equal to one of the prompt's `seeds` in its node.
    """
    info = extra_data.get("extra_pnginfo") if isinstance(extra_data, Mapping) else None
    workflow = info.get("workflow") if isinstance(info, Mapping) else None
    if not isinstance(workflow, Mapping):
        return None, "no workflow came with the prompt"
    drawn: dict[str, set[int]] = {}
    for node_id, _, value in seeds:
        # Nodes of a subgraph are "outer:inner" in the prompt and "inner" in its definition.
        drawn.setdefault(str(node_id).rpartition(":")[2], set()).add(value)
    definitions = workflow.get("definitions")
    graphs = definitions.get("subgraphs") if isinstance(definitions, Mapping) else None
    parts = [_graph_core(graph, drawn) for graph in (workflow, *(graphs or ())) if isinstance(graph, Mapping)]
    return hashlib.sha256(canonical(parts)).hexdigest(), None


def _graph_core(graph: Mapping[str, Any], drawn: Mapping[str, set[int]]) -> dict[str, Any]:
    nodes = graph.get("nodes")
    cores = [_node_core(node, drawn) for node in nodes or () if isinstance(node, Mapping)]
    cores.sort(key=lambda core: str(core["id"]))  # the editor's drawing order changes with every click
    # The outermost graph's id names a tab of the editor; a definition's id is what its instances refer to.
    name = graph.get("id") if "inputNode" in graph else None
    return {"id": name, "nodes": cores, "links": graph.get("links")}


def _node_core(node: Mapping[str, Any], drawn: Mapping[str, set[int]]) -> dict[str, Any]:
    inputs = node.get("inputs")
    slots = [[slot.get("name"), slot.get("link")] for slot in inputs or () if isinstance(slot, Mapping)]
    values = _without_seeds(node.get("widgets_values"), drawn.get(str(node.get("id")), frozenset()))
    core = {key: node.get(key) for key in ("id", "type", "mode")}
    return core | {"inputs": slots, "widgets_values": values}


def _without_seeds(values: Any, drawn: Iterable[int]) -> Any:
    if isinstance(values, Mapping):
        return {
            name: None if type(value) is int and _is_seed(name) else value for name, value in values.items()
        }
    if not isinstance(values, list):
        return values
    kept, nulled = list(values), set()
    for place in range(len(kept) - 1):
        follows = kept[place + 1]
        if type(kept[place]) is int and isinstance(follows, str) and follows in AFTER_GENERATE:
            nulled.add(kept[place])
            kept[place] = kept[place + 1] = None
    for seed in set(drawn) - nulled:
        if seed in kept:
            kept[kept.index(seed)] = None
    return kept


def _type_name(value: Any) -> str:
    kind = type(value)
    return f"<{kind.__module__}.{kind.__qualname__}>"


def _plain(value: Any, depth: int = 0) -> Any:
    """`value` in JSON's own types: 7.0 is 7, NaN is text, sets are sorted, keys are text."""
    if depth < DEEPEST:
        if isinstance(value, Mapping):
            return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [_plain(item, depth + 1) for item in value]
        if isinstance(value, set | frozenset):
            return sorted((_plain(item, depth + 1) for item in value), key=canonical)
    return _scalar(value)


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() else value
    return str(value) if isinstance(value, os.PathLike) else _type_name(value)


def _key(key: Any) -> str:
    text = _scalar(key)
    return text if isinstance(text, str) else msgspec.json.encode(text).decode()
