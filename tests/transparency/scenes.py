"""Prompts for a scene, by name: each a list that is run in order. `p` is the file prefix, `c` the colour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.host import graphs as g

Make = Callable[[str, int], list[Any]]


def twice(make: Callable[[str, int], g.Prompt]) -> Make:
    """The same prompt, and again with whatever is cached then."""
    return lambda p, c: [make(p, c), make(p, c)]


def odd(class_type: str, *, show: str = "OddText", **inputs: Any) -> Callable[[str, int], g.Prompt]:
    """EmptyImage → an odd node → text."""
    return lambda p, c: g.line(
        g.empty(c), g.node(class_type, image=["1", 0], **inputs), g.node(show, value=["2", 0])
    )


def listed(kind: str, start: int, **inputs: Any) -> g.Prompt:
    """A list of eight numbers → a node called for each → text."""
    return g.line(
        g.node("StxListEight", start=start),
        g.node(kind, value=["1", 0], **inputs),
        g.node("OddText", value=["2", 0]),
    )


def middle(p: str, c: int, tail: str = "tail") -> g.Prompt:
    """A node that shows something in mid-graph, in front of SaveImage."""
    return g.line(g.empty(c), g.node("OddMiddle", image=["1", 0]), g.save(["2", 0], f"{p}{tail}"))


def progress(p: str, c: int) -> g.Prompt:
    """A node that reports progress with previews, and a preview image."""
    return g.line(
        g.empty(c), g.node("OddProgress", image=["1", 0], steps=4), g.node("PreviewImage", images=["2", 0])
    )


def changed_text(p: str, c: int, version: int) -> g.Prompt:
    """A node whose IS_CHANGED goes into the saved file."""
    return g.line(g.empty(c), g.node("OddChangedText", image=["1", 0], version=version), g.save(["2", 0], p))


def single(kind: str, c: int, **inputs: Any) -> g.Prompt:
    """EmptyImage → one odd output node."""
    return g.line(g.empty(c), g.node(kind, image=["1", 0], **inputs))


def modern(p: str, c: int) -> g.Prompt:
    """A node of the newer kind with lazy inputs; "2" is never run."""
    return g.line(
        g.empty(c),
        g.node("StxRaise", value=["1", 0], seconds=0.0),
        g.node("ImageInvert", image=["1", 0]),
        g.node("OddModern", first=["2", 0], second=["3", 0], label=c % 100),
    )


def chain(p: str, c: int) -> g.Prompt:
    """A short chain."""
    return g.chain(12, c)


def hooks_of(p: str, c: int, near: bool = False) -> g.Prompt:
    """Every hook of nodes that look at the stack, and what they saw."""
    return g.line(
        g.empty(c),
        g.node("FramesLazy", value=["1", 0]),
        g.node("Frames", value=["1", 0], a=["2", 0], b=["1", 0]),
        g.node("FramesAsync", value=["3", 0]),
        g.node("FramesExpand", value=["4", 0]),
        g.node("FramesModern", value=["5", 0]),
        g.node("FramesTold", value=["6", 0], near=near),
    )


def not_made(p: str, c: int) -> g.Prompt:
    """A node that raises as it is made."""
    return g.line(g.empty(c), g.node("FramesFails", value=["1", 0]), g.node("OddText", value=["2", 0]))


def told_after(make: Callable[[str, int], g.Prompt]) -> Make:
    """A prompt that fails, and then what its hooks saw."""
    told = g.line(g.empty(1), g.node("FramesTold", value=["1", 0], near=False))
    return lambda p, c: [make(p, c), told]


def switched(p: str, c: int) -> g.Prompt:
    """A switch whose inputs are lazy by who asks, as Impact's: "3" is not picked and never run."""
    return g.line(
        g.empty(c),
        g.node("ImageInvert", image=["1", 0]),
        g.node("StxRaise", value=["1", 0], seconds=0.0),
        g.node("FramesSwitch", pick=1, a1=["2", 0], a2=["3", 0]),
        g.node("PreviewImage", images=["4", 0]),
    )


def by_name(p: str, c: int) -> g.Prompt:
    """A class whose inputs hang on the name that is asked for: all lazy, "b" is wanted."""
    return g.line(
        g.empty(c),
        g.node("StxRaise", value=["1", 0], seconds=0.0),
        g.node("ImageInvert", image=["1", 0]),
        g.node("FramesByName", a=["2", 0], b=["3", 0]),
        g.node("PreviewImage", images=["4", 0]),
    )


SCENES: dict[str, Make] = {
    "every hook's stack": lambda p, c: [hooks_of(p, c), hooks_of(p, c), hooks_of(p, c + 1)],
    "every hook's stack, near": lambda p, c: [hooks_of(p, c, near=True), hooks_of(p, c, near=True)],
    "every hook's stack, a node not made": told_after(not_made),
    "a switch that looks who asks": twice(switched),
    "inputs by the name that is asked for": twice(by_name),
    "image saved, cached": lambda p, c: [g.invert_save(p, c)] * 3,
    "cached in part": lambda p, c: [g.invert_save(p, c), g.invert_save(f"{p}b", c), g.invert_save(p, c)],
    "preview, sleep, save": twice(lambda p, c: g.preview_sleep_save(p, 0.1, c)),
    "NaN image": lambda p, c: [g.nan_save(p), g.nan_save(p)],
    "disk full": twice(g.save_on_full_disk),
    "one branch saves, one raises": twice(lambda p, c: g.save_then_fail(p, 0.05, c)),
    "node raises": twice(lambda p, c: g.fails("StxRaise", color=c)),
    "out of memory": twice(lambda p, c: g.fails("StxOOM", color=c)),
    "node interrupts itself": twice(lambda p, c: g.fails("StxInterrupt", color=c)),
    "async node raises": twice(lambda p, c: g.fails("StxAsyncFail", 0.05, c)),
    "item 6 of 8 fails": lambda p, c: [g.list_fails(6, 0), g.list_fails(6, 0), g.list_fails(-9, 0)],
    "blocked in silence": twice(lambda p, c: g.blocked("", p, c)),
    "blocked with a message": twice(lambda p, c: g.blocked("not today", p, c)),
    "blocked list": twice(g.blocked_list),
    "some blocked": lambda p, c: [listed("OddBlockSome", c % 1000, message=m) for m in ("", "no", "no")],
    "lazy": twice(g.lazy),
    "parallel async": twice(lambda p, c: g.async_sleeps(3, 0.2, c)),
    "async list": lambda p, c: [listed("OddAsyncList", c % 1000, at=at) for at in (-1, -1)],
    "async list, one fails": lambda p, c: [
        listed("OddAsyncList", 20, at=23),
        listed("OddAsyncList", 20, at=23),
    ],
    "expansion": twice(lambda p, c: g.expand(p, 0.02, c)),
    "expansion into a cycle": twice(lambda p, c: g.expand(p, 0.02, c, "StxExpandCycle")),
    "expansion into an unknown class": twice(lambda p, c: g.expand(p, 0.02, c, "StxExpandUnknown")),
    "nested expansion": twice(odd("OddExpandTwice", depth=2)),
    "list of expansions": lambda p, c: [listed("OddExpandList", c % 1000)] * 2,
    "IS_CHANGED is NaN": twice(lambda p, c: g.changed("StxChangedNaN", p, c)),
    "IS_CHANGED raises": twice(lambda p, c: g.changed("StxChangedRaises", p, c)),
    "IS_CHANGED gives a text": lambda p, c: [changed_text(p, c, version) for version in (2, 3, 4, 4)],
    "output in mid-graph": lambda p, c: [middle(p, c), middle(p, c), middle(p, c, "other")],
    "progress with previews": twice(progress),
    "node object kept": lambda p, c: [single("OddCounts", c, label=at) for at in (1, 2, 2, 1)],
    "node of the newer kind": twice(modern),
    "file never written": twice(lambda p, c: g.delivers("StxMissingFile", p, c)),
    "text": twice(lambda p, c: g.shows("StxText", c)),
    "nothing shown": twice(lambda p, c: g.shows("StxSilent", c)),
    "chain": twice(chain),
    "models loaded": lambda p, c: [g.models(1, p, c), g.models(1, p, c), g.models(2, p, c)],
    "node in a thread": twice(lambda p, c: g.slow(0.05, p, c, "StxThread")),
    "null for an image": twice(lambda p, c: g.line(g.empty(c), g.save(None, p))),  # type: ignore[arg-type]
    "no instance": twice(odd("OddInitFails")),
    "lazy check fails": twice(odd("OddLazyFails")),
    **{
        f"returns {kind}": twice(odd("OddReturns", kind=kind))
        for kind in ("none", "number", "short", "text", "list")
    },
}
