"""What a node class's input and output types say of its stage, and how surely.

A rule is sure where the types allow one kind of work alone: then the class's whole function belongs to the
stage. Where a class may do more (a detailer finds, samples, decodes and pastes), the rule is not sure: what
happens in it outside the seams is `node_other`, and the stage is a hint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

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
PASSED = TENSORS | LOADED | {"MASK", "*", "CONDITIONING"}
"""What an output node gives on besides texts and numbers."""
MODEL_WORDS = ("MODEL", "VAE", "DETECTOR", "TEXTENCODER", "TEXT_ENCODER", "PREDICTOR")
"""How packs' names for models of their own end."""
ENCODED = ("CLIP_VISION_OUTPUT", "AUDIO_ENCODER_OUTPUT")
BUNDLE = re.compile(r"PIPE|_CONTEXT$|^BUS$|_TUPLE$")
"""Packs' names for types that bundle models, conditioning and more."""
OWN_MODEL = re.compile(r"MODEL|ENCODER|DETECTOR|VAE|CONTROLNET|PREDICTOR|SAM$|SEGMENT")
"""Words in packs' names for types of models."""
FILE_CHOICES = ("ckpt_name", "unet_name", "model_name", "vae_name", "lora_name", "control_net_name")
WRITES_WHERE = frozenset(
    {"filename_prefix", "filename", "file_name", "output_path", "save_path", "output_dir", "save_prefix"}
    | {"output_folder", "image_name", "prefix", "dump_path", "file_path", "path"}
)
"""Inputs that say under which name to write."""
SAVES = re.compile(r"save|preview|writ(e|ing)|export|sender|output", re.IGNORECASE)
"""Words by which an output node says that it shows or keeps what it takes, and hands it on as it is."""
ENCODES_BY = frozenset(
    {"codec", "video_codec", "vcodec", "crf", "pix_fmt", "pixel_format", "container", "video_format"}
    | {"bitrate", "video_bitrate"}
)
"""Inputs that only an encoder of moving pictures has. A quality and a format have savers of pictures too."""
CONTAINERS = re.compile(r"\b(mp4|m4v|webm|mkv|mov|avi|h\.?26[45]|hevc|av1|vp9|prores|ffv1)\b", re.IGNORECASE)
FILES = re.compile(r"FILE(NAME)?S?$|PATHS?$")
"""How packs' names for types of names of files end."""
CLOSES_LOOP = "FLOW_CONTROL"
"""The type by which packs' loops tie their end to their start."""


class Found(NamedTuple):
    """A rule's answer. Not `sure`: the class may do more than this stage's work."""

    stage: str
    part: str | None = None
    sure: bool = True


@dataclass(frozen=True)
class Shape:
    """What a node class says of itself. Types are upper-case words; a list of choices is COMBO.

    Where a socket takes or gives one of several types, they stand with commas between them.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    is_output: bool = False
    is_remote: bool = False
    choices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """What the class lists for each input that is a choice."""

    @cached_property
    def taken(self) -> frozenset[str]:
        """All types that an input, required or optional, can have."""
        return frozenset(one for kind in self.inputs.values() for one in kind.split(","))

    @cached_property
    def given(self) -> frozenset[str]:
        """All types that an output can have."""
        return frozenset(one for kind in self.outputs for one in kind.split(","))

    @cached_property
    def works(self) -> frozenset[str]:
        """The types of its outputs that are no plain values."""
        return self.given - VALUES

    def takes(self, *types: str) -> bool:
        """Can an input have one of `types`?"""
        return not self.taken.isdisjoint(types)

    def gives(self, *types: str) -> bool:
        """Can an output have one of `types`?"""
        return not self.given.isdisjoint(types)

    def gives_only(self, *types: str) -> bool:
        """Are all outputs that are no plain values of these types, and is there one?"""
        return bool(self.works) and self.works <= frozenset(types)

    def takes_vae(self) -> bool:
        """Does an input hold a VAE, a pack's own kind included?"""
        return any("VAE" in one for one in self.taken)

    def takes_decoder(self) -> bool:
        """Does it take a latent and what decodes it?"""
        return self.takes("LATENT") and self.takes_vae()

    def takes_model(self) -> bool:
        """Does an input hold a model, or a guider that holds one?"""
        return any(one == "GUIDER" or one.endswith("MODEL") for one in self.taken)

    def takes_pipe(self) -> bool:
        """Does an input hold a bundle of models, conditioning and more?"""
        return any(is_pipe(one) for one in self.taken)

    def has(self, *names: str) -> bool:
        """Is there an input of each of these names?"""
        return all(name in self.inputs for name in names)

    def names_file(self) -> bool:
        """Does an input say under which name to write?"""
        return not WRITES_WHERE.isdisjoint(self.inputs)

    def is_timed(self) -> bool:
        """Does an input say how many pictures make a second?"""
        return self.has("fps") or self.has("frame_rate")

    def encodes(self) -> bool:
        """Does an input choose a codec, a container or what else only moving pictures are encoded with?"""
        formats = self.choices.get("format", frozenset())
        return not ENCODES_BY.isdisjoint(self.inputs) or (
            bool(formats) and all(CONTAINERS.search(one) for one in formats)
        )

    def gives_files(self) -> bool:
        """Are its outputs names of files, other texts and numbers, or are there none?"""
        return all(one in VALUES - {"MASK", "*"} or FILES.search(one) for one in self.given)


def is_pipe(kind: str) -> bool:
    """Is it a type that bundles others?"""
    return BUNDLE.search(kind) is not None


def is_model(kind: str) -> bool:
    """Is it a type of model, the host's or a pack's own?"""
    return kind in LOADED or kind.endswith(MODEL_WORDS)


def by_type(shape: Shape) -> Found | None:
    """The answer of the first rule that has one for these types, or None."""
    for rule in RULES:
        found = rule(shape)
        if found is not None:
            return found
    return None


def _remote(s: Shape) -> Found | None:
    """An API node waits on another machine; its seams say when."""
    return Found("node_other", s.name) if s.is_remote else None


def _whole_sampler(s: Shape) -> Found | None:
    """Samplers: the settings of one, something to sample with, and a result.

    One that gives a latent alone does nothing else. Others bring their loader, their decoder or a search
    for faces, so that only their seams are sampling for certain. Those with the settings and no result
    hand them to others.
    """
    named = s.has("sampler_name") and (s.has("steps") or s.has("scheduler"))
    own = s.has("steps") and s.gives("LATENT") and any(one.endswith("MODEL") for one in s.taken)
    own = own or (s.takes("SAMPLER") and s.takes("SIGMAS") and s.gives("LATENT"))
    with_what = s.takes_model() or s.takes_pipe()
    if not with_what or not (named or own):
        return None
    if s.gives(*TENSORS):
        alone = s.gives_only("LATENT") and not s.takes_vae() and not s.takes_pipe()
        return Found("sampling", None, alone and not s.is_output)
    return None if s.gives("CONDITIONING", *SAMPLER_SETUP) else Found("node_other", s.name)


def _saver(s: Shape) -> Found | None:
    """An output node: what it takes says what it writes. What it gives on, it may have worked on."""
    if not s.is_output:
        return None
    passes, writes = bool(s.given & PASSED), SAVES.search(s.name) is not None
    works = s.takes_pipe() or any(s.takes(kind) and s.gives(kind) for kind in PIXELS)
    if passes and not writes and (works or not s.names_file()):
        return None
    sure = writes or (not passes and (not s.outputs or s.names_file() or bool(s.works)))
    timed = s.takes("AUDIO", "VIDEO") or s.is_timed() or s.encodes()
    if s.takes("VIDEO", "AUDIO") or (s.takes("IMAGE") and timed):
        return Found("encode_mux", None, sure and not s.takes("LATENT"))
    if s.takes("IMAGE", "MASK"):
        return Found("native_materialize", None, sure)
    if s.takes("LATENT", *LOADED):
        return Found("native_materialize", "write", writes and not s.takes_decoder())
    return None


def _encoder(s: Shape) -> Found | None:
    """A node that writes moving pictures to a file without being an output node: it says how they are encoded
    (then it is one for certain where it gives names of files alone), or when each is shown and where to."""
    if not s.takes("IMAGE"):
        return None
    more = s.takes(*LOADED, "LATENT", "CONDITIONING") or s.takes_pipe() or s.takes_model()
    if s.encodes():
        return Found("encode_mux", None, s.gives_files() and not more)
    return Found("encode_mux", None, False) if s.is_timed() and s.names_file() else None


def _passing(s: Shape) -> Found | None:
    """A switch hands on one of the things that it is given; a context, all of them."""
    word = s.name.lower()
    context = "sampler" not in word and any(one.endswith("_CONTEXT") for one in s.taken & s.given)
    return Found("node_other", s.name) if context or "switch" in word or "reroute" in word else None


def _bundle(s: Shape) -> Found | None:
    """Pipes and contexts: made, changed and taken apart at no cost; or the start or the middle of a graph."""
    if not (s.takes_pipe() or any(is_pipe(one) for one in s.given)):
        return None
    if s.gives(*TENSORS) and s.takes_pipe() and ("sampler" in s.name.lower() or s.has("steps")):
        return Found("sampling", None, False)
    if s.gives("IMAGE") and s.takes("IMAGE") and (s.is_output or not s.gives("MODEL")):
        return Found("postprocess", s.name, False)
    if any(s.has(name) for name in FILE_CHOICES):
        return Found("model_load_residency", None, False)
    more = any(one not in VALUES and not is_pipe(one) for one in s.taken | s.given)
    return Found("node_other", s.name) if more else None


def _conditioning(s: Shape) -> Found | None:
    if s.gives("CONDITIONING"):
        loads = any(is_model(one) for one in s.works)
        if loads and any(s.has(name) for name in FILE_CHOICES):
            return Found("model_load_residency", None, False)
        handed = s.takes("CONDITIONING") and s.gives_only("CONDITIONING", "LATENT", "MODEL")
        sure = handed or (not loads and not s.works & PIXELS)
        if s.takes("CONTROL_NET"):
            return Found("conditioning", "control", sure)
        return Found("conditioning", None, sure)
    encoded = any(one in ENCODED or "EMBED" in one for one in s.given)
    return Found("conditioning", "encode", not s.works & TENSORS) if encoded else None


def _sampler(s: Shape) -> Found | None:
    if s.gives("LATENT") and s.takes_model() and not s.gives("MODEL") and not s.takes_vae():
        alone = s.gives_only("LATENT") and not s.is_output
        return Found("sampling", None, alone) if s.takes("MODEL", "GUIDER") else None
    return Found("sampling") if s.gives(*SAMPLER_SETUP) else None


def _decode(s: Shape) -> Found | None:
    decodes = s.takes_decoder() and not s.gives("LATENT") and s.gives(*DECODED) and not s.takes(*PIXELS)
    return Found("vae_decode", None, not s.is_output) if decodes else None


def _encode(s: Shape) -> Found | None:
    encodes = s.takes(*PIXELS) and s.takes_vae() and s.gives("LATENT")
    return Found("conditioning", "vae_encode", not s.works & PIXELS) if encodes else None


def _loaded(s: Shape) -> Found | None:
    """Loaders and patchers of models; one that looks at pixels prepares a control or an adapter."""
    models = [one for one in s.works if is_model(one)]
    if not models:
        return _own_loader(s)
    if s.takes("IMAGE", "CLIP_VISION_OUTPUT"):
        if s.gives("IMAGE") and not s.gives("MODEL", "LATENT"):
            return None  # it works on the picture; the model, as of a face, is beside it
        return Found("conditioning", "control", not s.works & PIXELS)
    if s.takes(*TENSORS):
        return None
    sure = not s.works & TENSORS or s.gives_only("LATENT", *models)
    return Found("model_load_residency", "build" if s.takes(*LOADED) else None, sure)


def _own_loader(s: Shape) -> Found | None:
    """A pack's loader of its own kind of model: it says so, and takes no work of others."""
    word = s.name.lower()
    loads = "load" in word and ("model" in word or any(OWN_MODEL.search(one.upper()) for one in s.works))
    if not loads or not s.works or s.works & TENSORS or s.takes(*TENSORS):
        return None
    return Found("model_load_residency")


def _post(s: Shape) -> Found | None:
    """The same kind of pixels in and out. One that takes models, or shows its result too, may do more."""
    if not any(s.takes(kind) and s.gives(kind) for kind in PIXELS):
        return None
    more = s.takes("MODEL", "CLIP", "VAE", "CONDITIONING", "LATENT", "CONTROL_NET") or s.takes_vae()
    shows = s.is_output and re.search("preview|compar|show|display", s.name, re.IGNORECASE)
    if shows:
        return Found("native_materialize", None, False)
    return Found("postprocess", s.name, not more and not s.is_output)


def _assembly(s: Shape) -> Found | None:
    return Found("native_materialize") if s.takes("IMAGE") and s.gives("VIDEO") else None


def _plain(s: Shape) -> Found | None:
    """Sources of pixels and latents, arithmetic on latents, and plain values."""
    if s.takes_model() or s.takes_vae() or s.takes(*LOADED) or not s.outputs:
        return None
    makes = all(one in VALUES or one in TENSORS for one in s.given)
    return Found("node_other", s.name) if makes else None


RULES: tuple[Callable[[Shape], Found | None], ...] = (
    _remote,
    _passing,
    _whole_sampler,
    _saver,
    _encoder,
    _bundle,
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
