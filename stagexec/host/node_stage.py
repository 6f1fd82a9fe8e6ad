"""Which stage a node class stands for: by the tables, else by its input and output types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stagexec.host.tables import NodeRow
from stagexec.record import safe
from stagexec.record.guard import guarded

Stage = tuple[str, str | None]
Answer = tuple[str, str | None, str]

VALUES = frozenset(
    {"INT", "FLOAT", "STRING", "BOOLEAN", "NUMBER", "COMBO", "COLOR", "SEED", "ARRAY", "DICT", "LIST"}
    | {"CURVE", "HISTOGRAM", "FLOATS", "BOUNDING_BOX", "BBOX", "MASK", "*"}
    | {"COMFY_MATCHTYPE_V3", "COMFY_AUTOGROW_V3", "COMFY_DYNAMICCOMBO_V3"}
)
"""Plain values, and masks, which are made and combined on the host in no time worth a stage."""

SAMPLER_SETUP = frozenset({"SAMPLER", "SIGMAS", "NOISE", "GUIDER"})
PIXELS = frozenset({"IMAGE", "VIDEO", "AUDIO"})
TENSORS = PIXELS | {"LATENT"}
DECODED = PIXELS | {"VOXEL", "SPLAT", "MESH"}
LOADED = frozenset(
    {"MODEL", "CLIP", "VAE", "CLIP_VISION", "CONTROL_NET", "STYLE_MODEL", "GLIGEN", "UPSCALE_MODEL"}
    | {"MODEL_PATCH", "AUDIO_ENCODER", "PHOTOMAKER", "INTERP_MODEL", "BACKGROUND_REMOVAL"}
    | {"OPTICAL_FLOW", "LORA_MODEL", "IPADAPTER", "INSIGHTFACE"}
)
ENCODED = ("CLIP_VISION_OUTPUT", "AUDIO_ENCODER_OUTPUT")


@dataclass(frozen=True)
class Shape:
    """What a node class says of itself. Types are upper-case words; a list of choices is COMBO."""

    name: str
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    is_output: bool = False
    is_remote: bool = False
    choices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """What the class lists for each input that is a choice."""

    def takes(self, *types: str) -> bool:
        """Does an input, required or optional, have one of `types`?"""
        return any(one in types for one in self.inputs.values())

    def gives(self, *types: str) -> bool:
        """Does an output have one of `types`?"""
        return any(one in types for one in self.outputs)

    def takes_vae(self) -> bool:
        """Does an input hold a VAE, a pack's own kind included?"""
        return any("VAE" in one for one in self.inputs.values())

    def takes_model(self) -> bool:
        """Does an input hold a model, or a guider that holds one?"""
        return any(one == "GUIDER" or one.endswith("MODEL") for one in self.inputs.values())

    def has(self, *names: str) -> bool:
        """Is there an input of each of these names?"""
        return all(name in self.inputs for name in names)


class NodeStages:
    """Answers for node classes, asked once per class object; `table` comes from `tables.load().nodes`."""

    def __init__(self, table: Mapping[str, NodeRow]) -> None:
        self.table = table
        self._known: dict[tuple[str, int], tuple[Any, Answer]] = {}
        self.choices: dict[str, Mapping[str, frozenset[str]]] = {}
        """Class name -> what it lists for its inputs, of classes that were asked for their types."""

    def stage_of(self, class_name: str, class_def: Any) -> Answer:
        """(stage, part, origin) of a node class; origin is `table`, `type` or `none`.

        Never raises: a class whose types cannot be had is `node_other`, origin `none`.
        """
        key = (class_name, id(class_def))
        known = self._known.get(key)
        if known is None:
            known = (
                class_def,
                self._ask(class_name, class_def),
            )  # the class is kept, so its id stays its own
            self._known[key] = known
        return known[1]

    def _ask(self, class_name: str, class_def: Any) -> Answer:
        row = self.table.get(class_name)
        if row is not None:
            return row.stage, row.part, "table"
        shape = shape_of(class_name, class_def)
        if shape is not None:
            self.choices[class_name] = shape.choices
        found = by_type(shape) if shape is not None else None
        return (*found, "type") if found is not None else ("node_other", class_name, "none")


@guarded
def shape_of(class_name: str, class_def: Any) -> Shape | None:
    """The shape of a V1 or V3 node class, from INPUT_TYPES() (called once) and RETURN_TYPES."""
    inputs: dict[str, str] = {}
    choices: dict[str, frozenset[str]] = {}
    # A question of our own, beside the host's: the node's own fault is the host's to report, if it matters.
    groups = safe.ask(None, _input_types, class_def) or {}
    for group in ("required", "optional"):
        for name, spec in dict(groups.get(group) or {}).items():
            inputs[name] = _type_name(spec[0] if isinstance(spec, (tuple, list)) and spec else spec)
            if inputs[name] == "COMBO":
                choices[name] = _choices(spec)
    return Shape(
        class_name,
        inputs,
        tuple(_type_name(one) for one in getattr(class_def, "RETURN_TYPES", None) or ()),
        bool(getattr(class_def, "OUTPUT_NODE", False)),
        bool(getattr(class_def, "API_NODE", False)),
        choices,
    )


def _choices(spec: Any) -> frozenset[str]:
    """The texts that a choice lists: as a list in place of its type, or as an option beside it."""
    kind, options = (*spec, None, None)[:2] if isinstance(spec, (tuple, list)) else (spec, None)
    listed = (
        kind
        if isinstance(kind, (tuple, list))
        else options.get("options")
        if isinstance(options, dict)
        else ()
    )
    known = listed if isinstance(listed, (tuple, list)) else ()
    return frozenset(one for one in known if isinstance(one, str))


def _input_types(class_def: Any) -> Any:
    return class_def.INPUT_TYPES()


def _type_name(kind: Any) -> str:
    return str(kind) if isinstance(kind, str) else "COMBO"


def by_type(shape: Shape) -> Stage | None:
    """The first rule that is certain for these types, or None."""
    for rule in RULES:
        found = rule(shape)
        if found is not None:
            return found
    return None


def _remote(s: Shape) -> Stage | None:
    """An API node waits on somebody else's machine; its seams say when."""
    return ("node_other", s.name) if s.is_remote else None


def _whole_sampler(s: Shape) -> Stage | None:
    """Samplers, and nodes of packs that load nothing but sample and more in one function."""
    return ("sampling", None) if s.takes_model() and s.has("sampler_name", "steps") else None


def _saver(s: Shape) -> Stage | None:
    """An output node: what it takes says what it writes."""
    if not s.is_output:
        return None
    timed = s.takes("AUDIO", "VIDEO") or s.has("fps") or s.has("frame_rate")
    if s.takes("VIDEO", "AUDIO") or (s.takes("IMAGE") and timed):
        return "encode_mux", None
    if s.takes("IMAGE", "MASK"):
        return "native_materialize", None
    if s.takes("LATENT", *LOADED):
        return "native_materialize", "write"
    return None


def _conditioning(s: Shape) -> Stage | None:
    if s.gives("CONDITIONING"):
        if s.takes("CONTROL_NET"):
            return "conditioning", "control"
        return "conditioning", "encode" if s.takes("CLIP") else None
    encoded = any(one in ENCODED or "EMBED" in one for one in s.outputs)
    return ("conditioning", "encode") if encoded else None


def _sampler(s: Shape) -> Stage | None:
    if s.gives("LATENT") and s.takes_model() and not s.gives("MODEL") and not s.takes_vae():
        return ("sampling", None) if s.takes("MODEL", "GUIDER") else None
    return ("sampling", None) if s.gives(*SAMPLER_SETUP) else None


def _decode(s: Shape) -> Stage | None:
    decodes = s.takes("LATENT") and s.takes_vae() and not s.gives("LATENT") and s.gives(*DECODED)
    return ("vae_decode", None) if decodes else None


def _encode(s: Shape) -> Stage | None:
    encodes = s.takes(*PIXELS) and s.takes_vae() and s.gives("LATENT")
    return ("conditioning", "vae_encode") if encodes else None


def _loaded(s: Shape) -> Stage | None:
    """Loaders and patchers of models; one that looks at pixels prepares a control or an adapter."""
    if not any(one in LOADED or one.endswith("MODEL") for one in s.outputs):
        return None
    if s.takes("IMAGE", "CLIP_VISION_OUTPUT"):
        return "conditioning", "control"
    if s.takes(*TENSORS):
        return None
    return "model_load_residency", "build" if s.takes(*LOADED) else None


def _post(s: Shape) -> Stage | None:
    """The same kind of pixels in and out."""
    same = any(s.takes(kind) and s.gives(kind) for kind in PIXELS)
    return ("postprocess", s.name) if same else None


def _assembly(s: Shape) -> Stage | None:
    return ("native_materialize", None) if s.takes("IMAGE") and s.gives("VIDEO") else None


def _plain(s: Shape) -> Stage | None:
    """Sources of pixels and latents, arithmetic on latents, and plain values."""
    if s.takes_model() or s.takes_vae() or s.takes(*LOADED) or not s.outputs:
        return None
    makes = all(one in VALUES or one in TENSORS for one in s.outputs)
    return ("node_other", s.name) if makes else None


RULES: tuple[Callable[[Shape], Stage | None], ...] = (
    _remote,
    _whole_sampler,
    _saver,
    _conditioning,
    _sampler,
    _decode,
    _encode,
    _loaded,
    _post,
    _assembly,
    _plain,
)
"""In order; the first that answers decides."""
