"""Nodes at work: segments that are told to a witness, the interpreter's lock held in C."""
# ruff: noqa: N802 (the host asks for these names)

import ctypes
import importlib.util
import os
import re
import time

SECONDS = ("FLOAT", {"default": 0.1, "min": 0.0, "max": 3600.0, "step": 0.001})
NUMBER = ("INT", {"default": 0, "min": -(2**31), "max": 2**31})
CATEGORY = "stagexec chaos"


def pen():
    """The witness of this server, whose file and code the test names."""
    if "_" not in _pen:
        spec = importlib.util.spec_from_file_location("chaos_witness", os.environ["CHAOS_WITNESS_CODE"])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _pen["_"] = module.start(os.environ["CHAOS_WITNESS"]), module
    return _pen["_"]


_pen = {}


class ChaosSteps:
    """A segment each millisecond; the end of each is told to the witness. `label` defeats the cache."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"image": ("IMAGE",), "seconds": SECONDS, "label": NUMBER}}

    def run(self, image, seconds, label):
        import stagexec

        written, words = pen()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with stagexec.stage("sampling", "step"):
                time.sleep(0.001)
            written.write(words.EVENT)
        return (image,)


class ChaosHold(ChaosSteps):
    """Keeps the interpreter's lock for its whole time, in C: no thread of the process runs meanwhile."""

    @classmethod
    def INPUT_TYPES(cls):
        given = super().INPUT_TYPES()["required"]
        return {"required": {**given, "how": (["sleep", "pattern"],)}}

    def run(self, image, seconds, label, how):
        super().run(image, 0.1, label)
        written, words = pen()
        written.write(words.HOLD)
        end, size = time.monotonic() + seconds, 20
        if how == "sleep":
            nap = ctypes.PyDLL(None).usleep
            for _ in range(max(1, int(seconds * 2))):
                nap(500_000)
        while how == "pattern" and time.monotonic() < end:
            re.match(r"(a+)+$", "a" * size + "b")
            size = min(size + 1, 25)
        return (image,)


NODES = {"ChaosSteps": ChaosSteps, "ChaosHold": ChaosHold}
