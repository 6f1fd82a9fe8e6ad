"""Makes the tiny SD1.5-shaped checkpoint: seeded random weights in the shapes of the host's own classes.

Run as `python -m stagexec.host.checkpoint --host TREE --out FILE --seed N`, in a process of its own, since it
imports the host's model code. It is recognised and loaded as a Stable Diffusion 1.5 checkpoint: the U-Net is
cut to two levels of one block each, the text encoder and the VAE have their full shapes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

UNET: dict[str, Any] = {
    "image_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": 320,
    "channel_mult": (1, 1),
    "num_res_blocks": [1, 1],
    "transformer_depth": [1, 1],
    "transformer_depth_middle": 1,
    "transformer_depth_output": [1, 1, 1, 1],
    "context_dim": 768,
    "num_heads": 8,
    "num_head_channels": -1,
    "use_spatial_transformer": True,
    "use_linear_in_transformer": False,
    "legacy": False,
}
VAE: dict[str, Any] = {
    "double_z": True,
    "z_channels": 4,
    "resolution": 256,
    "in_channels": 3,
    "out_ch": 3,
    "ch": 128,
    "ch_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "attn_resolutions": [],
    "dropout": 0.0,
}
MARK = {"stagexec.random_weights": "seeded random numbers: no trained model"}
"""In the file's metadata: what pictures of such a model look like says nothing of quality."""
WIDEST_WEIGHT = 0.02
"""Upper limit of a weight's standard deviation: activations stay small enough for fp16."""


def host_shapes(tree: Path) -> dict[str, tuple[int, ...]]:
    """Checkpoint key -> shape, from the host's classes built without memory; imports the host from `tree`."""
    sys.path.insert(0, str(tree))
    sys.argv = [sys.argv[0], "--cpu"]  # the host reads its own options when its modules are imported
    import comfy.options

    comfy.options.enable_args_parsing()
    import comfy.ldm.models.autoencoder
    import comfy.ldm.modules.diffusionmodules.openaimodel
    import comfy.ops
    import comfy.sd1_clip
    import torch

    unet_class = comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel
    with torch.device("meta"):
        unet = unet_class(
            **UNET, device="meta", dtype=torch.float16, operations=comfy.ops.disable_weight_init
        )
        clip = comfy.sd1_clip.SD1ClipModel(device="meta", dtype=torch.float16)
        vae = comfy.ldm.models.autoencoder.AutoencoderKL(ddconfig=VAE, embed_dim=4)
    shapes = _prefixed(unet, "model.diffusion_model.")
    shapes |= _prefixed(vae, "first_stage_model.")
    for key, shape in _prefixed(clip.clip_l, "cond_stage_model.").items():
        if "text_projection" not in key and "logit_scale" not in key:  # SD1.5 files carry neither
            shapes[key] = shape
    return shapes


def _prefixed(module: Any, prefix: str) -> dict[str, tuple[int, ...]]:
    return {prefix + name: tuple(weight.shape) for name, weight in module.state_dict().items()}


def random_weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Any]:
    """fp16 tensors of these shapes: matrices random and small, norms 1, biases 0; a random stream a key."""
    import torch

    weights = {}
    for key, shape in shapes.items():
        if len(shape) < 2:
            weights[key] = torch.full(shape, 1.0 if key.endswith(".weight") else 0.0, dtype=torch.float16)
            continue
        fan_in = int(torch.Size(shape[1:]).numel())
        stream = int.from_bytes(hashlib.sha256(f"{seed}:{key}".encode()).digest()[:8], "big") >> 1
        draw = torch.empty(shape, dtype=torch.float32)
        draw.normal_(0.0, min(WIDEST_WEIGHT, fan_in**-0.5), generator=torch.Generator().manual_seed(stream))
        weights[key] = draw.to(torch.float16)
    return weights


def write(weights: Mapping[str, Any], path: Path) -> None:
    """Write the safetensors file under a temporary name beside `path`, then rename it."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(dict(weights), str(partial), metadata={"format": "pt", **MARK})
    partial.chmod(0o644)  # safetensors makes it private; other users' servers may read a shared one
    os.replace(partial, path)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="stagexec.host.checkpoint")
    parser.add_argument("--host", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    write(random_weights(host_shapes(chosen.host.resolve()), chosen.seed), chosen.out.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
