"""Nodes that take time: asleep, in a thread, in an async task, loading models, in stages of their own."""
# ruff: noqa: N802 (the host asks for these names)

import asyncio
import threading
import time

from .kinds import ANY, CATEGORY, NUMBER, PREFIX, SECONDS, required


class StxSleep:
    """Hands its value on after `seconds`. Cannot be interrupted, like most nodes."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, seconds=SECONDS)

    def run(self, value, seconds):
        time.sleep(seconds)
        return (value,)


class StxThread(StxSleep):
    """Sleeps in a thread of its own and waits for it."""

    def run(self, value, seconds):
        worker = threading.Thread(target=time.sleep, args=(seconds,), name="stx-worker")
        worker.start()
        worker.join()
        return (value,)


class StxAsyncSleep(StxSleep):
    """Sleeps in the event loop; `label` tells equal ones apart for the cache."""

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, seconds=SECONDS, label=NUMBER)

    async def run(self, value, seconds, label):
        await asyncio.sleep(seconds)
        return (value,)


class StxStage(StxSleep):
    """Splits its sleep by our API into `postprocess` and the rest, and promises a file through it."""

    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, seconds=SECONDS, filename_prefix=PREFIX)

    def run(self, value, seconds, filename_prefix):
        import stagexec

        from .files import new_file

        time.sleep(seconds)
        with stagexec.stage("postprocess"):
            time.sleep(seconds)
        path, _ = new_file(filename_prefix, "txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("promised through stagexec.artifact\n")
        stagexec.artifact(path)
        return (value,)


class StxModelPatcher:
    """Sends an image through two small linear layers, each a model that the host loads and evicts.

    `label` makes it run again with its models still loaded: the node keeps them.
    """

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"

    def __init__(self):
        self.patchers = None

    @classmethod
    def INPUT_TYPES(cls):
        return required(image="IMAGE", label=NUMBER)

    def run(self, image, label):
        import comfy.model_management as management

        if self.patchers is None:
            self.patchers = [self.make(name) for name in ("StxFirstModel", "StxSecondModel")]
        management.load_models_gpu(self.patchers)
        device = management.get_torch_device()
        values = image.to(device)
        for patcher in self.patchers:
            values = patcher.model(values)
        return (values.to(image.device).clamp(0.0, 1.0),)

    @staticmethod
    def make(name):
        import comfy.model_management as management
        import comfy.model_patcher
        import torch

        layer = torch.nn.Linear(3, 3).requires_grad_(False)
        torch.nn.init.eye_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        model = type(name, (torch.nn.Sequential,), {})(layer)  # the host logs models by class name
        return comfy.model_patcher.ModelPatcher(
            model, load_device=management.get_torch_device(), offload_device=management.unet_offload_device()
        )


NODES = {cls.__name__: cls for cls in (StxSleep, StxThread, StxAsyncSleep, StxStage, StxModelPatcher)}
