"""Columns that many runs share: most runs of a ledger are of a few workflows, whose segments and visits come
in the same order each time. They are read once, and what of them has no name is worked out once."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import msgspec

from stagexec.reading.events import Whole
from stagexec.reading.named import does_one_thing
from stagexec.stages import HOST_STAGES

Place = tuple["int | None", "str | None"]
"""(visit, stage)"""

MAX_KNOWN = 1024
MAX_BYTES = 8192
"""Columns of more are read each time."""


class Classes(NamedTuple):
    """What the classes of some visits say. It is shared by runs: not to be changed."""

    sure: frozenset[Place]
    """Where the class does one thing."""
    hinted: frozenset[int]
    """Visits of a class that does several, of which the likely one is told."""

    def and_(self, more: Classes) -> Classes:
        """Of both."""
        return Classes(self.sure | more.sure, self.hinted | more.hinted)


class Texts:
    """The columns of segments but for their times. Shared by runs: not to be changed."""

    __slots__ = ("_of", "_unnamed", "part", "seam", "size", "stage", "visit")

    def __init__(
        self, stage: list[str], part: list[str | None], visit: list[int | None], seam: list[str | None]
    ) -> None:
        self.stage, self.part, self.visit, self.seam = stage, part, visit, seam
        self.size = len(stage)
        self._of: Classes | None = None
        self._unnamed: list[tuple[int, int]] = []

    def unnamed(self, classes: Classes) -> list[tuple[int, int]]:
        """(index, visit) of the segments that neither a seam nor a class gives a name."""
        if self._of is not classes:
            self._of = classes
            self._unnamed = [
                (at, visit)
                for at, (stage, visit, seam) in enumerate(zip(self.stage, self.visit, self.seam, strict=True))
                if seam is None
                and visit is not None
                and (visit, stage) not in classes.sure
                and stage not in HOST_STAGES
            ]
        return self._unnamed


class Segments(NamedTuple):
    """Some segments of a run. Times in ns."""

    start_ns: list[int]
    end_ns: list[int]
    texts: Texts


NO_CLASSES = Classes(frozenset(), frozenset())

_texts_known: dict[tuple[bytes, ...], Texts] = {}
_classes_known: dict[tuple[Any, ...], Classes] = {}

_words = msgspec.json.Decoder(list[str]).decode
_words_or_null = msgspec.json.Decoder(list[str | None]).decode
_numbers_or_null = msgspec.json.Decoder(list[Whole | None]).decode


def _keep(known: dict[Any, Any], key: tuple[Any, ...], found: Any) -> None:
    if sum(map(len, key)) <= MAX_BYTES:
        if len(known) >= MAX_KNOWN:
            known.clear()
        known[key] = found


def segments(told: Any) -> Segments:
    """A `segments` event whose columns of texts and visits are undecoded.

    Raises ValueError where columns are uneven, DecodeError.
    """
    key = (bytes(told.stage), bytes(told.part), bytes(told.visit), bytes(told.seam))
    found = _texts_known.get(key)
    if found is None:
        stage, part, visit, seam = key
        found = Texts(_words(stage), _words_or_null(part), _numbers_or_null(visit), _words_or_null(seam))
        if not found.size == len(found.part) == len(found.visit) == len(found.seam):
            raise ValueError("uneven columns")
        _keep(_texts_known, key, found)
    if not found.size == len(told.start_ns) == len(told.end_ns):
        raise ValueError("uneven columns")
    return Segments(told.start_ns, told.end_ns, found)


def classes(told: Any) -> Classes:
    """Of a `visits` event, its columns of stages, origins and hints undecoded; an older one has no hints.

    Raises ValueError where columns are uneven, DecodeError.
    """
    key = (tuple(told.visit), bytes(told.stage), bytes(told.origin), bytes(told.hint))
    found = _classes_known.get(key)
    if found is None:
        stages, origins, hints = map(_words_or_null, key[1:])
        rows = list(zip(told.visit, stages, origins, hints or [None] * len(told.visit), strict=True))
        found = Classes(
            frozenset((visit, stage) for visit, stage, origin, _ in rows if does_one_thing(stage, origin)),
            frozenset(visit for visit, _, _, hint in rows if hint is not None),
        )
        _keep(_classes_known, key, found)
    return found


def unseen(samples: list[Any], times: dict[int, int], hinted: frozenset[int]) -> int:
    """What of `times` (visit -> ns without a name) has no hint, and was not seen to be anything.

    Raises ValueError where columns are uneven.
    """
    if not samples:
        return sum([ns for visit, ns in times.items() if ns > 0 and visit not in hinted])
    seen: dict[int, int] = defaultdict(int)
    for one in samples:
        for visit, ns in zip(one.visit, one.ns, strict=True):
            seen[visit] += ns
    return sum(ns - min(seen.get(visit, 0), ns) for visit, ns in times.items() if visit not in hinted)
