"""Entries of history that name several files: `x.%03d.png`, `x_*.png`, `x.####.png`, `{:04d}.png`"""

from __future__ import annotations

import os
import re

_PIECES = re.compile(
    r"%%|(?P<digits>%0?(?P<width>\d*)[di])|(?P<hashes>#+)|(?P<braces>\{\w*(?::[^{}]*)?\})|(?P<any>\*)|(?P<one>\?)"
)


def is_pattern(name: str) -> bool:
    """Could this file name stand for several files?"""
    return any(found[0] != "%%" for found in _PIECES.finditer(name))


def expression_of(name: str) -> re.Pattern[str]:
    """What the names of a pattern's files match, in full."""
    parts: list[str] = []
    at = 0
    for found in _PIECES.finditer(name):
        parts.append(re.escape(name[at : found.start()]))
        parts.append(_piece(found))
        at = found.end()
    parts.append(re.escape(name[at:]))
    flags = re.IGNORECASE if os.path.normcase("A") == "a" else 0
    return re.compile("".join(parts), flags | re.DOTALL)


def _piece(found: re.Match[str]) -> str:
    if found["digits"]:
        least = int(found["width"] or 1)
        return rf"[+-]?\d{{{max(1, least - 1)},}}" if least > 1 else r"[+-]?\d+"
    if found["hashes"]:
        return rf"\d{{{len(found['hashes'])},}}"
    if found["braces"]:
        return r"\d+" if "d" in found[0] or ":" in found[0] or found[0] == "{}" else r".+?"
    return {"*": r".*", "?": r"."}.get(found[0], "%")


def files_of(path: str, since_wall_ns: int | None) -> list[str]:
    """The files that a pattern stands for, by name; without those older than `since_wall_ns`, if any is
    younger: an earlier sequence of the same name may have been longer.

    The pattern may stand in the last part of the path only.
    """
    folder, name = os.path.split(path)
    wanted = expression_of(name)
    try:
        with os.scandir(folder) as entries:
            found = [
                (entry.path, entry.stat().st_mtime_ns)
                for entry in entries
                if wanted.fullmatch(entry.name) and entry.is_file()
            ]
    except (OSError, ValueError):
        return []
    young = [one for one in found if since_wall_ns is None or one[1] >= since_wall_ns]
    return sorted(name for name, _ in young or found)
