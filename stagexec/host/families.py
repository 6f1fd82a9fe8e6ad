"""Seams on a method that each subclass writes for itself, such as the `__call__` of every diffusers pipeline.

The base class is asked to tell of each subclass as it is made (`__init_subclass__`), those of node packs
included, and the subclass's own method is wrapped then.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from stagexec.host.tables import SeamRow
from stagexec.host.wrap import Refusal, SeamWrapper, wrap
from stagexec.record.guard import guarded

HOOK = "__init_subclass__"


class Family:
    """One row on one base class: what was wrapped in its subclasses."""

    def __init__(self, base: type, name: str, row: SeamRow) -> None:
        self.base, self.name, self.row = base, name, row
        self.wrapped: list[tuple[type, Any, SeamWrapper]] = []
        self.off = False
        self._before = vars(base).get(HOOK)
        self._hook = self._make_hook()

    @classmethod
    def of(cls, module: ModuleType, qualname: str, row: SeamRow) -> Family | None:
        """The family of `Base.method` in a module, its hook in place; None where it has no such class."""
        base_name, _, name = qualname.partition(".")
        base = vars(module).get(base_name)
        if not isinstance(base, type):
            return None
        found = cls(base, name, row)
        setattr(base, HOOK, found._hook)
        for one in _below(base):
            found._adopt(one)
        return found

    def _make_hook(self) -> Any:
        family, before = self, self._before
        base: Any = self.base

        def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:  # noqa: N807 (it takes that method's place)
            if before is None:
                super(base, cls).__init_subclass__(**kwargs)
            else:
                before.__get__(None, cls)(**kwargs)
            family._adopt(cls)

        return classmethod(__init_subclass__)

    @guarded
    def _adopt(self, cls: type) -> None:
        raw = vars(cls).get(self.name)
        if raw is None or self.off or isinstance(raw, SeamWrapper):
            return
        try:
            made, _ = wrap(raw, getattr(cls, self.name), self.row, cls)
        except Refusal:  # no function, or a generator: that class has none to time
            return
        setattr(cls, self.name, made)
        self.wrapped.append((cls, raw, made))

    def state(self) -> tuple[str, str | None]:
        """(state, reason) of the row now."""
        count = len(self.wrapped)
        return "installed", f"in {count} {'class' if count == 1 else 'classes'} of its family so far"

    def undo(self) -> None:
        """Take out what is still ours."""
        self.off = True
        for cls, raw, made in self.wrapped:
            made._self_switch.off = True
            if vars(cls).get(self.name) is made:
                setattr(cls, self.name, raw)
        if vars(self.base).get(HOOK) is self._hook:
            if self._before is None:
                delattr(self.base, HOOK)
            else:
                setattr(self.base, HOOK, self._before)


def _below(base: type) -> list[type]:
    found: list[type] = []
    todo: list[type] = [base]
    while todo:
        one: type
        for one in type.__subclasses__(todo.pop()):
            if one not in found:
                found.append(one)
                todo.append(one)
    return found
