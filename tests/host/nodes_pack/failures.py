"""Nodes that fail, each in its own way."""
# ruff: noqa: N802 (the host asks for these names)

import asyncio
import time

from .kinds import ANY, CATEGORY, NUMBER, SECONDS, required


class StxRaise:
    """Raises RuntimeError after `seconds`. The others below differ in what they raise."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, seconds=SECONDS)

    def run(self, value, seconds):
        time.sleep(seconds)
        raise self.error()

    def error(self):
        return RuntimeError("stx: a node failed")


class StxOOM(StxRaise):
    """Raises torch's out-of-memory error."""

    def error(self):
        import torch

        kind = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
        return kind("stx: allocation on device failed")


class StxInterrupt(StxRaise):
    """Raises the host's interrupt itself: it was not asked for."""

    def error(self):
        from comfy.model_management import InterruptProcessingException

        return InterruptProcessingException()


class StxSystemExit(StxRaise):
    """Raises SystemExit, as a node that calls sys.exit does."""

    def error(self):
        return SystemExit(3)


class StxKeyboardInterrupt(StxRaise):
    """Raises KeyboardInterrupt."""

    def error(self):
        return KeyboardInterrupt()


class StxAsyncFail(StxRaise):
    """Raises RuntimeError in an async task after `seconds`."""

    async def run(self, value, seconds):
        await asyncio.sleep(seconds)
        raise self.error()


class StxAsyncSystemExit(StxRaise):
    """Raises SystemExit in an async task after `seconds`: past the task, out of the event loop."""

    async def run(self, value, seconds):
        await asyncio.sleep(seconds)
        raise SystemExit(3)


class StxListEight:
    """The whole numbers 0 to 7 as a list: what consumes it is called eight times."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("INT",)
    OUTPUT_IS_LIST = (True,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(start=NUMBER)

    def run(self, start):
        return ([start + at for at in range(8)],)


class StxFailAt:
    """Hands its number on, and raises where it equals `at`."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("INT",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=NUMBER, at=NUMBER)

    def run(self, value, at):
        if value == at:
            raise RuntimeError(f"stx: failed at {at}")
        return (value,)


class StxChangedNaN:
    """Never cached: IS_CHANGED returns NaN."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(image="IMAGE")

    @classmethod
    def IS_CHANGED(cls, **_):
        return float("nan")

    def run(self, image):
        return (image,)


class StxChangedRaises(StxChangedNaN):
    """Never cached: IS_CHANGED raises."""

    @classmethod
    def IS_CHANGED(cls, **_):
        raise ValueError("stx: IS_CHANGED failed")


class StxChangedSlow(StxChangedNaN):
    """Holds the host in its planning: IS_CHANGED takes `seconds`."""

    @classmethod
    def INPUT_TYPES(cls):
        return required(image="IMAGE", seconds=SECONDS)

    @classmethod
    def IS_CHANGED(cls, seconds, **_):
        time.sleep(seconds)
        return seconds

    def run(self, image, seconds):
        return (image,)


NODES = {
    cls.__name__: cls
    for cls in (
        StxRaise,
        StxOOM,
        StxInterrupt,
        StxSystemExit,
        StxKeyboardInterrupt,
        StxAsyncFail,
        StxAsyncSystemExit,
        StxListEight,
        StxFailAt,
        StxChangedNaN,
        StxChangedRaises,
        StxChangedSlow,
    )
}
