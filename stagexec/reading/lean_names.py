"""What of an ordinary run has no name, beside the rest of its row: named.parts at a tenth of its price."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from stagexec.reading.named import does_one_thing

Place = tuple["int | None", "str | None"]
"""(visit, stage)"""


class Classes(NamedTuple):
    """What the classes of some visits say. It is shared by runs: not to be changed."""

    sure: set[Place]
    """Where the class does one thing."""
    hinted: set[int]
    """Visits of a class that does several, of which the likely one is told."""


MAX_KNOWN = 4096
MAX_VISITS = 200
"""Of more visits at once it is worked out each time."""

_known: dict[tuple[tuple[int, ...], bytes, bytes, bytes], Classes] = {}
"""The columns of visits -> what they say: most runs of a ledger are of a few workflows."""

_texts = msgspec.json.Decoder(list[str | None]).decode


def classes(told: Any) -> Classes:
    """Of the columns of a `visits` event, those of texts undecoded; an older journal has no hints.

    Raises ValueError where they are uneven, DecodeError.
    """
    key = (tuple(told.visit), bytes(told.stage), bytes(told.origin), bytes(told.hint))
    found = _known.get(key)
    if found is None:
        size = len(told.visit)
        stages, origins, hints = map(_texts, key[1:])
        found = Classes(set(), set())
        for visit, stage, origin, hint in zip(
            told.visit, stages, origins, hints or [None] * size, strict=True
        ):
            if does_one_thing(stage, origin):
                found.sure.add((visit, stage))
            if hint is not None:
                found.hinted.add(visit)
        if size <= MAX_VISITS:
            if len(_known) >= MAX_KNOWN:
                _known.clear()
            _known[key] = found
    return found


def unseen(samples: Iterable[Any], times: dict[int, int], hinted: set[int]) -> int:
    """What of `times` (visit -> ns without a name) has no hint, and was not seen to be anything."""
    seen: dict[int, int] = defaultdict(int)
    for one in samples:
        for visit, ns in zip(one.visit, one.ns, strict=True):
            seen[visit] += ns
    return sum(ns - min(seen.get(visit, 0), ns) for visit, ns in times.items() if visit not in hinted)
