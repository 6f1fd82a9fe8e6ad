"""Was an output really made? What a file was before an encoder wrote it, against what it is afterwards.

An encoder can exit with 0 and write nothing: a file that is there already and may not be replaced, an input
without frames. What it was to make good is then as it was.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from typing import Any

from stagexec.delivery.asking import ask
from stagexec.delivery.command import PIPES, Command

PIPE = "-"
"""Stands for the place of what is written to a pipe."""

NUMBER = re.compile(r"%0?\d*d")
"""Of a sequence of files, which have one number each."""

MOST_FILES = 10_000
"""So many files of a sequence are looked at."""

Look = dict[str, tuple[int, int, int]]
"""Path -> (bytes, time of the last change in ns, inode)."""


def places_of(command: Command, folder: Any) -> frozenset[str]:
    """What a process that is started in `folder` is to write: absolute paths, or PIPE."""
    start = os.fsdecode(folder) if isinstance(folder, (str, bytes, os.PathLike)) else os.curdir
    return frozenset(place_of(target, start) for target in command.targets)


def place_of(target: str, start: str = os.curdir) -> str:
    """One output's place, the same however it is spelled."""
    if PIPES.fullmatch(target):
        return PIPE
    return os.path.normcase(os.path.abspath(os.path.join(start, target.removeprefix("file:"))))


def look(places: Iterable[str]) -> Look | None:
    """The files at some places as they are now; None where the disk gives no answer."""
    paths = [place for place in places if place != PIPE]
    try:
        return ask(functools.partial(_look, paths), None) if paths else {}
    except (OSError, ValueError):
        return None


def _look(paths: list[str]) -> Look:
    found: Look = {}
    for path in paths:
        for one in _files(path):
            try:
                known = os.stat(one)
            except OSError:  # it is not there, or is away again
                continue
            found[one] = (known.st_size, known.st_mtime_ns, known.st_ino)
    return found


def _files(path: str) -> list[str]:
    folder, name = os.path.split(path)
    if not NUMBER.search(name):
        return [path]
    pattern = re.compile(r"\d+".join(map(re.escape, NUMBER.split(name))))
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [os.path.join(folder, one) for one in names if pattern.fullmatch(os.path.normcase(one))][
        :MOST_FILES
    ]


def written(places: Iterable[str], before: Look | None) -> set[str]:
    """Those of the places where something lies that is not empty, and that was not there so `before`."""
    made = set()
    for place in places:
        now = look((place,)) or {}
        if any(known[0] > 0 and (before is None or before.get(path) != known) for path, known in now.items()):
            made.add(place)
    return made
