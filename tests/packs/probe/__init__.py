"""A pack for both servers: counts who calls which hook of which node class, and lists what is loaded.

Nothing is wrapped. Packs look at the stack, and a wrapper would be a frame in it; a profile function is none.
`GET /packs_probe/watch` begins to count, and tells the classes; `/packs_probe/calls` tells the counts and
begins again.
"""

from __future__ import annotations

import dis
import inspect
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import nodes
from aiohttp import web
from server import PromptServer

NODE_CLASS_MAPPINGS: dict[str, type] = {}

HOOKS = ("INPUT_TYPES", "IS_CHANGED", "VALIDATE_INPUTS", "check_lazy_status")
MODERN_HOOKS = ("define_schema", "fingerprint_inputs", "validate_inputs", "execute")

SEAM = "/stagexec/host/wrap.py"
"""A function of the host's that has a seam has a frame of ours above it; packs' own functions have none."""
STAGE = "/stagexec/host/node_stage.py"
NESTED = ("INPUT_TYPES", "_input_types", "GET_SCHEMA", "FINALIZE_SCHEMA", "get_v1_info")
"""What lies between that call and a class's own function: a class asks the one that it derives from."""
CALLERS = 2

watched: dict[Any, tuple[str, int]] = {}
"""Code object -> the name of its hook, and where in it a call begins."""
calls: Counter[tuple[str, str, str]] = Counter()
"""(class, hook, who called it) -> how often."""


def note(frame: Any, event: str, _: Any) -> None:
    """The profile function: counts a watched function that begins (and not one that is resumed)."""
    code = frame.f_code
    if (
        event == "call"
        and code in watched
        and frame.f_lasti <= watched[code][1]
        and not asks_for_stage(frame)
    ):
        owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if not isinstance(owner, type):
            owner = type(owner)
        name = owner.__name__ if owner is not type(None) else code.co_qualname.split(".")[0]
        calls[name, watched[code][0], " < ".join(callers(frame))] += 1


def asks_for_stage(frame: Any) -> bool:
    """Is this within the one call of INPUT_TYPES by which stagexec learns a class's stage?"""
    while (frame := frame.f_back) is not None and frame.f_code.co_name in NESTED:
        if frame.f_code.co_filename.replace("\\", "/").endswith(STAGE):
            return True
    return False


def callers(frame: Any) -> Iterator[str]:
    """The names of the two functions above, as packs ask for them. A seam's own frame is left out."""
    seen = 0
    while seen < CALLERS and (frame := frame.f_back) is not None:
        if not frame.f_code.co_filename.replace("\\", "/").endswith(SEAM):
            seen += 1
            yield frame.f_code.co_name


def code_of(owner: Any, name: str) -> Any:
    """The code of a class's function, below its decorators; None where it is no Python function."""
    function = getattr(owner, name, None)
    function = inspect.unwrap(getattr(function, "__func__", function)) if callable(function) else None
    return getattr(function, "__code__", None)


def beginning(code: Any) -> int:
    """The offset at which a call of `code` is told: later ones are a coroutine that is resumed."""
    for each in dis.get_instructions(code):
        if each.opname == "RESUME":
            return each.offset
    return 0


def watch() -> None:
    """Find the hooks of all classes, and watch this thread; threads begun after us are watched already."""
    for name, owner in list(nodes.NODE_CLASS_MAPPINGS.items()):
        function = getattr(owner, "FUNCTION", None)
        names = {each: each for each in HOOKS + MODERN_HOOKS}
        if isinstance(function, str):
            names[function] = "the function"
        for attribute, hook in names.items():
            try:
                code = code_of(owner, attribute)
            except Exception as problem:  # noqa: BLE001 - a pack's own __getattr__
                print(f"packs probe: {name}.{attribute}: {problem!r}")
                continue
            if code is not None and "comfy_api" not in code.co_filename:
                watched[code] = hook, beginning(code)
    sys.setprofile(note)


@PromptServer.instance.routes.get("/packs_probe/watch")
async def begin(_: web.Request) -> web.Response:
    """Watch from now on; {class: the pack it came from}, in the host's order."""
    watch()
    found = {
        name: str(getattr(owner, "RELATIVE_PYTHON_MODULE", "nodes"))
        for name, owner in nodes.NODE_CLASS_MAPPINGS.items()
    }
    return web.json_response(found)


@PromptServer.instance.routes.get("/packs_probe/calls")
async def tell(_: web.Request) -> web.Response:
    """[class, hook, callers, count] of each since the last time; unseeded chance begins again as well."""
    random.seed(0)
    found = sorted([*key, count] for key, count in calls.items())
    calls.clear()
    return web.json_response(found)


threading.setprofile(note)
