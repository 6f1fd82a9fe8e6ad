"""The next free name of a row, `name_00001_.mp4`, `name_00002_.mp4`: several servers may write to one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from stagexec.delivery.errors import DeliveryFailed

NUMBERED = re.compile(r"(.*_)(\d+)(_\.?[^_]*)", re.DOTALL)

MOST = 10_000
"""So many names are tried: if all are taken, something else is wrong."""


class Row:
    """Names after a first one. `there` lists what lies in the folder; it is asked once, at the first need."""

    def __init__(self, there: Callable[[], Iterable[str]]) -> None:
        self.there = there
        self.tries = 0

    def after(self, name: str) -> str:
        """The name with the next number. DeliveryFailed for one without a number, or after too many tries."""
        found = NUMBERED.fullmatch(name)
        if found is None:
            raise DeliveryFailed("rename", f"there is a file of the name {name} already")
        self.tries += 1
        if self.tries > MOST:
            raise DeliveryFailed("rename", f"no free name after {name}: {MOST} were tried")
        number = int(found[2]) + 1
        if self.tries == 1:
            number = max([number, *self._taken(found[1])])
        return f"{found[1]}{number:0{len(found[2])}}{found[3]}"

    def _taken(self, prefix: str) -> list[int]:
        """One more than each number that is there already."""
        row = (NUMBERED.fullmatch(name) for name in self.there())
        return [int(one[2]) + 1 for one in row if one is not None and one[1] == prefix]
