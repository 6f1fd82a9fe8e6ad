"""Nodes that use corners of the host's node contract: what is seen through them must not change under us."""
# ruff: noqa: N802 (the host asks for these names)

import asyncio
import json
import threading

from .kinds import ANY, CATEGORY, NUMBER, required
from .modern import NODES as MODERN


class Base:
    """What the nodes share."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(image="IMAGE")


class OddMiddle(Base):
    """Shows text in mid-graph (HAS_INTERMEDIATE_OUTPUT) and hands its image on."""

    HAS_INTERMEDIATE_OUTPUT = True

    def run(self, image):
        return {"ui": {"text": ["seen on the way"]}, "result": (image,)}


class OddCounts(Base):
    """Counts its own calls: shows whether the node object is the one of the run before."""

    RETURN_TYPES = ()
    OUTPUT_NODE = True

    def __init__(self):
        self.calls = 0

    @classmethod
    def INPUT_TYPES(cls):
        return required(image="IMAGE", label=NUMBER)

    def run(self, image, label):
        self.calls += 1
        return {"ui": {"text": [f"call {self.calls}"]}}


class OddWorld(Base):
    """Shows what a node can find out about where it runs."""

    RETURN_TYPES = ()
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        hidden = {
            "unique_id": "UNIQUE_ID",
            "prompt": "PROMPT",
            "extra_pnginfo": "EXTRA_PNGINFO",
            "dynprompt": "DYNPROMPT",
            "token": "AUTH_TOKEN_COMFY_ORG",
        }
        return {**required(image="IMAGE", label=NUMBER), "hidden": hidden}

    def run(self, image, label, unique_id, prompt, extra_pnginfo=None, dynprompt=None, token=None):
        return {"ui": {"text": [json.dumps(self.look(unique_id, prompt, extra_pnginfo, dynprompt, token))]}}

    def look(self, unique_id, prompt, extra_pnginfo, dynprompt, token):
        import execution
        import torch
        from comfy_execution.utils import get_executing_context
        from server import PromptServer

        server, context = PromptServer.instance, get_executing_context()
        running = list(server.prompt_queue.currently_running.values())
        return {
            "unique_id": unique_id,
            "prompt": prompt,
            "same_prompt": prompt is dynprompt.original_prompt,
            "all_ids": sorted(dynprompt.all_node_ids()),
            "extra_pnginfo": extra_pnginfo,
            "token": token,
            "context": None if context is None else list(context),
            "last_node_id": server.last_node_id,
            "last_prompt_id": server.last_prompt_id,
            "client_id": server.client_id,
            "running": [[len(item), item[1], item[4]] for item in running],
            "inference_mode": torch.is_inference_mode_enabled(),
            "main_thread": threading.current_thread() is threading.main_thread(),
            "thread": threading.current_thread().name,
            "loop": asyncio.get_event_loop().is_running(),
            "progress": sorted(execution.get_progress_state().nodes),
            "names": [
                execution.PromptExecutor.__name__,
                execution.PromptQueue.__name__,
                execution.execute.__name__,
            ],
        }


class OddExpandTwice(Base):
    """Expands into a node that expands again, and into a preview: outputs inside an expansion."""

    @classmethod
    def INPUT_TYPES(cls):
        return required(image="IMAGE", depth=NUMBER)

    def run(self, image, depth):
        from comfy_execution.graph_utils import GraphBuilder

        graph = GraphBuilder()
        inner = graph.node("ImageInvert", image=image)
        if depth > 0:
            inner = graph.node("OddExpandTwice", image=inner.out(0), depth=depth - 1)
        graph.node("PreviewImage", images=inner.out(0))
        return {"result": (inner.out(0),), "expand": graph.finalize()}


class OddExpandList(Base):
    """Called for each of a list: the even ones expand, the odd ones answer at once."""

    RETURN_TYPES = ("INT",)

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=NUMBER)

    def run(self, value):
        from comfy_execution.graph_utils import GraphBuilder

        if value % 2:
            return (value,)
        graph = GraphBuilder()
        child = graph.node("StxFailAt", value=value, at=-1)
        return {"result": (child.out(0),), "expand": graph.finalize()}


class OddAsyncList(Base):
    """Async, called for each of a list, ends in reverse order; raises at `at`."""

    RETURN_TYPES = ("INT",)

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=NUMBER, at=NUMBER)

    async def run(self, value, at):
        await asyncio.sleep(0.02 * (10 - value % 10))
        if value == at:
            raise ValueError(f"odd: async failure at {at}")
        return (value,)


class OddBlockSome(Base):
    """Blocks the odd ones of a list."""

    RETURN_TYPES = ("INT",)

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=NUMBER, message=("STRING", {"default": ""}))

    def run(self, value, message):
        from comfy_execution.graph_utils import ExecutionBlocker

        return (ExecutionBlocker(message or None) if value % 2 else value,)


class OddInitFails(Base):
    """Cannot be made."""

    def __init__(self):
        raise RuntimeError("odd: no instance")

    def run(self, image):
        return (image,)


class OddLazyFails(Base):
    """Raises when asked which lazy inputs it needs."""

    @classmethod
    def INPUT_TYPES(cls):
        return required(image=("IMAGE", {"lazy": True}))

    def check_lazy_status(self, image=None):
        raise RuntimeError("odd: lazy check failed")

    def run(self, image):
        return (image,)


class OddReturns(Base):
    """Returns something else than a tuple."""

    @classmethod
    def INPUT_TYPES(cls):
        return required(image="IMAGE", kind=("STRING", {"default": "none"}))

    def run(self, image, kind):
        return {"none": None, "number": 7, "short": (), "text": "abc", "list": [image]}[kind]


class OddChangedText(Base):
    """IS_CHANGED gives a text that is written into the prompt, and so into saved files."""

    @classmethod
    def INPUT_TYPES(cls):
        return required(image="IMAGE", version=NUMBER)

    @classmethod
    def IS_CHANGED(cls, image, version):
        return f"version {version // 2}"

    def run(self, image, version):
        return (image,)


class OddProgress(Base):
    """Reports progress with a preview image, as samplers do."""

    @classmethod
    def INPUT_TYPES(cls):
        return required(image="IMAGE", steps=NUMBER)

    def run(self, image, steps):
        import comfy.utils
        from PIL import Image

        bar = comfy.utils.ProgressBar(steps)
        for at in range(steps):
            preview = Image.new("RGB", (8, 8), (at * 20, 0, 0))
            bar.update_absolute(at + 1, steps, ("JPEG", preview, 512))
        return (image,)


class OddText:
    """Shows any value as text, and is an output."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ()
    OUTPUT_NODE = True
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY)

    @classmethod
    def VALIDATE_INPUTS(cls, value):
        return "odd: this value is refused" if value == "refuse me" else True

    def run(self, value):
        return {"ui": {"text": [str(value)]}}


CLASSES = (
    OddMiddle, OddCounts, OddWorld, OddExpandTwice, OddExpandList, OddAsyncList, OddBlockSome, OddInitFails,
    OddLazyFails, OddReturns, OddChangedText, OddProgress, OddText,
)  # fmt: skip
NODE_CLASS_MAPPINGS = {cls.__name__: cls for cls in CLASSES} | MODERN
