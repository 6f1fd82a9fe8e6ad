"""Nodes that end a run for a reason that is easily taken for another; and a pack's own route."""
# ruff: noqa: N802 (the host asks for these names)

import asyncio
import os
import subprocess
import threading
import time
import urllib.request

from aiohttp import web

from .encoders import Encoder, binary, frames
from .files import new_file
from .kinds import ANY, CATEGORY, NUMBER, SECONDS, required


def press():
    import nodes

    nodes.interrupt_processing()


class StxPress:
    """Presses interrupt itself, each time in another way; `value` goes on."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, how=("STRING", {"default": "nodes"}))

    def run(self, value, how):
        getattr(self, how)()
        return (value,)

    def nodes(self):
        press()

    def management(self):
        import comfy.model_management

        comfy.model_management.interrupt_current_processing(True)

    def raises(self):
        import comfy.model_management

        raise comfy.model_management.InterruptProcessingException

    def thread(self):
        thread = threading.Thread(target=press)
        thread.start()
        thread.join()

    def later(self):
        """A timer of its own, while a later node works."""
        threading.Timer(0.2, press).start()

    def http(self):
        from server import PromptServer

        port = PromptServer.instance.port
        with urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{port}/interrupt", data=b"{}", method="POST"),
            timeout=30,
        ):
            pass


class StxLoop:
    """A loop as packs have it: grows into a body, a saver, and itself, until `at` == `turns`."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(
            image="IMAGE", at=NUMBER, turns=NUMBER, fails_at=NUMBER, seconds=SECONDS, prefix=("STRING", {})
        )

    def run(self, image, at, turns, fails_at, seconds, prefix):
        from comfy_execution.graph_utils import GraphBuilder

        if at >= turns:
            return (image,)
        graph = GraphBuilder()
        body = graph.node("StxSleep", value=image, seconds=seconds)
        if at == fails_at:
            body = graph.node("StxRaise", value=body.out(0), seconds=0.0)
        if prefix:
            graph.node("SaveImage", images=body.out(0), filename_prefix=f"{prefix}{at}")
        again = graph.node(
            "StxLoop",
            image=body.out(0), at=at + 1, turns=turns, fails_at=fails_at, seconds=seconds, prefix=prefix,
        )  # fmt: skip
        return {"result": (again.out(0),), "expand": graph.finalize()}


class StxForgets:
    """Takes a node out of the prompt that executes, as packs that rewrite prompts do."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {**required(image="IMAGE", victim=("STRING", {})), "hidden": {"prompt": "PROMPT"}}

    def run(self, image, victim, prompt):
        prompt.pop(victim, None)
        return (image,)


class StxOOMText:
    """Fails as an Apple machine does, and wraps that in an error of its own."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, seconds=SECONDS)

    def run(self, value, seconds):
        try:
            raise RuntimeError("MPS backend out of memory (MPS allocated: 17.06 GB, max allowed: 18.13 GB).")
        except RuntimeError as error:
            raise ValueError("the sampler of this pack failed") from error


class StxSecondEncoder(Encoder):
    """An encoder that cannot open leaves an empty file; a second one does not replace it and exits with 0."""

    def run(self, value, codec, count, filename_prefix):
        path, entry = new_file(filename_prefix, "mp4")
        raw = ["-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "64x64", "-r", "8", "-i", "-"]
        for _ in range(2):
            line = [binary(), *raw, "-c:v", codec, "-preset", "stx-none", path]
            subprocess.run(line, input=b"".join(frames(count)), capture_output=True, check=False)
        return {"ui": {"gifs": [entry]} if os.path.exists(path) else {"text": ["nothing"]}}


def add_routes():
    """A route of the pack's own by which a person cancels: here, and on a thread."""
    import sys

    server = getattr(sys.modules.get("server"), "PromptServer", None)
    if getattr(server, "instance", None) is None:
        return

    @server.instance.routes.post("/stx/stop")
    async def stop(request):
        if (await request.json()).get("thread"):
            await asyncio.get_running_loop().run_in_executor(None, press)
        else:
            press()
        return web.json_response({"at": time.time()})


add_routes()

NODES = {cls.__name__: cls for cls in (StxPress, StxLoop, StxForgets, StxOOMText, StxSecondEncoder)}
