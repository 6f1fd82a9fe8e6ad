"""In which order arms take their turns: interleaved pairs, balanced, from a recorded seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Round:
    """Pairs that are measured together, and for each pair the order of the arms.

    `together`: all arms have a server at the same time, so arms alternate inside a pair; otherwise each
    arm does all pairs of the round on its own server, in the order of the first pair.
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
    """All pairs of a unit. Without room for all servers at once, rounds of at most `chunk` pairs."""
    plan = orders(arms, pairs, seed, unit)
    if together:
        return [Round(tuple(range(pairs)), tuple(plan), True)]
    found = []
    for number, start in enumerate(range(0, pairs, chunk)):
        block = tuple(range(start, min(start + chunk, pairs)))
        order = plan[0] if number % 2 == 0 else tuple(reversed(plan[0]))
        found.append(Round(block, (order,) * len(block), False))
    return found
