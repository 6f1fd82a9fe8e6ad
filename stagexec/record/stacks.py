"""What a thread runs at this moment, in names that its authors wrote: modules, functions, nothing else.

A frame is looked at by another thread than the one that runs it, so nothing of it is kept or called.
"""

from __future__ import annotations

import dis
import itertools
import os
import re
import sys
from types import CodeType, FrameType, ModuleType

from stagexec.record.guard import guarded

DEEPEST = 300
"""Frames that are looked at, from the innermost out."""

NAME = re.compile(r"[A-Za-z_][\w.\-]{0,99}|<(?:lambda|listcomp|dictcomp|setcomp|genexpr|module)>")
HIDDEN = "?"
"""In place of a name of code that was made from a text: a prompt may hold code."""

NODES = ("nodes", "comfy_extras", "comfy_api_nodes")
OURS = ("stagexec", "wrapt")

BACK = 200
"""How many instructions before a call may load what is called."""


def told(frame: FrameType | None) -> str | None:
    """`what ← where`: the innermost call, and the innermost function of a node pack; one name where they are
    one. None where there is no frame."""
    inner = frame
    while inner is not None and _module(inner).partition(".")[0] in OURS:
        inner = inner.f_back
    if inner is None:
        return None
    where: FrameType | None = inner
    for _ in range(DEEPEST):
        if where is None or _is_of_pack(where):
            break
        where = where.f_back
    called = _called(inner.f_code, inner.f_lasti, inner.f_globals)
    what = called or name_of(inner)
    if where is None or (where is inner and called is None):
        return what
    return f"{what} ← {name_of(where)}"


def name_of(frame: FrameType) -> str:
    """module.function of a frame."""
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name).replace(".<locals>", "")
    if not _is_written(frame) or not all(NAME.fullmatch(part) for part in name.split(".")):
        name = HIDDEN
    return f"{_module(frame)}.{name}"


def _module(frame: FrameType) -> str:
    """The name of a frame's module. ComfyUI names packs by their folder's whole path: its last part."""
    name = dict.get(frame.f_globals, "__name__")
    if type(name) is not str:
        return HIDDEN
    last = name.replace("\\", "/").rpartition("/")[2]
    return last if NAME.fullmatch(last) and sys.modules.get(name) is not None else HIDDEN


def _is_of_pack(frame: FrameType) -> bool:
    name = dict.get(frame.f_globals, "__name__")
    if type(name) is not str:
        return False
    return "/" in name or "\\" in name or name.partition(".")[0] in ("custom_nodes", *NODES)


def _is_written(frame: FrameType) -> bool:
    """Is the code from the module's own file, and was not made from a text?"""
    file = frame.f_code.co_filename
    if file.startswith("<"):
        return file.startswith("<frozen ")
    own = dict.get(frame.f_globals, "__file__")
    return type(own) is str and os.path.basename(own).partition(".")[0] == _stem(file)


def _stem(file: str) -> str:
    return os.path.basename(file).partition(".")[0]


_known: dict[tuple[CodeType, int], tuple[str, ...] | None] = {}


def _called(code: CodeType, at: int, names: dict[str, object]) -> str | None:
    """`cv2.inpaint`: what a frame calls that has no frame of its own, where a module holds it."""
    key = (code, at)
    if key not in _known:
        if len(_known) > 500:
            _known.clear()
        _known[key] = _loaded(code, at)
    chain = _known[key]
    if chain is None:
        return None
    module = dict.get(names, chain[0])
    own = vars(module).get("__name__") if type(module) is ModuleType else None
    if type(own) is not str or len(chain) < 2:
        return None
    name = ".".join((own, *chain[1:]))
    return name if NAME.fullmatch(name) and not code.co_filename.startswith("<") else None


@guarded
def _loaded(code: CodeType, at: int) -> tuple[str, ...] | None:
    """The names by which the call at instruction `at` found its function: those that begin where the call
    does in its line. Since Python 3.11, which knows where each instruction stands."""
    positions = getattr(code, "co_positions", None)
    if positions is None or at < 0:
        return None
    place, first = at // 2, max(0, at // 2 - BACK)
    units, stand = code.co_code, list(itertools.islice(positions(), first, place + 1))
    if not dis.opname[units[at]].startswith("CALL") or len(stand) <= place - first:
        return None
    begin = (stand[-1][0], stand[-1][2])
    chain: list[str] = []
    high = 0
    for unit, where in zip(range(first, place), stand, strict=False):
        name, argument = dis.opname[units[2 * unit]], high | units[2 * unit + 1]
        high = argument << 8 if name == "EXTENDED_ARG" else 0
        if (where[0], where[2]) != begin:
            continue
        if name in ("LOAD_GLOBAL", "LOAD_NAME"):
            shift = 1 if name == "LOAD_GLOBAL" else 0
            chain = [code.co_names[argument >> shift]]
        elif name in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            shift = 1 if name == "LOAD_ATTR" and sys.version_info >= (3, 12) else 0
            chain.append(code.co_names[argument >> shift])
        elif name.startswith("LOAD_FAST"):
            chain = []
    return tuple(chain) or None
