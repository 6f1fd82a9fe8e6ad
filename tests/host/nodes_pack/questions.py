"""Nodes whose class takes its time to answer the host, nodes that leave work behind, and a prompt handler."""
# ruff: noqa: N802 (the host asks for these names)

import asyncio
import time

from .kinds import ANY, CATEGORY, NUMBER, SECONDS, required


class StxAnswers:
    """Hands its value on; what follows overrides one answer."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, seconds=SECONDS)

    def run(self, value, seconds):
        return (value,)


class StxValidateSlow(StxAnswers):
    """VALIDATE_INPUTS takes `seconds`."""

    @classmethod
    def VALIDATE_INPUTS(cls, seconds):
        time.sleep(seconds)
        return True


class StxValidateAsync(StxAnswers):
    """The same as a coroutine function."""

    @classmethod
    async def VALIDATE_INPUTS(cls, seconds):
        await asyncio.sleep(seconds)
        return True


class StxChangedAsync(StxAnswers):
    """IS_CHANGED is a coroutine function that takes `seconds`."""

    @classmethod
    async def IS_CHANGED(cls, seconds, **_):
        await asyncio.sleep(seconds)
        return seconds


class StxTypesSlow(StxAnswers):
    """INPUT_TYPES takes a while whenever it is asked."""

    TAKES_S = 0.06

    @classmethod
    def INPUT_TYPES(cls):
        time.sleep(cls.TAKES_S)
        return super().INPUT_TYPES()


class StxLazySlow(StxAnswers):
    """check_lazy_status takes `seconds`."""

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=(ANY, {"lazy": True}), seconds=SECONDS)

    def check_lazy_status(self, seconds, value=None):
        if value is None:
            time.sleep(seconds)
            return ["value"]
        return []


class StxLeaves(StxAnswers):
    """Leaves work of `seconds` on the event loop that nothing awaits: on a thread, or as a task."""

    def run(self, value, seconds):
        asyncio.get_running_loop().run_in_executor(None, lasts, seconds)
        return (value,)


class StxLeavesTask(StxAnswers):
    """The same as a task, which takes as long to be cancelled."""

    def run(self, value, seconds):
        StxLeavesTask.kept = asyncio.get_running_loop().create_task(lingers(seconds))
        return (value,)


class StxHeap(StxAnswers):
    """Makes collections of the whole heap long: keeps `count` small objects, or lets go of them."""

    kept = None

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, count=NUMBER)

    def run(self, value, count):
        StxHeap.kept = [[] for _ in range(count)]
        return (value,)


def lasts(seconds):
    """Works for so long."""
    time.sleep(seconds)


async def lingers(seconds):
    """Ends so long after it was cancelled."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(seconds)
        raise


def waits_if_asked(json_data):
    """A prompt handler that takes as long as the prompt's extra data says."""
    seconds = (json_data.get("extra_data") or {}).get("stx_handler_s", 0)
    if seconds:
        time.sleep(seconds)
    return json_data


def add_handler():
    """Have the handler called for every prompt."""
    from server import PromptServer

    PromptServer.instance.add_on_prompt_handler(waits_if_asked)


NODES = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, StxAnswers) and kind is not StxAnswers
}
