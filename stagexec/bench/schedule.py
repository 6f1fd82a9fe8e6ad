"""In which order arms take their turns: interleaved pairs, balanced, from a recorded seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """Measures that share their servers, and for each of them the order of the arms.

    `together`: all arms have a server at the same time, so arms alternate inside a pair, seconds apart;
    otherwise each arm does all measures of the round on its own server, in the order of the first one.
    """

    pairs: tuple[int, ...]
    orders: tuple[tuple[str, ...], ...]
    together: bool


def orders(arms: Sequence[str], pairs: int, seed: int, unit: str) -> list[tuple[str, ...]]:
    """For each pair the order of the arms: each order is followed by its mirror image, so that no arm
    is always first; which comes first is drawn from `seed` and the unit's name."""
    draw = random.Random(f"{seed}/{unit}")
    found: list[tuple[str, ...]] = []
    while len(found) < pairs:
        order = list(arms)
        draw.shuffle(order)
        found += [tuple(order), tuple(reversed(order))]
    return found[:pairs]


def rounds(arms: Sequence[str], pairs: int, seed: int, unit: str, chunk: int, together: bool) -> list[Round]:
    """All measures of a unit, in rounds of at most `chunk`; servers are started again for each round.

    Two launches of one arm differ (memory layout, hash seeds, what the system had cached), so a launch and
    not a run is what is drawn at random: with one launch an arm, ten pairs of runs say nothing of that.
    Inside a round orders alternate when the arms are `together` (A B, B A: a straight drift cancels), and
    from round to round when they are not.
    """
    plan = orders(arms, pairs, seed, unit)
    found = []
    for number, start in enumerate(range(0, pairs, chunk)):
        block = tuple(range(start, min(start + chunk, pairs)))
        if together:
            found.append(Round(block, tuple(plan[pair] for pair in block), True))
        else:
            order = plan[0] if number % 2 == 0 else tuple(reversed(plan[0]))
            found.append(Round(block, (order,) * len(block), False))
    return found


def turns(block: Round) -> list[tuple[int, str]]:
    """(pair, arm) in the order of measuring."""
    if block.together:
        return [(pair, name) for pair, order in zip(block.pairs, block.orders, strict=True) for name in order]
    return [(pair, name) for name in (block.orders[0] if block.orders else ()) for pair in block.pairs]
