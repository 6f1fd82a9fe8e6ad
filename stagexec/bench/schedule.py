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


def orders(
    arms: Sequence[str], pairs: int, seed: int, unit: str, mirrored: bool = False
) -> list[tuple[str, ...]]:
    """For each pair the order of the arms, drawn from `seed` and the unit's name.

    Each order is there as often as its mirror image: no arm is always first, and a steady drift cancels.
    `mirrored`: the two follow each other (A B, B A), for pairs that share their servers. Else they are mixed:
    A B, B A, A B … lays equal arms of neighbouring pairs beside each other, and a drift that forgets in the
    time of a pair then makes neighbours alike (correlation up to 1/8), which no test of the pairs expects.
    """
    draw = random.Random(f"{seed}/{unit}")
    found: list[tuple[str, ...]] = []
    while len(found) < pairs:
        order = list(arms)
        draw.shuffle(order)
        found += [tuple(order), tuple(reversed(order))]
    if not mirrored:
        draw.shuffle(found)
    return found[:pairs]


def rounds(arms: Sequence[str], pairs: int, seed: int, unit: str, chunk: int, together: bool) -> list[Round]:
    """All measures of a unit, in rounds of at most `chunk`; servers are started again for each round.

    Two launches of one arm differ (memory layout, hash seeds, what the system had cached), so a launch and
    not a run is what is drawn at random: with one launch an arm, ten pairs of runs say nothing of that.
    """
    blocks = [tuple(range(start, min(start + chunk, pairs))) for start in range(0, pairs, chunk)]
    if together:
        plan = orders(arms, pairs, seed, unit, mirrored=1 < chunk < pairs)
        return [Round(block, tuple(plan[pair] for pair in block), True) for block in blocks]
    plan = orders(arms, len(blocks), seed, unit)
    return [Round(block, (order,) * len(block), False) for block, order in zip(blocks, plan, strict=True)]


def turns(block: Round) -> list[tuple[int, str]]:
    """(pair, arm) in the order of measuring."""
    if block.together:
        return [(pair, name) for pair, order in zip(block.pairs, block.orders, strict=True) for name in order]
    return [(pair, name) for name in (block.orders[0] if block.orders else ()) for pair in block.pairs]
