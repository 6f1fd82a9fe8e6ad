"""Nodes that steer the loop: lists, lazy inputs, expansion, loops, blockers, slow questions, failures."""
# ruff: noqa: N802 (the host asks for these names)

import asyncio
import threading

from .kinds import ANY, CATEGORY, MS, NUMBER, node, required, work


class ScnList:
    """Three numbers, of which the next node is called for each."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("INT",)
    OUTPUT_IS_LIST = (True,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(label=NUMBER)

    def run(self, label):
        return ([label, label + 1, label + 2],)


class ScnSwitch:
    """Asks only for the input it hands on."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        lazy = {"lazy": True}
        return required(first=(ANY, lazy), second=(ANY, lazy), use_second=("BOOLEAN", {}), ms=MS)

    def check_lazy_status(self, use_second, ms, first=None, second=None):
        return [] if (second if use_second else first) is not None else ["second" if use_second else "first"]

    def run(self, use_second, ms, first=None, second=None):
        work(ms)
        return (second if use_second else first,)


class ScnExpand:
    """Does a little itself and becomes `count` working nodes in a row."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, own_ms=MS, child_ms=MS, count=NUMBER)

    def run(self, value, own_ms, child_ms, count):
        from comfy_execution.graph_utils import GraphBuilder

        work(own_ms)
        graph = GraphBuilder()
        at = value
        for _ in range(count):
            at = graph.node("ScnWork", value=at, ms=child_ms).out(0)
        return {"result": (at,), "expand": graph.finalize()}


class ScnLoop:
    """A while loop by expansion: a turn works and, if turns are left, becomes the next turn."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, turns=NUMBER, ms=MS)

    def run(self, value, turns, ms):
        from comfy_execution.graph_utils import GraphBuilder

        if turns == 0:
            return (value,)
        graph = GraphBuilder()
        body = graph.node("ScnWork", value=value, ms=ms)
        again = graph.node("ScnLoop", value=body.out(0), turns=turns - 1, ms=ms)
        return {"result": (again.out(0),), "expand": graph.finalize()}


class ScnChanged:
    """Answers slowly whether it changed; the answer is always the same."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, ask_ms=MS, ms=MS)

    @classmethod
    def IS_CHANGED(cls, value, ask_ms, ms):
        work(ask_ms)
        return 1

    def run(self, value, ask_ms, ms):
        work(ms)
        return (value,)


class ScnValidated:
    """Looks at its inputs slowly before the prompt is accepted."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, ask_ms=MS, ms=MS)

    @classmethod
    def VALIDATE_INPUTS(cls, ask_ms):
        work(ask_ms)
        return True

    def run(self, value, ask_ms, ms):
        work(ms)
        return (value,)


def block(self, value, ms):
    """Works, and stops what depends on it."""
    from comfy_execution.graph_utils import ExecutionBlocker

    work(ms)
    return (ExecutionBlocker(None),)


def fail(self, value, ms):
    """Works, and fails."""
    work(ms)
    raise ValueError("as asked")


def cancellable(self, value, ms):
    """Works in small pieces, and looks for a cancel in between."""
    import comfy.model_management as management

    for _ in range(ms // 10):
        work(10)
        management.throw_exception_if_processing_interrupted()
    return (value,)


def threaded(self, value, ms):
    """Lets a thread work and waits for it."""
    worker = threading.Thread(target=work, args=(ms,), name="scn-worker")
    worker.start()
    worker.join()
    return (value,)


async def later(self, value, ms, label):
    """Sleeps in the event loop."""
    await asyncio.sleep(ms / 1000)
    return (value,)


def staged(self, value, own_ms, post_ms, encode_ms):
    """Splits itself into stages by our API."""
    import stagexec

    work(own_ms)
    with stagexec.stage("postprocess"):
        work(post_ms)
    with stagexec.stage("encode_mux", "encode"):
        work(encode_ms)
    return (value,)


WORKS = required(value=ANY, ms=MS)

NODES = {
    **{c.__name__: c for c in (ScnList, ScnSwitch, ScnExpand, ScnLoop, ScnChanged, ScnValidated)},
    "ScnBlock": node("ScnBlock", WORKS, (ANY,), block),
    "ScnFail": node("ScnFail", WORKS, (ANY,), fail),
    "ScnCancellable": node("ScnCancellable", WORKS, (ANY,), cancellable),
    "ScnThread": node("ScnThread", WORKS, (ANY,), threaded),
    "ScnLater": node("ScnLater", required(value=ANY, ms=MS, label=NUMBER), (ANY,), later),
    "ScnStaged": node("ScnStaged", required(value=ANY, own_ms=MS, post_ms=MS, encode_ms=MS), (ANY,), staged),
}
