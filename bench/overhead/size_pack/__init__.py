"""Nodes that do nothing, so that what is measured is the executor; a count of INPUT_TYPES(); collections."""
# ruff: noqa: N802, D102 (the host asks for these names)

import gc
import time

from aiohttp import web
from comfy_execution.graph_utils import GraphBuilder
from server import PromptServer

ANY = "*"
asked = {}
collected_at = [time.monotonic()]


def watch_collections(phase, info):
    """Note when the whole heap was collected."""
    if phase == "stop" and info["generation"] == 2:
        collected_at[0] = time.monotonic()


gc.callbacks.append(watch_collections)


class SizeStart:
    """A number."""

    CATEGORY = "stagexec/size"
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        asked[cls.__name__] = asked.get(cls.__name__, 0) + 1
        return {"required": cls.required(), "optional": {"salt": ("INT", {"default": 0})}}

    @classmethod
    def required(cls):
        return {}

    def run(self, salt=0):
        return (salt,)


class SizeStep(SizeStart):
    """Its input."""

    @classmethod
    def required(cls):
        return {"value": (ANY, {})}

    def run(self, value, salt=0):
        return (value,)


class SizeJoin(SizeStart):
    """The sum of its inputs, small."""

    @classmethod
    def required(cls):
        return {"left": (ANY, {}), "right": (ANY, {})}

    def run(self, left, right, salt=0):
        return ((left + right) % 1000,)


class SizeLoop(SizeStart):
    """Expands into a step and itself until `left` is 0: every turn stands inside the one before."""

    @classmethod
    def required(cls):
        return {"value": (ANY, {}), "left": ("INT", {"default": 0, "max": 100_000})}

    def run(self, value, left, salt=0):
        if left <= 0:
            return (value,)
        graph = GraphBuilder()
        step = graph.node("SizeStep", value=value, salt=left)
        loop = graph.node("SizeLoop", value=step.out(0), left=left - 1)
        return {"result": (loop.out(0),), "expand": graph.finalize()}


class SizeEnd(SizeStep):
    """Shows its input."""

    RETURN_TYPES = ()
    OUTPUT_NODE = True

    def run(self, value, salt=0):
        return {"ui": {"text": [str(value)]}}


@PromptServer.instance.routes.get("/size/asked")
async def size_asked(_request):
    """How often each class was asked for its inputs since the last time."""
    told = dict(asked)
    asked.clear()
    return web.json_response(told)


@PromptServer.instance.routes.get("/size/collected")
async def size_collected(_request):
    """Seconds since the last full garbage collection."""
    return web.json_response(time.monotonic() - collected_at[0])


NODE_CLASS_MAPPINGS = {one.__name__: one for one in (SizeStart, SizeStep, SizeJoin, SizeLoop, SizeEnd)}
