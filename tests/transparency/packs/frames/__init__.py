"""Nodes that look at the stack in every one of their hooks, as public packs do, and tell what they saw.

The commonest idiom answers INPUT_TYPES by who asks: `inspect.stack()[2].function == "get_input_info"`, often
with `[3].function == "add_node"`. Others walk up to `execute` and read its locals.
"""
# ruff: noqa: N802 (the host asks for these names)

import asyncio
import inspect
import json
import sys

CATEGORY = "stagexec test"
BOTTOM = ("prompt_worker", "post_prompt")
"""Where the executor's part of a stack ends, and where validation's does."""
READ = ("unique_id", "prompt_id", "input_name", "input_category", "func", "item")
"""Locals that packs read in the host's frames."""

OURS = "_input_types"
"""The ledger asks a class once for its types, to name the stage of its nodes: a call that the host lacks."""

NEAR = 6
"""Of so many frames packs look at the file's name; the one at the bottom is in a file of ours."""

seen = []


def look(kind, hook):
    """Keep the functions above a hook, from its caller to the worker, with what packs read of each."""
    frame = sys._getframe(2)
    above = []
    while frame is not None:
        if frame.f_code.co_name == OURS:
            return
        # How often, and for which input, the scheduler asks INPUT_TYPES is the executor's business.
        names = READ if hook != "INPUT_TYPES" else ()
        local = {name: frame.f_locals[name] for name in names if isinstance(frame.f_locals.get(name), str)}
        file = frame.f_code.co_filename.replace("\\", "/")
        in_execution = len(above) < NEAR and file.endswith("/execution.py")
        above.append([frame.f_code.co_name, in_execution, local])
        if frame.f_code.co_name in BOTTOM:
            break
        frame = frame.f_back
    told = [kind, hook, above]
    if told not in seen:
        seen.append(told)


class Frames:
    """Looks in every hook of the older kind."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("*",)
    FUNCTION = "run"

    def __init__(self):
        look(type(self).__name__, "__init__")

    @classmethod
    def INPUT_TYPES(cls):
        look(cls.__name__, "INPUT_TYPES")
        lazy = ("*", {"lazy": True})
        hidden = {"unique_id": "UNIQUE_ID"}
        return {"required": {"value": ("*",)}, "optional": {"a": lazy, "b": lazy}, "hidden": hidden}

    @classmethod
    def VALIDATE_INPUTS(cls, input_types):
        look(cls.__name__, "VALIDATE_INPUTS")
        return True

    @classmethod
    def IS_CHANGED(cls, **_):
        look(cls.__name__, "IS_CHANGED")
        return "never"

    def check_lazy_status(self, **given):
        look(type(self).__name__, "check_lazy_status")
        return [name for name in ("a",) if name in given and given[name] is None]

    def run(self, value, unique_id, **_):
        look(type(self).__name__, "run")
        return (value,)


class FramesLazy(Frames):
    """The same behind a lazy input: the scheduler asks it when the input is wanted."""


class FramesChild(Frames):
    """The same inside an expansion."""


class FramesAsync(Frames):
    """The same with a coroutine as its function."""

    async def run(self, value, unique_id, **_):
        look(type(self).__name__, "run")
        await asyncio.sleep(0.01)
        look(type(self).__name__, "run, woken")
        return (value,)


class FramesExpand(Frames):
    """Expands into another and an output node."""

    def run(self, value, unique_id, **_):
        from comfy_execution.graph_utils import GraphBuilder

        look(type(self).__name__, "run")
        graph = GraphBuilder()
        child = graph.node("FramesChild", value=value)
        graph.node("FramesShow", value=child.out(0))
        return {"result": (child.out(0),), "expand": graph.finalize()}


class FramesShow(Frames):
    """An output node."""

    RETURN_TYPES = ()
    OUTPUT_NODE = True

    def run(self, value, unique_id, **_):
        look(type(self).__name__, "run")
        return {"ui": {"text": ["shown"]}}


class FramesFails(Frames):
    """Raises a StopIteration as it is made, which leaves no generator as itself."""

    def __init__(self):
        look(type(self).__name__, "__init__")
        raise StopIteration("frames: not made")


class Any:
    """Any input name is there, and lazy."""

    def __contains__(self, name):
        return True

    def __getitem__(self, name):
        return "*", {"lazy": True}


class FramesSwitch:
    """Lets only the scheduler know that its inputs are lazy; the one not picked is never made."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("*",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        stack = inspect.stack()
        asked = stack[2].function == "get_input_info" and stack[3].function == "add_node"
        more = Any() if asked else {"a1": ("*", {"lazy": True})}
        return {"required": {"pick": ("INT", {"default": 1})}, "optional": more}

    @classmethod
    def VALIDATE_INPUTS(cls, input_types):
        return True

    def check_lazy_status(self, pick, **_):
        return [f"a{pick}"]

    def run(self, pick, **given):
        return (given[f"a{pick}"],)


class FramesByName:
    """Answers with the inputs of the node that is asked about, which it finds in its caller's locals."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("*",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        name = sys._getframe(1).f_locals.get("input_name")
        return {"required": {}, "optional": {name: ("*", {"lazy": True})} if name else {}}

    def check_lazy_status(self, **given):
        return ["b"] if given.get("b") is None else []

    def run(self, **given):
        return (given.get("b"),)


class FramesTold:
    """Shows what was seen until now, and forgets it."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ()
    OUTPUT_NODE = True
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("*",), "near": ("BOOLEAN", {"default": False})}}

    @classmethod
    def IS_CHANGED(cls, **_):
        return float("nan")

    def run(self, value, near):
        """`near`: without the frames that repeat the one before, and none above the loop over the nodes."""
        if near:
            for _, _, above in seen:
                names = [name for name, *_ in above]
                end = names.index("execute_async") if "execute_async" in names else len(names)
                kept = [one for at, one in enumerate(names[:end]) if names[at - 1 : at] != [one]]
                above[:] = kept
        told = sorted(set(map(json.dumps, seen)))
        seen.clear()
        return {"ui": {"text": told}}


CLASSES = (
    Frames, FramesLazy, FramesChild, FramesAsync, FramesExpand, FramesShow, FramesFails, FramesSwitch,
    FramesByName, FramesTold,
)  # fmt: skip
NODE_CLASS_MAPPINGS = {one.__name__: one for one in CLASSES}

try:
    from comfy_api.latest import io
except ImportError:  # hosts before nodes of the newer kind
    io = None

if io is not None:

    class FramesModern(io.ComfyNode):
        """The same of the newer kind."""

        @classmethod
        def define_schema(cls):
            look("FramesModern", "define_schema")
            value = io.AnyType.Input("value")
            return io.Schema("FramesModern", category=CATEGORY, inputs=[value], outputs=[io.AnyType.Output()])

        @classmethod
        def fingerprint_inputs(cls, **_):
            look("FramesModern", "fingerprint_inputs")
            return "never"

        @classmethod
        def validate_inputs(cls, **_):
            look("FramesModern", "validate_inputs")
            return True

        @classmethod
        def check_lazy_status(cls, **_):
            look("FramesModern", "check_lazy_status")
            return []

        @classmethod
        def execute(cls, value):
            look("FramesModern", "execute")
            return io.NodeOutput(value)

    NODE_CLASS_MAPPINGS["FramesModern"] = FramesModern
