"""Where in a TOML text a key is written: the parser forgets it, and a message should name the line."""

from __future__ import annotations

import re
from collections.abc import Sequence

Path = Sequence["str | int"]
"""A place in the parsed tree, as in ("arm", 2, "args")."""

_TABLE = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+|\"[^\"]*\")\s*=")


def line_of(text: str, path: Path) -> int:
    """The line, from 1, on which the longest written beginning of `path` stands."""
    best_line, best_length = 1, 0
    counts: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            names = [name.strip().strip('"') for name in header[2].split(".")]
            table = _resolve(names, counts, opens_element=header[1] == "[[")
            place = table
        elif key := _KEY.match(line):
            place = (*table, key[1].strip('"'))
        else:
            continue
        if len(place) > best_length and tuple(path[: len(place)]) == place:
            best_line, best_length = number, len(place)
    return best_line


def _resolve(
    names: list[str], counts: dict[tuple[str | int, ...], int], opens_element: bool
) -> tuple[str | int, ...]:
    """The full path of a table header: a name that is an array of tables means its latest element."""
    place: tuple[str | int, ...] = ()
    for depth, name in enumerate(names):
        place = (*place, name)
        if opens_element and depth == len(names) - 1:
            counts[place] = counts.get(place, -1) + 1
        if place in counts:
            place = (*place, counts[place])
    return place
