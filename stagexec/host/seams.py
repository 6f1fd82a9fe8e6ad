"""The seam engine: install on import, verify, undo. Everything it does comes from the seam tables."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import wrapt

from stagexec.host.families import Family
from stagexec.host.tables import SeamRow, Tables
from stagexec.host.wrap import Refusal, SeamWrapper, wrap
from stagexec.record import live
from stagexec.record.safe import log

Factory = Callable[[ModuleType, Any], Any]
"""Takes the module and what stands there now; gives what takes its place."""

State = dict[str, str | None]
"""{seam, target, state, reason} of one row, as the journal's `seams` event holds it."""

_MISSING = object()
NO_ATTRIBUTE = "that module has no such attribute"
_MAX_CHAIN = 32


class SeamRefused(SystemExit):
    """A seam was refused under --stagexec-strict.

    It rises through the import that the seam hangs on, so it is a SystemExit: no `except Exception` of
    the host swallows it, and the process ends with the message and exit code 1, without a traceback.
    """


@dataclass
class Seam:
    """One row and what became of it."""

    row: SeamRow
    state: str = "absent"
    reason: str | None = "its module has not been imported"
    target: str = ""
    owner: Any = None
    name: str = ""
    original: Any = None
    installed: Any = None
    remark: str | None = None
    family: Family | None = None

    def describe(self) -> State:
        """The row's state, for the journal and for reports."""
        return {
            "seam": self.row.id,
            "target": self.target or self.row.target[0],
            "state": self.state,
            "reason": self.reason,
        }


_places: dict[tuple[int, str], Seam] = {}
"""What stands where in this process, by (id of the owner, name); a Seam keeps its owner alive."""


class Seams:
    """Every seam of the tables in this process.

    `replacements` maps the id of a `replace` row to its factory; a row without one stays absent.
    `strict`: a refused seam raises SeamRefused.
    """

    def __init__(
        self, tables: Tables, replacements: Mapping[str, Factory] | None = None, strict: bool = False
    ) -> None:
        self.tables = tables
        self.replacements = dict(replacements or {})
        self.strict = strict
        self.seams = {row.id: Seam(row) for row in tables.seams.values()}
        self._on = False
        self._looked_at = 0

    def install_hooks(self) -> None:
        """Ask to be told when each target's module has been imported; one that already is, at once.

        Call it before the host starts: later, other modules hold the unwrapped functions.
        """
        self._on = True
        for module in dict.fromkeys(_module_of(t) for s in self.seams.values() for t in s.row.target):
            if not module.endswith(".py"):
                wrapt.register_post_import_hook(functools.partial(self._arrived, module), module)

    def install_late(self) -> None:
        """Install rows whose target names a file (`folder/file.py:qualname`): node packs and the host's
        extra nodes are loaded by path, so no import hook sees them. Call it when all nodes
        are loaded; again is harmless."""
        waiting = [
            (seam, target)
            for seam in self.seams.values()
            for target in seam.row.target
            if seam.state == "absent" and _module_of(target).endswith(".py")
        ]
        if not waiting or not self._on or len(sys.modules) == self._looked_at:
            return
        self._looked_at = len(sys.modules)
        files = _files()
        for seam, target in waiting:
            ending = "/" + _module_of(target)
            for path, module in files.items():
                if path.endswith(ending) and seam.state == "absent":
                    self._install(seam, target, module)

    def install_in(self, module: str) -> None:
        """Install the rows of a module that has become another since its import hook was called."""
        found = sys.modules.get(module)
        if found is not None:
            self._arrived(module, found)

    def states(self) -> list[State]:
        """Every row's state as last known, in the order of the tables."""
        return [seam.describe() for seam in self.seams.values()]

    def verify(self) -> list[State]:
        """Every row's state after a look at what stands in the host now: installed may have become lost."""
        for seam in self.seams.values():
            if seam.state in ("installed", "lost") and self._on:
                _verify(seam)
        return self.states()

    def undo(self) -> list[State]:
        """Take out what is still ours; a wrapper that others have built upon goes inert and says so."""
        self._on = False
        for seam in reversed(self.seams.values()):  # rows on one base class lie one over the other
            if seam.state in ("installed", "lost"):
                _undo(seam)
        return self.states()

    def _arrived(self, name: str, module: ModuleType) -> None:
        if not self._on:
            return
        for seam in self.seams.values():
            for target in seam.row.target:
                if seam.state == "absent" and _module_of(target) == name:
                    self._install(seam, target, module)

    def _install(self, seam: Seam, target: str, module: ModuleType) -> None:
        seam.target = target
        try:
            self._put(seam, target, module)
        except Refusal as reason:
            seam.state, seam.reason = "refused", str(reason)
        except Exception as error:  # noqa: BLE001 (an import of the host must not fail by us: it is a refusal)
            seam.state, seam.reason = "refused", f"{type(error).__name__}: {error}"
        if self.strict and seam.state == "refused":
            refusal = f"stagexec: the seam {seam.row.id} at {target} was refused: {seam.reason}"
            if live.run is None:
                raise SeamRefused(refusal)
            log.error("%s. A node imported it: the run goes on.", refusal)

    def _put(self, seam: Seam, target: str, module: ModuleType) -> None:
        if seam.row.subclasses:
            seam.family = Family.of(module, target.partition(":")[2], seam.row)
            seam.state, seam.reason = ("absent", NO_ATTRIBUTE) if seam.family is None else ("installed", None)
            return
        found = _find(module, target.partition(":")[2])
        if found is None:
            seam.reason = NO_ATTRIBUTE
            return
        owner, name, raw = found
        _refuse_a_second(owner, name)
        if seam.row.kind == "replace":
            factory = self.replacements.get(seam.row.id)
            if factory is None:
                seam.reason = "nothing takes its place in this process"
                return
            new, remark = factory(module, raw), None
            if new is raw:
                seam.reason = "the host's own stays in its place in this process"
                return
        else:
            new, remark = wrap(raw, getattr(owner, name), seam.row, owner)
        setattr(owner, name, new)
        seam.owner, seam.name, seam.original, seam.installed = owner, name, raw, new
        seam.state, seam.reason, seam.remark = "installed", remark, remark
        _places[id(owner), name] = seam


def _module_of(target: str) -> str:
    return target.partition(":")[0]


def _files() -> dict[str, ModuleType]:
    """Every module by its file. Read past `__getattr__`: a look must not load a module that waits to be."""
    found = {}
    for module in list(sys.modules.values()):
        try:
            path = object.__getattribute__(module, "__dict__").get("__file__")
        except AttributeError:  # packs put things of all kinds there
            continue
        if path:
            found[str(path).replace("\\", "/")] = module
    return found


def _find(module: ModuleType, qualname: str) -> tuple[Any, str, Any] | None:
    """(owner, name, what stands in the owner's dict); None when the host has no such attribute."""
    *path, name = qualname.split(".")
    owner: Any = module
    for step in path:
        owner = getattr(owner, step, _MISSING)
        if owner is _MISSING:
            return None
    raw = _raw(owner, name)
    if raw is not _MISSING:
        return owner, name, raw
    if isinstance(owner, type) and hasattr(owner, name):
        base = next(one for one in owner.__mro__ if name in vars(one))
        raise Refusal(f"inherited from {base.__module__}:{base.__qualname__}; name that class")
    return None


def _raw(owner: Any, name: str) -> Any:
    return vars(owner).get(name, _MISSING) if isinstance(owner, type) else getattr(owner, name, _MISSING)


def _refuse_a_second(owner: Any, name: str) -> None:
    other = _places.get((id(owner), name))
    if other is None:
        return
    _verify(other)
    if other.state == "installed":
        raise Refusal(f"already patched by stagexec, as seam {other.row.id}")


def _verify(seam: Seam) -> None:
    if seam.family is not None:
        seam.state, seam.reason = seam.family.state()
        return
    current = _raw(seam.owner, seam.name)
    if _is_ours(current, seam.installed):
        seam.state, seam.reason = "installed", seam.remark
    elif current is seam.original:
        seam.state, seam.reason = "lost", "the original was put back"
    elif _reaches(current, seam.installed):
        seam.state, seam.reason = "installed", f"wrapped by {_name(current)}"
    else:
        seam.state, seam.reason = "lost", f"replaced by {_name(current)}; no call of ours can be seen in it"


def _undo(seam: Seam) -> None:
    if seam.family is not None:
        seam.family.undo()
        seam.state, seam.reason = "absent", "undone"
        return
    _places.pop((id(seam.owner), seam.name), None)
    if isinstance(seam.installed, SeamWrapper):  # others may hold it by from-import: it goes inert everywhere
        seam.installed._self_switch.off = True
    current = _raw(seam.owner, seam.name)
    if _is_ours(current, seam.installed):
        setattr(seam.owner, seam.name, seam.original)
        seam.state, seam.reason = "absent", "undone"
        return
    if current is seam.original:
        seam.state, seam.reason = "absent", "another had put the original back"
    else:
        seam.state, seam.reason = "lost", f"{_name(current)} stands in front of ours, which is inert now"


def _is_ours(current: Any, installed: Any) -> bool:
    """Is it what we put there? A method that a pack took off its class and put back is a bound one."""
    return current is installed or (
        isinstance(installed, SeamWrapper) and getattr(current, "_self_parent", None) is installed
    )


def _name(thing: Any) -> str:
    function = getattr(thing, "__func__", thing)
    code = getattr(function, "__code__", None)
    if code is not None:  # functools.wraps copies the name of what it wraps: the code tells who wrote it
        return f"{function.__globals__.get('__name__')}:{getattr(code, 'co_qualname', code.co_name)}"
    module = getattr(function, "__module__", None) or type(function).__module__
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def on_instance(
    thing: Any, names: tuple[str, ...], is_called: Callable[[str], bool]
) -> tuple[str, str] | None:
    """(state, reason) where methods of `thing` were replaced on the instance itself; None where none was.

    Our class stays in place then, and yet may never be called: no look at the class can tell. `is_called`
    knows of a name whether what stands there now was seen to call ours.
    """
    placed = {name: vars(thing)[name] for name in names if name in vars(thing)}
    past = {
        name: one
        for name, one in placed.items()
        if not is_called(name) and not _reaches(one, getattr(type(thing), name, None))
    }
    if past:
        who = ", ".join(sorted({_name(one) for one in past.values()}))
        return "lost", f"on the instance, replaced by {who}; no call of ours can be seen in it"
    if placed:
        return (
            "installed",
            f"on the instance, wrapped by {', '.join(sorted({_name(o) for o in placed.values()}))}",
        )
    return None


def _reaches(current: Any, installed: Any) -> bool:
    if isinstance(installed, type):
        return isinstance(current, type) and issubclass(current, installed)
    return any(one is installed or getattr(one, "__func__", None) is installed for one in _chain(current))


def _chain(start: Any) -> list[Any]:
    """`start` and what it visibly calls: `__wrapped__`, bound functions, partials, closures, named globals.

    Packs keep what they replaced in all of these ways; one that hides it elsewhere is not followed.
    """
    found: list[Any] = []
    todo = [start]
    while todo and len(found) < _MAX_CHAIN:
        one = todo.pop(0)
        if any(one is other for other in found):
            continue
        found.append(one)
        todo += [inner for inner in _inner(one) if callable(inner) or hasattr(inner, "__func__")]
    return found


def _inner(one: Any) -> list[Any]:
    inner = [getattr(one, name, None) for name in ("__wrapped__", "__func__", "_self_parent")]
    if isinstance(one, functools.partial):
        inner.append(one.func)
    if isinstance(one, SeamWrapper) or type(one).__name__ not in ("function", "method"):
        return inner
    function = getattr(one, "__func__", one)
    inner += getattr(function, "__defaults__", None) or ()
    inner += (getattr(function, "__kwdefaults__", None) or {}).values()
    owner = getattr(one, "__self__", None)  # a pack's object keeps what its method took the place of
    if isinstance(getattr(owner, "__dict__", None), dict):
        inner += [value for value in vars(owner).values() if callable(value)]
    try:
        scope = inspect.getclosurevars(function)
    except (ValueError, TypeError):  # a closure that is not filled yet; a method over no Python function
        return inner
    return inner + list(scope.nonlocals.values()) + list(scope.globals.values())
