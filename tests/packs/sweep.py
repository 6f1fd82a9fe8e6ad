"""Every class of a pack that can be fed without weights: a graph each, made from its own inputs."""

from __future__ import annotations

from typing import Any

from stagexec.bench.client import http_json
from tests.packs.play import Servers
from tests.packs.wanted import ANY_END, Graph

SOURCES: dict[str, tuple[str, int]] = {
    "IMAGE": ("image", 0),
    "MASK": ("mask", 0),
    "LATENT": ("latent", 0),
    "MODEL": ("checkpoint", 0),
    "CLIP": ("checkpoint", 1),
    "VAE": ("checkpoint", 2),
    "CONDITIONING": ("text", 0),
    "SAMPLER": ("sampler", 0),
    "SIGMAS": ("sigmas", 0),
    "NOISE": ("noise", 0),
    "*": ("image", 0),
}
"""Type -> the node that gives it, and its socket."""
CHECKPOINT = "stagexec-tiny-sd15.safetensors"
SOURCE_NODES: dict[str, dict[str, Any]] = {
    "image": {"class_type": "EmptyImage",
              "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": "{color}"}},
    "mask": {"class_type": "SolidMask", "inputs": {"value": 0.5, "width": 64, "height": 64}},
    "latent": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
    "checkpoint": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}},
    "text": {"class_type": "CLIPTextEncode", "inputs": {"text": "{prefix}", "clip": ["checkpoint", 1]}},
    "sampler": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "euler"}},
    "sigmas": {"class_type": "BasicScheduler",
               "inputs": {"model": ["checkpoint", 0], "scheduler": "simple", "steps": 1, "denoise": 1.0}},
    "noise": {"class_type": "RandomNoise", "inputs": {"noise_seed": 1}},
}  # fmt: skip
SMALL = {"steps": 1, "width": 64, "height": 64, "batch_size": 1, "filename_prefix": "{prefix}"}
"""Inputs that are set whatever their default is: the graphs stay small and their files are found."""
PLAIN = {"INT": 0, "FLOAT": 0.0, "STRING": "", "BOOLEAN": False}
LEFT_OUT = (
    "sleep",
    "api",
    "url",
    "http",
    "download",
    "random",
    "time",
    "clock",
    "webcam",
    "screencap",
    "restart",
)
"""Parts of class names that wait, ask the network, or give another answer each time."""


def graphs(servers: Servers) -> list[tuple[str, Graph]]:
    """A graph for each class of the servers' packs whose inputs all have a source or a default."""
    info = http_json(servers.servers["stock"].url, "GET", "/object_info", seconds=300.0)
    made = []
    for pack in servers.result.packs:
        own = [name for name, module in servers.loaded.items() if module.endswith("." + pack)]
        made += [(pack, graph_of(name, info[name])) for name in own if name in info]
    return [(pack, graph) for pack, graph in made if graph is not None]


def graph_of(name: str, info: dict[str, Any]) -> Graph | None:
    """Sources → one node → something that shows each of its outputs."""
    if any(part in name.lower() for part in LEFT_OUT):
        return None
    inputs: dict[str, Any] = {}
    for wanted, spec in (info["input"].get("required") or {}).items():
        value = fed(wanted, spec)
        if value is None:
            return None
        inputs[wanted] = value
    prompt: dict[str, Any] = {"node": {"class_type": name, "inputs": inputs}}
    for at, kind in enumerate(info["output"] or ()):
        shower = ("PreviewImage", "images") if kind == "IMAGE" else ("PreviewAny", "source")
        prompt[f"show {at}"] = {"class_type": shower[0], "inputs": {shower[1]: ["node", at]}}
    needed = {value[0] for value in inputs.values() if isinstance(value, list) and len(value) == 2}
    if "text" in needed or "sigmas" in needed:
        needed.add("checkpoint")
    prompt |= {source: SOURCE_NODES[source] for source in sorted(needed & SOURCE_NODES.keys())}
    return Graph(name, prompt, ends=ANY_END)


def fed(name: str, spec: Any) -> Any:
    """What an input gets: a link to a source, a default, or None when there is neither."""
    kind, *rest = spec if isinstance(spec, (list, tuple)) else (spec,)
    options = rest[0] if rest and isinstance(rest[0], dict) else {}
    if isinstance(kind, list) or kind == "COMBO":
        choices = kind if isinstance(kind, list) else options.get("options") or []
        default = options.get("default")
        return default if default in choices else next(iter(choices), None)
    if kind in PLAIN:
        if options.get("forceInput"):  # a value is taken there as well
            return SMALL.get(name, {"INT": 1, "FLOAT": 1.0, "STRING": "text", "BOOLEAN": True}[kind])
        return SMALL.get(name, options.get("default", PLAIN[kind]))
    for each in str(kind).split(","):
        if each in SOURCES:
            return list(SOURCES[each])
    return None
