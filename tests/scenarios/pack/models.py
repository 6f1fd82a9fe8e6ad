"""The tiny checkpoint's model, text encoder and VAE, each of whose calls takes a known time.

The weights are read once for all scenarios. Nothing is computed with them: on a busy machine
that takes many times as long.
"""
# ruff: noqa: N802 (the host asks for these names)

import functools

from .kinds import CATEGORY, FLOAT, MS, NUMBER, TEXT, node, picture, required, work

TOKENIZE, ENCODE, STEP, DECODE, VAE_ENCODE = 60, 110, 80, 150, 130
"""Milliseconds of a call: of the tokenizer, the text encoder, the model, and of the VAE either way."""


@functools.cache
def loaded():
    """(MODEL, CLIP, VAE) of the tiny checkpoint, made slow."""
    import comfy.sd
    import folder_paths

    path = folder_paths.get_full_path("checkpoints", "stagexec-tiny-sd15.safetensors")
    model, clip, vae = comfy.sd.load_checkpoint_guess_config(path, output_vae=True, output_clip=True)[:3]
    tokens = clip.tokenizer.tokenize_with_weights
    slow(clip.tokenizer, "tokenize_with_weights", TOKENIZE, tokens)
    slow(clip.cond_stage_model, "encode_token_weights", ENCODE, encoded)
    slow(model.model.diffusion_model, "forward", STEP, lambda x, *_, **__: x * 0.5)
    slow(vae.first_stage_model, "decode", DECODE, lambda latent, **_: resized(latent, 3, 8))
    slow(vae.first_stage_model, "encode", VAE_ENCODE, lambda pixels, **_: resized(pixels, 4, 1 / 8))
    return model, clip, vae


def slow(owner, name, ms, made):
    """Let a method of one object take `ms`, and give what `made` makes of its arguments."""

    def slower(*args, **kwargs):
        work(ms)
        return made(*args, **kwargs)

    setattr(owner, name, slower)


def encoded(tokens):
    """A text's embeddings and their sum: of zeros."""
    import torch

    return torch.zeros(1, 77, 64), torch.zeros(1, 64)


def resized(pixels, channels, times):
    """Zeros of another size: (batch, channels, height, width)."""
    import torch

    return torch.zeros(pixels.shape[0], channels, int(pixels.shape[2] * times), int(pixels.shape[3] * times))


class ScnCheckpoint:
    """Hands out the slow model, text encoder and VAE."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("MODEL", "CLIP", "VAE")
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(label=NUMBER)

    def run(self, label):
        return loaded()


def ksample(model, positive, negative, latent, seed=1, denoise=1.0):
    """Two steps of the core's own sampling function, as detailers call it."""
    import nodes

    found = nodes.common_ksampler(
        model, seed, 2, 1.0, "euler", "normal", positive, negative, latent, denoise=denoise
    )
    return found[0]


def detail(self, image, model, clip, vae, positive, negative, seed, find_ms, paste_ms, **_):
    """Find something, draw it again, paste it back: the first and the last are the pack's own work."""
    work(find_ms)
    latent = {"samples": vae.encode(image[:, :, :, :3])}
    latent = ksample(model, positive, negative, latent, seed, 0.5)
    drawn = vae.decode(latent["samples"])
    work(paste_ms)
    return (drawn,)


def detail_and_show(self, **inputs):
    """The same as an output node that shows its picture."""
    drawn = detail(self, **inputs)
    return {"ui": {"text": ["shown"]}, "result": drawn}


DETAILER = {
    "image": "IMAGE",
    "model": "MODEL",
    "clip": "CLIP",
    "vae": "VAE",
    "positive": "CONDITIONING",
    "negative": "CONDITIONING",
    "seed": NUMBER,
    "steps": NUMBER,
    "sampler_name": (["euler"],),
    "find_ms": MS,
    "paste_ms": MS,
}


def sample_all(self, model, vae, positive, negative, latent_image, seed, ms, **_):
    """A sampler of a pack that also decodes, and does something of its own before."""
    work(ms)
    latent = ksample(model, positive, negative, latent_image, seed)
    return {"ui": {"text": ["shown"]}, "result": (latent, vae.decode(latent["samples"]))}


def encode_prompt(self, clip, text, ms):
    """A text node of a pack: it works on the words first, and then has them encoded."""
    work(ms)
    return (clip.encode_from_tokens_scheduled(clip.tokenize(text)),)


class ScnUpload:
    """A model of the pack's own that takes `upload_ms` to go to the device, and `forward_ms` to be used."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(label=NUMBER, upload_ms=MS, forward_ms=MS)

    def run(self, label, upload_ms, forward_ms):
        import comfy.model_management as management
        import comfy.model_patcher
        import torch

        class Patcher(comfy.model_patcher.ModelPatcher):
            """Slow on its way to the device."""

            there = False

            def model_patches_to(self, device):
                if device == self.load_device and not self.there:  # once; dtypes come here too
                    self.there = True
                    work(upload_ms)
                return super().model_patches_to(device)

        layer = torch.nn.Linear(3, 3).requires_grad_(False)
        device = management.get_torch_device()
        patcher = Patcher(layer, load_device=device, offload_device=management.unet_offload_device())
        management.load_models_gpu([patcher])
        work(forward_ms)
        return (picture(),)


def control_apply(self, positive, control_net, image, strength, ms):
    """Encodes the hint and puts it into the conditioning."""
    work(ms)
    return (positive,)


NODES = {
    **{cls.__name__: cls for cls in (ScnCheckpoint, ScnUpload)},
    "ScnDetailer": node("ScnDetailer", required(**DETAILER), ("IMAGE",), detail),
    "ScnDetailerOut": node(
        "ScnDetailerOut", required(**DETAILER), ("IMAGE",), detail_and_show, OUTPUT_NODE=True
    ),
    "ScnFullSampler": node(
        "ScnFullSampler",
        required(
            model="MODEL",
            vae="VAE",
            positive="CONDITIONING",
            negative="CONDITIONING",
            latent_image="LATENT",
            seed=NUMBER,
            steps=NUMBER,
            sampler_name=(["euler"],),
            ms=MS,
        ),
        ("LATENT", "IMAGE"),
        sample_all,
        OUTPUT_NODE=True,
    ),
    "ScnTextEncode": node(
        "ScnTextEncode", required(clip="CLIP", text=TEXT, ms=MS), ("CONDITIONING",), encode_prompt
    ),
    "ScnControlNet": node(
        "ScnControlNet", required(label=NUMBER), ("CONTROL_NET",), lambda self, label: ("control net",)
    ),
    "ScnControlApply": node(
        "ScnControlApply",
        required(positive="CONDITIONING", control_net="CONTROL_NET", image="IMAGE", strength=FLOAT, ms=MS),
        ("CONDITIONING",),
        control_apply,
    ),
}
