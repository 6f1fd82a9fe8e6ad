"""Nodes that load and draw by libraries of others, past every function of the host."""
# ruff: noqa: N802 (the host asks for these names)

import os
import time

from .kinds import CATEGORY, MS, NUMBER, node, picture, required, work

TENSORS = 20_000
"""So many small tensors take long enough to be read one by one."""


def scratch(name):
    """A path in the host's temporary folder."""
    import folder_paths

    folder = folder_paths.get_temp_directory()
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, name)


class Slow:
    """An object that takes `seconds` to be unpickled."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __reduce__(self):
        return time.sleep, (self.seconds,)


def torch_load(self, label, ms):
    """A checkpoint in pickled form."""
    import torch

    path = scratch("slow.pt")
    torch.save({"weights": Slow(ms / 1000)}, path)
    torch.load(path, weights_only=False)
    return ("model",)


def safetensors_load(self, label, ms):
    """A checkpoint read past the host, as most packs do. What it took is shown, in milliseconds."""
    import safetensors.torch
    import torch

    path = scratch("many.safetensors")
    if not os.path.exists(path):
        safetensors.torch.save_file({f"t{at}": torch.zeros(1) for at in range(TENSORS)}, path)
    start = time.perf_counter()
    safetensors.torch.load_file(path)
    took = (time.perf_counter() - start) * 1000
    return {"ui": {"took_ms": [took]}, "result": ("model",)}


def safetensors_open(self, label, ms):
    """The same by its lower door."""
    import safetensors

    path = scratch("many.safetensors")
    start = time.perf_counter()
    with safetensors.safe_open(path, framework="pt") as file:
        kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    took = (time.perf_counter() - start) * 1000
    return {"ui": {"took_ms": [took, len(kept)]}, "result": ("model",)}


def pretrained(self, label, ms):
    """A pipeline of diffusers."""
    from diffusers import StableDiffusionPipeline

    return (StableDiffusionPipeline.from_pretrained("someone/some-model", slow_ms=ms),)


def component(self, label, ms):
    """A single model of diffusers."""
    from diffusers import AutoencoderKL

    return (AutoencoderKL.from_pretrained("someone/some-model", subfolder="vae", slow_ms=ms),)


def pipeline(self, pipe, seed, own_ms, encode_ms, step_ms, decode_ms):
    """The pipeline draws: text, steps and decode are all inside of one call; something of ours before it."""
    work(own_ms)
    pipe(prompt="x", num_inference_steps=3, encode_ms=encode_ms, step_ms=step_ms, decode_ms=decode_ms)
    return (picture(),)


LOADS = required(label=NUMBER, ms=MS)


class ScnPipeline:
    """Draws with a pipeline of diffusers."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"
    run = pipeline

    @classmethod
    def INPUT_TYPES(cls):
        return required(pipe="SCN_PIPELINE", seed=NUMBER, own_ms=MS, encode_ms=MS, step_ms=MS, decode_ms=MS)


NODES = {
    "ScnPipeline": ScnPipeline,
    "ScnTorchLoad": node("ScnTorchLoad", LOADS, ("SCN_MODEL",), torch_load),
    "ScnSafetensors": node("ScnSafetensors", LOADS, ("SCN_MODEL",), safetensors_load, OUTPUT_NODE=True),
    "ScnSafeOpen": node("ScnSafeOpen", LOADS, ("SCN_MODEL",), safetensors_open, OUTPUT_NODE=True),
    "ScnPretrained": node("ScnPretrained", LOADS, ("SCN_PIPELINE",), pretrained),
    "ScnComponent": node("ScnComponent", LOADS, ("VAE",), component),
}
