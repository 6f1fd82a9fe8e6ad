"""Nodes without a seam inside: pictures in and out, samplers on a pack's own models, pipes, settings."""

from .kinds import ANY, MS, NUMBER, node, picture, required, work


def same_picture(self, image, ms, **_):
    """Pictures in, pictures out."""
    work(ms)
    return (image,)


def cut_out(self, image, ms, **_):
    """The same with a mask, and something to show."""
    work(ms)
    return {"ui": {"text": ["shown"]}, "result": (image, image[..., 0])}


def just_work(self, value, ms):
    """Anything in, the same out."""
    work(ms)
    return (value,)


def given(value):
    """A function that works and gives always the same."""

    def run(self, ms, **_):
        work(ms)
        return value() if callable(value) else value

    return run


def latent():
    """An empty latent."""
    import torch

    return ({"samples": torch.zeros(1, 4, 2, 2)},)


POST = {"image": "IMAGE", "ms": MS}

OWN_LOADER = node("ScnOwnLoader", required(ms=MS, label=NUMBER), ("SCNVIDEOMODEL",), given(("model",)))
OWN_SAMPLER = node(
    "ScnOwnSampler",
    required(model="SCNVIDEOMODEL", steps=NUMBER, cfg=("FLOAT",), seed=NUMBER, scheduler=(["unipc"],), ms=MS),
    ("LATENT",),
    given(latent),
)

NODES = {
    "ScnPreprocessor": node("ScnPreprocessor", required(**POST, resolution=NUMBER), ("IMAGE",), same_picture),
    "ScnUpscale": node(
        "ScnUpscale", required(**POST, upscale_by=("FLOAT", {"default": 2.0})), ("IMAGE",), same_picture
    ),
    "ScnInterpolate": node("ScnInterpolate", required(**POST, multiplier=NUMBER), ("IMAGE",), same_picture),
    "ScnRemBg": node(
        "ScnRemBg",
        required(**POST, save_prefix=("STRING",)),
        ("IMAGE", "MASK"),
        lambda self, image, ms, **_: {
            "ui": {"text": ["x"]},
            "result": (*same_picture(self, image, ms), image[..., 0]),
        },
        OUTPUT_NODE=True,
    ),
    "ScnMask": node(
        "ScnMask", required(mask="MASK", ms=MS), ("MASK",), lambda self, mask, ms: (work(ms), (mask,))[1]
    ),
    "ScnOwnLoader": OWN_LOADER,
    "ScnOwnSampler": OWN_SAMPLER,
    "WanVideoModelLoader": OWN_LOADER,
    "WanVideoSampler": OWN_SAMPLER,
    "ScnPipe": node(
        "ScnPipe",
        required(
            ms=MS, optional={"model": "MODEL", "clip": "CLIP", "vae": "VAE", "positive": "CONDITIONING"}
        ),
        ("SCN_PIPE", "MODEL", "CONDITIONING"),
        lambda self, ms, model=None, positive=None, **rest: (work(ms), (dict(rest), model, positive))[1],
    ),
    "ScnSettings": node("ScnSettings", required(ms=MS, eta=("FLOAT",)), ("SCN_SETTINGS",), given(({},))),
    "ScnUseSettings": node(
        "ScnUseSettings", required(settings="SCN_SETTINGS", ms=MS), ("IMAGE",), given(lambda: (picture(),))
    ),
    "ScnWork": node(
        "ScnWork", required(value=ANY, ms=MS), (ANY,), lambda self, value, ms: (work(ms), (value,))[1]
    ),
    "ScnPicture": node(
        "ScnPicture",
        required(label=NUMBER, batch=NUMBER),
        ("IMAGE", "MASK"),
        lambda self, label, batch: (picture(batch=batch or 1), picture(batch=batch or 1)[..., 0]),
    ),
    "ScnShow": node(
        "ScnShow", required(value=ANY), (), lambda self, value: {"ui": {"text": ["shown"]}}, OUTPUT_NODE=True
    ),
}
