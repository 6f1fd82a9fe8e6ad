"""What a prompt itself holds fixed: sizes, samplers, model files, encoder settings, its chain of work."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from stagexec.delivery import filters
from stagexec.delivery.vocabulary import FILTER_WORDS, SETTINGS
from stagexec.record import live
from stagexec.record.fingerprint import is_link
from stagexec.record.words import hidden

NAMES: dict[str, tuple[str, ...]] = {
    "width": ("width",),
    "height": ("height",),
    "frames": ("length", "frames", "num_frames", "video_frames", "frame_count"),
    "fps": ("fps", "frame_rate"),
    "batch": ("batch_size",),
    "steps": ("steps",),
    "sampler": ("sampler_name", "sampler"),
    "scheduler": ("scheduler",),
    "cfg": ("cfg", "guidance", "cfg_scale"),
}
"""Field -> names that the host's nodes and packs give such an input."""

ENCODER: dict[str, tuple[str, ...]] = {
    "codec": ("codec",),
    "preset": ("preset",),
    "quality": ("quality", "crf", "bitrate"),
    "pixel_format": ("pixel_format", "pix_fmt"),
    "filters": ("filters",),
    "container": ("container", "format"),
    "encoder_threads": ("threads",),
    "hwaccel": ("hwaccel",),
}
"""The same of nodes that encode."""

LISTED = frozenset(("sampler", "scheduler", "codec", "pixel_format", "container", "hwaccel"))
"""Fields in which a choice is kept that the node's class lists. Presets are lists that people add to."""

WORD = re.compile(r"[\w.+:/()-]{1,64}(?: [\w.+:/()-]{1,24}){0,3}", re.ASCII)
"""What a choice can look like."""

FILE_KINDS = ("input", "output", "temp", "user")

TILE_NAMES = ("tile_size", "overlap", "temporal_size", "temporal_overlap")

FIELD_OF: dict[str, str] = {
    "loras": "lora_hashes",
    "vae": "vae_hash",
    "vae_approx": "vae_hash",
    "text_encoders": "text_encoder_hash",
    "clip": "text_encoder_hash",
}
"""Kind of the host's model folder -> field; every other kind is the model's."""

FOLDER_BY_INPUT: dict[str, str] = {
    "ckpt_name": "checkpoints",
    "unet_name": "diffusion_models",
    "vae_name": "vae",
    "lora_name": "loras",
    "control_net_name": "controlnet",
    "style_model_name": "style_models",
    "clip_name": "text_encoders",
    "clip_name1": "text_encoders",
    "clip_name2": "text_encoders",
    "clip_name3": "text_encoders",
    "clip_name4": "text_encoders",
}

ENDINGS = (".safetensors", ".sft", ".ckpt", ".pt", ".pt2", ".pth", ".bin", ".pkl", ".gguf", ".onnx")

NO_INPUT = "no node of the prompt has such an input"
BY_LINK = "given by a link, not by a constant"
NO_ENCODER = "nothing is encoded in this prompt"
LEFT_TO_ENCODER = "left to the encoder"
NOT_FOUND = "a file that the prompt names was not found"


class ModelFile(NamedTuple):
    """A model file that the prompt names. `strengths`: of a LoRA."""

    field: str
    path: str
    strengths: tuple[Any, ...]


class PromptFields(NamedTuple):
    """What was found: values, reasons for what was not, the model files, and what names them."""

    fields: dict[str, Any]
    reasons: dict[str, str]
    files: list[ModelFile]
    lost: set[str]
    """Fields whose file was not found."""
    loaders: list[Any]
    encodes: bool = False
    by_program: bool = False
    """Encoded by the ffmpeg program that our node starts, not by a library in this process."""
    delivers: bool = False


StageOf = Callable[[str], str]
StageAt = Callable[[Mapping[str, Mapping[str, Any]], str], str]
Choices = Mapping[str, Mapping[str, frozenset[str]]]


def read(
    prompt: Mapping[str, Any],
    outputs: Iterable[str],
    stage_of: StageOf,
    choices: Choices | None = None,
    stage_at: StageAt | None = None,
) -> PromptFields:
    """Look through the nodes that `outputs` depend on. `stage_of` gives the stage of a class name, `stage_at`
    that of a node (by its id) among those: work on pictures is judged by its place, as a visit of it is.
    Without it, by its class alone.

    Unless text is recorded, what is found are numbers, what the host lists as a `choices` (class name ->
    input -> texts), an encoder's own words, and digests of all the rest.
    """
    nodes = ancestors(prompt, outputs)
    stages = {node_id: stage_of(str(node.get("class_type"))) for node_id, node in nodes.items()}
    found = PromptFields({}, {}, [], set(), [])
    for field, names in NAMES.items():
        _constants(found, field, names, nodes.values(), NO_INPUT, choices)
    encoders = [node for node_id, node in nodes.items() if stages[node_id] == "encode_mux"]
    for field, names in ENCODER.items():
        _constants(found, field, names, encoders, LEFT_TO_ENCODER if encoders else NO_ENCODER, choices)
    if "frames" not in found.fields and not encoders and found.reasons["frames"] == NO_INPUT:
        found.fields["frames"] = 1
    found.fields["vae_tiling"] = tiling(nodes.values())
    work = [one for one in nodes if stages[one] == "postprocess"]
    if stage_at is not None:
        work = [one for one in work if stage_at(nodes, one) == "postprocess"]
    found.fields["postprocess_chain"] = [str(nodes[one].get("class_type")) for one in work]
    _files(found, nodes)
    classes = {str(node.get("class_type")) for node in nodes.values()}
    return found._replace(
        encodes=bool(encoders),
        by_program="StagexecEncodeVideo" in classes,
        delivers="StagexecDeliver" in classes,
    )


def ancestors(prompt: Mapping[str, Any], outputs: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """The nodes that `outputs` depend on, each after those it takes inputs from; ties by node id."""
    order: dict[str, Mapping[str, Any]] = {}
    waiting = [(node_id, False) for node_id in sorted(map(str, outputs), reverse=True)]
    seen: set[str] = set()
    while waiting:
        node_id, done = waiting.pop()
        node = prompt.get(node_id)
        if not isinstance(node, Mapping):
            continue
        if done:
            order[node_id] = node
        elif node_id not in seen:
            seen.add(node_id)
            waiting.append((node_id, True))
            linked = {value[0] for value in _inputs(node).values() if is_link(value)}
            waiting += [(one, False) for one in sorted(linked, reverse=True) if one not in seen]
    return order


def _inputs(node: Mapping[str, Any]) -> Mapping[str, Any]:
    inputs = node.get("inputs")
    return inputs if isinstance(inputs, Mapping) else {}


def _constants(
    found: PromptFields,
    field: str,
    names: tuple[str, ...],
    nodes: Iterable[Mapping[str, Any]],
    reason: str,
    choices: Choices | None,
) -> None:
    """One value, or a list in the order of work when there are several different ones."""
    values: list[Any] = []
    linked = False
    for node in nodes:
        inputs = _inputs(node)
        listed = (choices or {}).get(str(node.get("class_type")), {})
        for name in names:
            if name not in inputs:
                continue
            value = inputs[name]
            if is_link(value):
                linked = True
                continue
            if not live.record_text:
                value = without_text(field, value, listed.get(name, frozenset()))
            if value not in values and value != "":
                values.append(value)
    if values:
        found.fields[field] = values[0] if len(values) == 1 else values
    else:
        found.reasons[field] = BY_LINK if linked else reason


def without_text(field: str, value: Any, listed: frozenset[str] = frozenset()) -> Any:
    """A setting with a digest in the place of what may be a person's words. `listed`: the class's choices.

    Of filters with words of their own in their options, such as `drawtext`, only the names of others stay.
    """
    if value is None or isinstance(value, (bool, int, float)) or value == "":
        return value
    if not isinstance(value, str):
        return hidden(value)
    if field == "filters":
        return _filters_without_text(value)
    if value in SETTINGS.get(field, ()) or value in _host_choices(field):
        return value
    if field in LISTED and value in listed and WORD.fullmatch(value) and not _is_file(value):
        return value
    return hidden(value)


def _filters_without_text(value: str) -> str:
    named = filters.names(value)
    words = set(re.findall(r"[^\W\d]\w*", value))
    if "'" not in value and words <= filters.HARMLESS | FILTER_WORDS:
        return value
    return " ".join([*sorted(named & filters.HARMLESS), hidden(value)])


def _host_choices(field: str) -> Iterable[str]:
    """The host's samplers and schedulers, to which packs add theirs."""
    name = {"sampler": "SAMPLERS", "scheduler": "SCHEDULERS"}.get(field)
    sampler = getattr(sys.modules.get("comfy.samplers"), "KSampler", None)
    listed: Iterable[str] = getattr(sampler, name, ()) if name is not None else ()
    return listed


def _is_file(value: str) -> bool:
    """Is it the name of a file, of which a class lists those that there are?"""
    folders = sys.modules.get("folder_paths")
    if value.lower().endswith(ENDINGS) or locate("", value)[1] is not None:
        return True
    get = getattr(folders, "get_directory_by_type", None)
    places = [get(kind) for kind in FILE_KINDS] if get is not None else []
    return any(place is not None and os.path.lexists(os.path.join(place, value)) for place in places)


def tiling(nodes: Iterable[Mapping[str, Any]]) -> Any:
    """Tile settings of nodes that decode or encode in tiles; False where none does."""
    found = [
        [
            str(node.get("class_type")),
            {n: plain_number(_inputs(node)[n]) for n in TILE_NAMES if n in _inputs(node)},
        ]
        for node in nodes
        if "tile_size" in _inputs(node) and "VAE" in str(node.get("class_type")).upper()
    ]
    return found or False


def plain_number(value: Any) -> Any:
    """A number as it is, a link as its socket's, and a digest of anything else."""
    if live.record_text or value is None or isinstance(value, (bool, int, float)):
        return value
    return "by a link" if is_link(value) else hidden(value)


def _files(found: PromptFields, nodes: Mapping[str, Mapping[str, Any]]) -> None:
    for node in nodes.values():
        inputs = _inputs(node)
        named = [
            (name, value)
            for name, value in inputs.items()
            if isinstance(value, str) and value.lower().endswith(ENDINGS)
        ]
        if not named:
            continue
        own = {name: value for name, value in inputs.items() if not is_link(value)}
        found.loaders.append([node.get("class_type"), own])
        strengths = tuple(
            plain_number(value) for name, value in sorted(own.items()) if name.startswith("strength")
        )
        for name, value in named:
            kind, path = locate(name, value)
            field = FIELD_OF.get(kind, "model_hash")
            if path is None:
                found.lost.add(field)
            else:
                found.files.append(ModelFile(field, path, strengths if field == "lora_hashes" else ()))


def locate(input_name: str, value: str) -> tuple[str, str | None]:
    """(kind of folder, path) of a model file; the path is None when the host does not find it."""
    folders = sys.modules.get("folder_paths")
    if folders is None:
        return "checkpoints", None
    table: Mapping[str, Any] = folders.folder_names_and_paths
    first = FOLDER_BY_INPUT.get(input_name)
    kinds = [
        *([first] if first is not None and first in table else []),
        *(kind for kind in table if kind != first),
    ]
    for kind in kinds:
        for folder in table[kind][0]:
            path = os.path.join(folder, value)
            if os.path.isfile(path):
                return str(kind), os.path.abspath(path)
    return first or "checkpoints", None
