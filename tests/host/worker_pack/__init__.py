"""Kills the worker in every way that packs have found, each for prompts that have a node of its name.

And nodes whose errors cannot be shown, each in its own way.
"""
# ruff: noqa: N802 (the host asks for these names)

import functools
import sys

import comfy.model_management
import execution
import server

armed = set()
"""Names of nodes whose prompts have been seen; what fires once takes its name out."""

ANY = "*"


class NoText(Exception):
    def __str__(self):
        raise SystemExit("no text")

    __repr__ = __str__


class Unshown:
    def __str__(self):
        raise KeyboardInterrupt

    __repr__ = __str__


def wrap(owner, name):
    def decorate(body):
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            return body(functools.partial(original, *args, **kwargs), *args, **kwargs)

        setattr(owner, name, wrapper)

    return decorate


@wrap(execution.PromptExecutor, "execute")
def _execute(call, executor, prompt, prompt_id, *args, **kwargs):
    armed.update(name for name in ("send", "tell", "cleanup", "for_ever") if name in prompt)
    if "raise" in prompt:
        raise RuntimeError("a profiler cannot start")
    if "exit" in prompt:
        sys.exit("a profiler cannot go on")
    if "interrupt" in prompt:
        raise KeyboardInterrupt
    if "no_text" in prompt:
        raise NoText
    if "half" in prompt:
        raise ValueError("half \ud800 a character")
    call()
    if "raise_after" in prompt:
        raise RuntimeError("a profiler cannot stop")


@wrap(execution.PromptQueue, "task_done")
def _task_done(call, queue, item_id, *args, **kwargs):
    prompt = queue.currently_running[item_id][2]
    if "task_done" in prompt:
        raise RuntimeError("the result cannot be filed")
    call()
    if "after_task_done" in prompt:
        raise RuntimeError("the result cannot be sent on")


@wrap(execution.PromptQueue, "get")
def _get(call, queue, *args, **kwargs):
    if "for_ever" in armed:
        raise OSError("the queue is gone")
    taken = call()
    if taken is not None and "get" in taken[0][2]:
        raise RuntimeError("the prompt cannot be looked at")
    return taken


@wrap(server.PromptServer, "send_sync")
def _send_sync(call, one, event, data, *args, **kwargs):
    if event == "executing" and data["node"] is None and "send" in armed:
        armed.discard("send")
        raise RuntimeError("the message cannot be sent on")
    if event == "execution_error" and "tell" in armed:
        armed.discard("tell")
        raise RuntimeError("the error cannot be sent on")
    return call()


@wrap(comfy.model_management, "soft_empty_cache")
def _soft_empty_cache(call, *args, **kwargs):
    if "cleanup" in armed:
        armed.discard("cleanup")
        raise RuntimeError("the device is gone")
    return call()


class WpUnshown:
    """Gives an object that has no text."""

    CATEGORY = "tests"
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def run(self):
        return (Unshown(),)


class WpFails:
    """Fails with an error that cannot be shown."""

    CATEGORY = "tests"
    RETURN_TYPES = ()
    FUNCTION = "run"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"kind": ("STRING", {"default": ""})}, "optional": {"value": (ANY,)}}

    @classmethod
    def VALIDATE_INPUTS(cls, kind):
        return True

    def run(self, kind, value=None):
        if kind == "no_text":
            raise NoText
        if kind == "no_name":
            raise type("Odd", (Exception,), {"__module__": None})("odd")
        if kind == "circle":
            first, second = ValueError("first"), ValueError("second \U0001f600")
            first.__cause__, second.__cause__ = second, first
            raise first
        if kind == "closes":
            sys.stderr.close()
            sys.stdout.close()
            raise ValueError("there is no console")
        raise ValueError(kind)


NODE_CLASS_MAPPINGS = {"WpUnshown": WpUnshown, "WpFails": WpFails}
