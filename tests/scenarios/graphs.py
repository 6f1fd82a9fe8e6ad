"""The prompts of the scenarios. `label` is a number that no other prompt has: nothing of it is cached.

The slow calls of the shared model are in pack/models.py; what else takes time says so in its own input.
"""

from __future__ import annotations

from typing import Any

from tests.host.graphs import TINY_CHECKPOINT, Prompt, node, save

KSAMPLER = {"steps": 2, "cfg": 1.0, "sampler_name": "euler", "scheduler": "normal"}


def shown(label: int, *nodes: dict[str, Any], **more: dict[str, Any]) -> Prompt:
    """A picture ("pic"), the nodes "1", "2" … that the caller has linked, and the last of them shown."""
    prompt = {"pic": node("ScnPicture", label=label, batch=1), **more}
    prompt.update({str(at): each for at, each in enumerate(nodes, 1)})
    return {**prompt, "show": node("ScnShow", value=[str(len(nodes)), 0])}


def work(value: str, ms: int) -> dict[str, Any]:
    """Work on the first output of a node."""
    return node("ScnWork", value=[value, 0], ms=ms)


def drawing(label: int, seed: int | None = None) -> Prompt:
    """A loader ("load"), two texts ("pos", "neg"), an empty latent and a sampler ("sample")."""
    return {
        "load": node("ScnCheckpoint", label=label),
        "pos": node("CLIPTextEncode", text=f"a harbour {label}", clip=["load", 1]),
        "neg": node("CLIPTextEncode", text="blurry", clip=["load", 1]),
        "empty": node("EmptyLatentImage", width=16, height=16, batch_size=1),
        "sample": node(
            "KSampler",
            **KSAMPLER,
            seed=label if seed is None else seed,
            denoise=1.0,
            model=["load", 0],
            positive=["pos", 0],
            negative=["neg", 0],
            latent_image=["empty", 0],
        ),
    }


def decoded(label: int, seed: int | None = None) -> Prompt:
    """The same, decoded ("decode")."""
    decode = node("VAEDecode", samples=["sample", 0], vae=["load", 2])
    return {**drawing(label, seed), "decode": decode}


def txt2img(label: int, seed: int | None = None) -> Prompt:
    """Text to image, saved by the core."""
    return {**decoded(label, seed), "save": save(["decode", 0], "scenario")}


def from_picture(label: int, encoder: str = "VAEEncode") -> Prompt:
    """Image to image, or inpainting: the latent comes from a picture."""
    prompt = txt2img(label)
    del prompt["empty"]
    prompt["pic"] = node("ScnPicture", label=label, batch=1)
    more = {"mask": ["pic", 1], "grow_mask_by": 0} if encoder == "VAEEncodeForInpaint" else {}
    prompt["encode"] = node(encoder, pixels=["pic", 0], vae=["load", 2], **more)
    prompt["sample"]["inputs"].update(latent_image=["encode", 0], denoise=0.5)
    return prompt


def after_decode(label: int, kind: str, **inputs: Any) -> Prompt:
    """A picture is drawn, and a node of a pack works on it ("post")."""
    post = node(kind, image=["decode", 0], **inputs)
    return {**decoded(label), "post": post, "save": save(["post", 0], "scenario")}


def tiled(label: int) -> Prompt:
    """The decode in tiles that was asked for."""
    prompt = txt2img(label)
    sizes = {"tile_size": 512, "overlap": 64, "temporal_size": 64, "temporal_overlap": 8}
    prompt["decode"] = node("VAEDecodeTiled", samples=["sample", 0], vae=["load", 2], **sizes)
    return prompt


def control(label: int, hint_ms: int, apply_ms: int) -> Prompt:
    """A picture is made into a hint ("hint"), which the conditioning takes up ("apply"), before drawing."""
    prompt = txt2img(label)
    prompt["pic"] = node("ScnPicture", label=label, batch=1)
    prompt["hint"] = node("ScnPreprocessor", image=["pic", 0], ms=hint_ms, resolution=512)
    prompt["net"] = node("ScnControlNet", label=label)
    prompt["apply"] = node(
        "ScnControlApply",
        positive=["pos", 0],
        control_net=["net", 0],
        image=["hint", 0],
        strength=1.0,
        ms=apply_ms,
    )
    prompt["sample"]["inputs"]["positive"] = ["apply", 0]
    return prompt


def detailer(label: int, find_ms: int, paste_ms: int, kind: str = "ScnDetailer") -> Prompt:
    """A detailer on a picture: it encodes, samples and decodes inside."""
    prompt = drawing(label)
    prompt["pic"] = node("ScnPicture", label=label, batch=1)
    prompt["sample"] = node(
        kind,
        image=["pic", 0],
        model=["load", 0],
        clip=["load", 1],
        vae=["load", 2],
        positive=["pos", 0],
        negative=["neg", 0],
        seed=label,
        steps=2,
        sampler_name="euler",
        find_ms=find_ms,
        paste_ms=paste_ms,
    )
    del prompt["empty"]
    return {**prompt, "save": save(["sample", 0], "scenario")}


def full_sampler(label: int, ms: int) -> Prompt:
    """A sampler of a pack that decodes too, and is an output node."""
    prompt = drawing(label)
    prompt["sample"] = node(
        "ScnFullSampler",
        model=["load", 0],
        vae=["load", 2],
        positive=["pos", 0],
        negative=["neg", 0],
        latent_image=["empty", 0],
        seed=label,
        steps=2,
        sampler_name="euler",
        ms=ms,
    )
    return {**prompt, "save": save(["sample", 1], "scenario")}


def own_text(label: int, ms: int) -> Prompt:
    """A text node of a pack ("text") that works on the words before it has them encoded."""
    return {
        "load": node("ScnCheckpoint", label=label),
        "text": node("ScnTextEncode", clip=["load", 1], text=f"a harbour {label}", ms=ms),
        "show": node("ScnShow", value=["text", 0]),
    }


def own_video(label: int, load_ms: int, sample_ms: int, kind: str = "Scn") -> Prompt:
    """A video pack with model types of its own: a loader and a sampler without any seam inside."""
    loader, sampler = (
        ("ScnOwnLoader", "ScnOwnSampler") if kind == "Scn" else (f"{kind}ModelLoader", f"{kind}Sampler")
    )
    settings = {"steps": 4, "cfg": 5.0, "seed": label, "scheduler": "unipc"}
    return {
        "load": node(loader, ms=load_ms, label=label),
        "sample": node(sampler, model=["load", 0], ms=sample_ms, **settings),
        "show": node("ScnShow", value=["sample", 0]),
    }


def video(label: int, kind: str, frame_ms: int) -> Prompt:
    """A drawn picture becomes a film of three frames ("film"), by a process or in the process."""
    film = node(kind, images=["decode", 0], frame_rate=8, filename_prefix="scenario", frame_ms=frame_ms)
    return {**decoded(label), "film": film}


def film_by_codec(label: int, ms: int) -> Prompt:
    """A picture becomes a film by a node that is told a codec and no rate."""
    film = node("ScnEncodeByCodec", images=["pic", 0], codec="h264", crf=20, ms=ms)
    return {"pic": node("ScnPicture", label=label, batch=1), "film": film}


def two_savers(label: int, first_ms: int, second_ms: int) -> Prompt:
    """One picture, saved by two nodes and shown by the core's preview."""
    prompt = {"pic": node("ScnPicture", label=label, batch=1)}
    for name, ms in (("first", first_ms), ("second", second_ms)):
        prompt[name] = node("ScnSave", images=["pic", 0], filename_prefix=f"scenario-{name}", ms=ms)
    prompt["preview"] = node("PreviewImage", images=["pic", 0])
    return prompt


def decode_in_saver(label: int, ms: int) -> Prompt:
    """A saver that decodes the latent itself."""
    prompt = drawing(label)
    inputs = {"samples": ["sample", 0], "vae": ["load", 2], "filename_prefix": "scenario", "ms": ms}
    return {**prompt, "save": node("ScnDecodeSave", **inputs)}


def websocket(label: int, ms: int) -> Prompt:
    """The picture is sent to the client, and is in no file and no history entry."""
    prompt = {"pic": node("ScnPicture", label=label, batch=1), "1": work("pic", ms)}
    return {**prompt, "send": node("ScnSend", images=["1", 0])}


def loads(label: int, kind: str, ms: int, use_ms: int) -> Prompt:
    """A loader of a pack ("load") that reads past the host, and a node that uses what it gave."""
    prompt = {"load": node(kind, label=label, ms=ms), "1": work("load", use_ms)}
    return {**prompt, "show": node("ScnShow", value=["1", 0])}


def pipeline(label: int, load_ms: int, **times: int) -> Prompt:
    """A pipeline of diffusers is loaded ("load") and called ("pipe")."""
    return {
        "load": node("ScnPretrained", label=label, ms=load_ms),
        "pipe": node("ScnPipeline", pipe=["load", 0], seed=label, **times),
        "show": node("ScnShow", value=["pipe", 0]),
    }


def asks(label: int, library: str, own_ms: int, ms: int) -> Prompt:
    """A node ("ask") prepares its picture and asks a slow server by a library."""
    ask = node("ScnAsk", label=label, library=library, own_ms=own_ms, ms=ms)
    return {"ask": ask, "show": node("ScnShow", value=["ask", 0])}


def asks_later(label: int, ms: int, beside_ms: int = 0) -> Prompt:
    """An async node waits for a slow server; a plain node may work beside it."""
    prompt = {"ask": node("ScnAskLater", label=label, ms=ms), "show": node("ScnShow", value=["ask", 0])}
    if beside_ms:
        prompt["pic"] = node("ScnPicture", label=label, batch=1)
        prompt["beside"] = work("pic", beside_ms)
        prompt["show2"] = node("ScnShow", value=["beside", 0])
    return prompt


def later(label: int, count: int, ms: int) -> Prompt:
    """`count` async nodes that sleep at the same time."""
    prompt = {"pic": node("ScnPicture", label=label, batch=1)}
    for at in range(count):
        prompt[f"later{at}"] = node("ScnLater", value=["pic", 0], ms=ms, label=at)
        prompt[f"show{at}"] = node("ScnShow", value=[f"later{at}", 0])
    return prompt


def mapped(label: int, ms: int) -> Prompt:
    """A node ("map") that is called for each of three numbers."""
    return {
        "list": node("ScnList", label=label),
        "map": node("ScnWork", value=["list", 0], ms=ms),
        "show": node("ScnShow", value=["map", 0]),
    }


def switched(label: int, ms: int, unused_ms: int, own_ms: int) -> Prompt:
    """A lazy switch ("3") of which only the second branch ("2") is made."""
    switch = node("ScnSwitch", first=["1", 0], second=["2", 0], use_second=True, ms=own_ms)
    return shown(label, work("pic", unused_ms), work("pic", ms), switch)


def blocked(label: int, ms: int, beside_ms: int) -> Prompt:
    """A blocker ("1") stops one output; the other one is shown."""
    prompt = shown(label, node("ScnBlock", value=["pic", 0], ms=ms))
    prompt["beside"] = work("pic", beside_ms)
    return {**prompt, "show2": node("ScnShow", value=["beside", 0])}


def checkpoint(label: int, name: str = TINY_CHECKPOINT) -> Prompt:
    """The core's own loader and a text: weights that are really read."""
    return {
        "load": node("CheckpointLoaderSimple", ckpt_name=name),
        "text": node("CLIPTextEncode", text=f"a harbour {label}", clip=["load", 1]),
        "show": node("ScnShow", value=["text", 0]),
    }
