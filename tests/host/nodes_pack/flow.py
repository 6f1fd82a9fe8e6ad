"""Nodes that steer: blockers, lists, lazy inputs and expansions."""
# ruff: noqa: N802 (the host asks for these names)

from .kinds import ANY, CATEGORY, SECONDS, required


class StxBlock:
    """Blocks what depends on it; with a message that is an error for each output it stops."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, message=("STRING", {"default": ""}))

    def run(self, value, message):
        from comfy_execution.graph_utils import ExecutionBlocker

        return (ExecutionBlocker(message or None),)


class StxInputIsList:
    """Hands a list of values on as it came: it is called once."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    INPUT_IS_LIST = True
    OUTPUT_IS_LIST = (True,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY)

    def run(self, value):
        return (list(value),)


class StxLazy:
    """Hands on `first` or `second` and asks only for the one it needs."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        lazy = {"lazy": True}
        return required(first=(ANY, lazy), second=(ANY, lazy), use_second=("BOOLEAN", {"default": False}))

    def check_lazy_status(self, use_second, first=None, second=None):
        name, value = ("second", second) if use_second else ("first", first)
        return [name] if value is None else []

    def run(self, use_second, first=None, second=None):
        return (second if use_second else first,)


class StxExpand:
    """Becomes three nodes: invert, sleep, invert."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(image="IMAGE", seconds=SECONDS)

    def run(self, image, seconds):
        from comfy_execution.graph_utils import GraphBuilder

        graph = GraphBuilder()
        return {"result": (self.build(graph, image, seconds),), "expand": graph.finalize()}

    def build(self, graph, image, seconds):
        first = graph.node("ImageInvert", image=image)
        middle = graph.node("StxSleep", value=first.out(0), seconds=seconds)
        return graph.node("ImageInvert", image=middle.out(0)).out(0)


class StxExpandCycle(StxExpand):
    """Becomes two nodes that wait for each other."""

    def build(self, graph, image, seconds):
        first = graph.node("StxSleep", seconds=seconds)
        second = graph.node("StxSleep", value=first.out(0), seconds=seconds)
        first.set_input("value", second.out(0))
        return second.out(0)


class StxExpandUnknown(StxExpand):
    """Becomes a node of a class that does not exist: validation has no chance to see it."""

    def build(self, graph, image, seconds):
        return graph.node("StxNoSuchClass", image=image).out(0)


NODES = {
    cls.__name__: cls
    for cls in (StxBlock, StxInputIsList, StxLazy, StxExpand, StxExpandCycle, StxExpandUnknown)
}
