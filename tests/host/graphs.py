"""API prompts to test with. Each function makes one graph; give `color` its own value to miss the cache.

The image of every graph is node "1" unless it says otherwise; the last node is the output.
"""

from __future__ import annotations

from typing import Any

Prompt = dict[str, dict[str, Any]]

TINY_CHECKPOINT = "stagexec-tiny-sd15.safetensors"


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    """One node of a prompt; a link is `[node id, socket]`."""
    return {"class_type": class_type, "inputs": inputs}


def empty(color: int = 0, size: int = 8, batch: int = 1) -> dict[str, Any]:
    """An EmptyImage."""
    return node("EmptyImage", width=size, height=size, batch_size=batch, color=color)


def line(*nodes: dict[str, Any]) -> Prompt:
    """Nodes "1", "2", … as given: the caller has linked them."""
    return {str(at): each for at, each in enumerate(nodes, 1)}


def save(image: list[Any], prefix: str) -> dict[str, Any]:
    """A SaveImage."""
    return node("SaveImage", images=image, filename_prefix=prefix)


def through(class_type: str, prefix: str = "through", color: int = 0, **inputs: Any) -> Prompt:
    """EmptyImage → a node whose input is `value` → SaveImage: the frame of most graphs below."""
    return line(empty(color), node(class_type, value=["1", 0], **inputs), save(["2", 0], prefix))


def invert_save(prefix: str = "invert", color: int = 0) -> Prompt:
    """EmptyImage → ImageInvert → SaveImage."""
    return line(empty(color), node("ImageInvert", image=["1", 0]), save(["2", 0], prefix))


def preview_sleep_save(prefix: str = "late", seconds: float = 0.4, color: int = 0) -> Prompt:
    """A preview that is ready at once ("2") and a SaveImage behind a sleeping node ("4")."""
    return line(
        empty(color),
        node("PreviewImage", images=["1", 0]),
        node("StxSleep", value=["1", 0], seconds=seconds),
        save(["3", 0], prefix),
    )


def nan_save(prefix: str = "nan") -> Prompt:
    """An image with NaN ("1") → ImageInvert → SaveImage."""
    return line(node("StxNaNImage", size=8), node("ImageInvert", image=["1", 0]), save(["2", 0], prefix))


def save_on_full_disk(prefix: str = "full", color: int = 0) -> Prompt:
    """A batch of three of which two files are saved before the disk is full."""
    return line(empty(color, batch=3), node("StxSaveLimited", images=["1", 0], filename_prefix=prefix))


def save_then_fail(prefix: str = "partial", seconds: float = 0.2, color: int = 0) -> Prompt:
    """One branch saves ("2"); the other sleeps ("3"), raises ("4") and would preview ("5")."""
    return line(
        empty(color),
        save(["1", 0], prefix),
        node("StxSleep", value=["1", 0], seconds=seconds),
        node("StxRaise", value=["3", 0], seconds=0.0),
        node("PreviewImage", images=["4", 0]),
    )


def fails(class_type: str = "StxRaise", seconds: float = 0.0, color: int = 0) -> Prompt:
    """Node "2" raises: StxRaise, StxOOM, StxInterrupt, StxSystemExit, StxKeyboardInterrupt, StxAsyncFail."""
    return through(class_type, "never", color, seconds=seconds)


def list_fails(at: int = 6, start: int = 0) -> Prompt:
    """A list of eight numbers from `start`; node "2" is called for each and raises at the number `at`."""
    return line(
        node("StxListEight", start=start),
        node("StxFailAt", value=["1", 0], at=at),
        node("StxText", value=["2", 0]),
    )


def blocked(message: str = "", prefix: str = "blocked", color: int = 0) -> Prompt:
    """A blocker ("2") in front of SaveImage ("3"), with a message or without."""
    return through("StxBlock", prefix, color, message=message)


def blocked_list(prefix: str = "blocked", color: int = 0) -> Prompt:
    """A silent blocker ("2") into a node that takes lists ("3") in front of SaveImage ("4")."""
    return line(
        empty(color),
        node("StxBlock", value=["1", 0], message=""),
        node("StxInputIsList", value=["2", 0]),
        save(["3", 0], prefix),
    )


def lazy(prefix: str = "lazy", color: int = 0, seconds: float = 0.0) -> Prompt:
    """A lazy node ("4") that needs only its second input ("3", which sleeps); "2" is never run."""
    return line(
        empty(color),
        node("StxRaise", value=["1", 0], seconds=0.0),
        node("StxSleep", value=["1", 0], seconds=seconds),
        node("StxLazy", first=["2", 0], second=["3", 0], use_second=True),
        save(["4", 0], prefix),
    )


def async_sleeps(count: int = 3, seconds: float = 0.4, color: int = 0) -> Prompt:
    """`count` equal async sleeps in parallel ("2" …), each with a preview of its own ("p2" …)."""
    prompt = {"1": empty(color)}
    for at in range(2, 2 + count):
        prompt[str(at)] = node("StxAsyncSleep", value=["1", 0], seconds=seconds, label=at)
        prompt[f"p{at}"] = node("PreviewImage", images=[str(at), 0])
    return prompt


def expand(prefix: str = "expand", seconds: float = 0.1, color: int = 0, kind: str = "StxExpand") -> Prompt:
    """Node "2" expands: StxExpand into three children, StxExpandCycle, StxExpandUnknown."""
    return line(empty(color), node(kind, image=["1", 0], seconds=seconds), save(["2", 0], prefix))


def changed(kind: str = "StxChangedNaN", prefix: str = "changed", color: int = 0) -> Prompt:
    """Node "2" defeats the cache: StxChangedNaN or StxChangedRaises."""
    return line(empty(color), node(kind, image=["1", 0]), save(["2", 0], prefix))


def slow_planning(seconds: float = 1.0, prefix: str = "planning", color: int = 0) -> Prompt:
    """Node "2" holds the host in its planning: nothing is visited before."""
    slow_node = node("StxChangedSlow", image=["1", 0], seconds=seconds)
    return line(empty(color), slow_node, save(["2", 0], prefix))


def slow(seconds: float = 1.0, prefix: str = "slow", color: int = 0, kind: str = "StxSleep") -> Prompt:
    """Node "2" sleeps: StxSleep, StxThread."""
    return through(kind, prefix, color, seconds=seconds)


def staged(seconds: float = 0.1, prefix: str = "staged", color: int = 0) -> Prompt:
    """Node "2" splits itself into stages by our API and promises a text file."""
    return line(empty(color), node("StxStage", value=["1", 0], seconds=seconds, filename_prefix=prefix))


def chain(count: int, color: int = 0) -> Prompt:
    """`count` ImageInvert in a row on 8×8, ids "2" …, and a preview "end"."""
    prompt = {"1": empty(color)}
    for at in range(2, 2 + count):
        prompt[str(at)] = node("ImageInvert", image=[str(at - 1), 0])
    prompt["end"] = node("PreviewImage", images=[str(1 + count), 0])
    return prompt


def lanes(count: int = 20, length: int = 40, color: int = 0) -> Prompt:
    """`count` rows of `length` ImageInvert, each on an image of its own colour, each with a preview."""
    prompt: Prompt = {}
    for lane in range(count):
        prompt[f"{lane}_0"] = empty(color + lane)
        for at in range(1, length + 1):
            prompt[f"{lane}_{at}"] = node("ImageInvert", image=[f"{lane}_{at - 1}", 0])
        prompt[f"{lane}_end"] = node("PreviewImage", images=[f"{lane}_{length}", 0])
    return prompt


def models(label: int = 0, prefix: str = "models", color: int = 0) -> Prompt:
    """Node "2" loads two small models through the host; another `label` runs it again with them loaded."""
    return line(empty(color), node("StxModelPatcher", image=["1", 0], label=label), save(["2", 0], prefix))


def delivers(kind: str, prefix: str = "bad", color: int = 0) -> Prompt:
    """Node "2" is the output: StxTruncatedVideo or StxMissingFile."""
    return line(empty(color), node(kind, images=["1", 0], filename_prefix=prefix))


def noise(size: int, batch: int = 1, flat: int = 0, seed: int = 0) -> dict[str, Any]:
    """Images that no format makes small, but for the first `flat` of them."""
    return node("StxNoise", size=size, batch=batch, flat=flat, seed=seed)


def save_limited(
    limit: int, saver: dict[str, Any], images: dict[str, Any], *before: dict[str, Any]
) -> Prompt:
    """Noise ("1") → a disk that is full from `limit` bytes a file on ("2") → what `before` adds → a saver."""
    return line(images, node("StxFileLimit", value=["1", 0], bytes=limit), *before, saver)


def lift_limit(color: int = 0) -> Prompt:
    """The disk is as large as before; nothing is saved."""
    return line(empty(color), node("StxFileLimit", value=["1", 0], bytes=0))


def shows(kind: str = "StxText", color: int = 0) -> Prompt:
    """Node "2" is an output without a file: StxText or StxSilent."""
    return line(empty(color), node(kind, value=["1", 0]))


def txt2img(
    checkpoint: str = TINY_CHECKPOINT, seed: int = 1, steps: int = 2, size: int = 16, prefix: str = "txt2img"
) -> Prompt:
    """Text to image on the tiny checkpoint. Sampler "3", loader "4", decode "8", SaveImage "9"."""
    return {
        "3": node(
            "KSampler",
            seed=seed,
            steps=steps,
            cfg=7.0,
            sampler_name="euler",
            scheduler="normal",
            denoise=1.0,
            model=["4", 0],
            positive=["6", 0],
            negative=["7", 0],
            latent_image=["5", 0],
        ),
        "4": node("CheckpointLoaderSimple", ckpt_name=checkpoint),
        "5": node("EmptyLatentImage", width=size, height=size, batch_size=1),
        "6": node("CLIPTextEncode", text="a lighthouse at dusk", clip=["4", 1]),
        "7": node("CLIPTextEncode", text="blurry", clip=["4", 1]),
        "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
        "9": save(["8", 0], prefix),
    }
