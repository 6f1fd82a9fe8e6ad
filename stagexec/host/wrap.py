"""The wrappers round host functions: the host's call happens once, under no except of ours."""

from __future__ import annotations

import copy
import inspect
import pkgutil
import sys
import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any

import wrapt

from stagexec.host.probes import PROBES, Probe
from stagexec.host.tables import SeamRow
from stagexec.public import in_other_task
from stagexec.record import live
from stagexec.record.guard import guarded
from stagexec.stages import NODE_CLASS, OPEN_STAGE

Handler = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]

AGAIN_NS = 200_000
"""Calls of a seam that is called often (`often`), no further apart than this, are one segment: what lies
between two reads of one file is the reading's own loop."""

_open = threading.local()
"""`seams`: what is open on a thread that is none of a run's own."""

STAY_OUT = object()
"""Said in place of a part: this call belongs to a seam that is open already."""

TELL_ALONE = object()
"""The same: it belongs to the stage that is open already. What it tells (which file is written) is told."""


def _never() -> bool:
    return False


is_compiling: Callable[[], bool] = _never
"""torch's own question, which its tracer knows, once torch is there."""


def _take_question(compiler: Any) -> None:
    global is_compiling
    is_compiling = getattr(compiler, "is_compiling", None) or _never


wrapt.register_post_import_hook(_take_question, "torch.compiler")


class Refusal(Exception):
    """Why a target cannot be wrapped; the message is the reason that reports show."""


class Switch:
    """One for each wrapper: `off` makes a wrapper that could not be taken out do nothing."""

    __slots__ = ("off",)

    def __init__(self) -> None:
        self.off = False


_FunctionWrapper: Any = wrapt.FunctionWrapper
_BoundFunctionWrapper: Any = wrapt.BoundFunctionWrapper


class BoundSeam(_BoundFunctionWrapper):  # type: ignore[misc]
    """A wrapped method as an object or a class hands it out: it is copied and pickled as a method is."""

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = getattr(self, "__self__", None)
        return self if owner is None else getattr(copy.deepcopy(owner, memo), self.__name__)

    def __reduce_ex__(self, protocol: Any) -> Any:
        owner = getattr(self, "__self__", None)
        if owner is None:
            return pkgutil.resolve_name, (f"{self.__module__}:{self.__qualname__}",)
        return getattr, (owner, self.__name__)


class SeamWrapper(_FunctionWrapper):  # type: ignore[misc]
    """Our mark on a wrapped host function, with its switch. It is copied and pickled as a function is."""

    __bound_function_wrapper__ = BoundSeam
    _self_switch: Switch

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__qualname__


def wrap(raw: Any, function: Any, row: SeamRow, owner: Any = None) -> tuple[SeamWrapper, str | None]:
    """A wrapper for `raw` (what stands in the dict of `owner`) and a remark, or Refusal.

    `function` is what a caller gets from the owner: it is what is looked at. The remark says what of
    the row could not be had although the rest is installed.
    """
    if inspect.isclass(function):
        raise Refusal("a class: name one of its methods")
    if not callable(function):
        raise Refusal(f"not callable: {type(function).__name__}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Refusal("a generator function: its body runs after the call has returned")
    switch = Switch()
    has_self = inspect.isclass(owner) and not isinstance(raw, (staticmethod, classmethod))
    probe, remark = _find_probe(function, row, has_self)
    if row.kind == "probe":
        handler = _probe_handler(switch, probe)  # type: ignore[arg-type]
    elif inspect.iscoroutinefunction(function):
        handler = _async_handler(row, switch)
    else:
        handler = _stage_handler(row, switch, probe)
    wrapper = SeamWrapper(raw, handler)
    wrapper._self_switch = switch
    return wrapper, remark


class _BoundProbe:
    """A probe with the places of the arguments it needs in one function's signature."""

    def __init__(self, probe: Probe, function: Any, has_self: bool) -> None:
        self.probe = probe
        self.before = probe.before
        self.after = probe.after
        self.around = probe.around
        parameters = list(inspect.signature(function).parameters.values()) if probe.needs else []
        parameters = parameters[has_self:]  # a handler gets the arguments without the instance
        places = {one.name: place for place, one in enumerate(parameters)}
        missing = [name for name in probe.needs if name not in places]
        if missing:
            raise Refusal(f"the signature has no argument {', '.join(missing)}")
        self.needs = [(name, places[name], parameters[places[name]].default) for name in probe.needs]

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The needed arguments of one call, by name; one that was not given has the host's default."""
        return {
            name: args[place] if place < len(args) else kwargs.get(name, default)
            for name, place, default in self.needs
        }


def _find_probe(function: Any, row: SeamRow, has_self: bool) -> tuple[_BoundProbe | None, str | None]:
    if row.probe is None:
        return None, None
    try:
        return _BoundProbe(PROBES[row.probe], function, has_self), None
    except (Refusal, ValueError) as reason:  # ValueError: inspect finds no signature
        if row.kind == "probe":
            raise Refusal(str(reason)) from None
        return None, f"without its probe {row.probe}: {reason}"


def _stage_handler(row: SeamRow, switch: Switch, probe: _BoundProbe | None) -> Handler:
    seam, stage, fixed = row.id, str(row.stage), row.part
    before = probe.before if probe else None
    around = probe.around if probe else None
    keeps = stage == OPEN_STAGE
    outside = frozenset(row.not_inside)
    chooses = bool(row.part_inside or row.inside or row.not_while or row.part == NODE_CLASS or keeps)
    again_ns = AGAIN_NS if row.often else 0

    def handle(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_compiling():  # torch is tracing the call: what it cannot trace here would be the node's error
            return wrapped(*args, **kwargs)
        run = live.run
        if run is None or switch.off:
            return wrapped(*args, **kwargs)
        if get_ident() != run.thread:
            run = live.elsewhere()
            if run is None or get_ident() != run.thread:
                return _on_thread(run, row, wrapped, args, kwargs)
        if outside and run.inside_any(outside):
            return wrapped(*args, **kwargs)
        part = choose_part(row, run) if chooses else fixed
        if part is STAY_OUT:
            return wrapped(*args, **kwargs)
        if before is not None:
            before(run, probe.arguments(args, kwargs))  # type: ignore[union-attr]
        if part is TELL_ALONE:
            return wrapped(*args, **kwargs)
        after = around(run, probe.arguments(args, kwargs)) if around is not None else None  # type: ignore[union-attr]
        into = str(run.stage) if keeps else stage
        depth = run.enter_again(into, part, seam, again_ns) if again_ns else run.enter(into, part, seam)
        done = False
        try:
            result = wrapped(*args, **kwargs)
            done = True
            return result
        finally:
            if not done:
                failed(run, into)
            run.leave(depth)
            if after is not None:
                after()

    return handle


def _async_handler(row: SeamRow, switch: Switch) -> Handler:
    stage = str(row.stage)

    async def timed(run: Any, wrapped: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start = run.clock()
        aside = get_ident() != run.thread or in_other_task(run)
        part = None if aside else choose_part(row, run)
        depth = None if aside or part in (STAY_OUT, TELL_ALONE) else run.enter(stage, part, row.id)
        done = False
        try:
            result = await wrapped(*args, **kwargs)
            done = True
            return result
        finally:
            if aside:
                file_span(run, row, "task" if get_ident() == run.thread else "thread", start)
            elif depth is not None:
                if not done:
                    failed(run, stage)
                run.leave(depth)

    def handle(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = live.here()
        if run is None or switch.off or (get_ident() != run.thread and not is_of_run(row)):
            return wrapped(*args, **kwargs)
        return timed(run, wrapped, args, kwargs)

    return handle


def _probe_handler(switch: Switch, probe: _BoundProbe) -> Handler:
    idle, anywhere = probe.probe.idle, probe.probe.anywhere
    before, after = probe.before, probe.after

    def handle(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = live.here()
        if switch.off or (run is None and not idle):
            return wrapped(*args, **kwargs)
        if not anywhere and run is not None and get_ident() != run.thread:
            return wrapped(*args, **kwargs)
        arguments = probe.arguments(args, kwargs)
        if before is not None:
            before(run, arguments)
        result = wrapped(*args, **kwargs)
        if after is not None:
            after(run, arguments, result)
        return result

    return handle


def _on_thread(run: Any, row: SeamRow, wrapped: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if run is None or not is_of_run(row):
        return wrapped(*args, **kwargs)
    open_here: list[str] = _open.__dict__.setdefault("seams", [])
    if row.not_inside and not set(open_here).isdisjoint(row.not_inside):
        return wrapped(*args, **kwargs)
    open_here.append(row.id)
    start = run.clock()
    try:
        return wrapped(*args, **kwargs)
    finally:
        open_here.pop()
        file_span(run, row, "thread", start)


def is_of_run(row: SeamRow) -> bool:
    """May a call on another thread be work of a run? Not on the server's thread, nor on one of ours."""
    if not row.threads or get_ident() == threading.main_thread().ident:
        return False
    return not threading.current_thread().name.startswith("stagexec-")


@guarded
def choose_part(row: SeamRow, run: Any) -> Any:
    """The part this call belongs to, by the seams that are open; STAY_OUT or TELL_ALONE: it opens none."""
    if row.inside and not run.inside_any(row.inside):
        return STAY_OUT
    if row.not_inside and run.inside_any(row.not_inside):
        return STAY_OUT
    if row.not_while and run.stage in row.not_while:
        return TELL_ALONE
    if row.part_inside is not None and run.inside(row.part_inside.seam):
        return row.part_inside.part
    if row.part == NODE_CLASS:
        return run.node[1] if run.node else None
    return run.part if row.stage == OPEN_STAGE else row.part


@guarded
def failed(run: Any, stage: str) -> None:
    """Tell the run in which stage the exception arose that is passing through now."""
    error = sys.exc_info()[1]
    if error is not None:
        run.failed_in(error, stage)


@guarded
def file_span(run: Any, row: SeamRow, kind: str, start_ns: int) -> None:
    """File a call on another lane: `task:<node id>` or `thread:<name>`, from `start_ns` until now."""
    node = executing_node()
    name = (node or "unknown") if kind == "task" else threading.current_thread().name
    visit = run.visit_no_of.get(node) if node is not None else None
    stage = None if row.stage == OPEN_STAGE else row.stage
    run.span(f"{kind}:{name}", row.id, start_ns, run.clock(), stage, visit, {"part": row.part})


def executing_visit() -> int | None:
    """The visit of a run in execution that the calling context works for; None when it cannot be told."""
    run, node = live.here(), executing_node()
    return run.visit_no_of.get(node) if run is not None and node is not None else None


def executing_node() -> str | None:
    """The node that the calling context executes, as the host's own context variable says; None outside."""
    utils = sys.modules.get("comfy_execution.utils")
    ask = getattr(utils, "get_executing_context", None)
    context = ask() if ask is not None else None
    return None if context is None else str(context.node_id)
