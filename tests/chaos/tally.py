"""Counts tries and losses, and prints them."""

from __future__ import annotations

import threading
from collections import Counter

from tests.chaos.played import KINDS, Loss, Played


class Tally:
    """What was tried and what was lost, by kind of scene. Any thread may add."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.losses: list[Loss] = []
        self.skipped: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, layer: str, played: Played, losses: list[Loss]) -> None:
        """One scene of a layer (`in miniature`, `in a ComfyUI`)."""
        with self._lock:
            name = f"{layer}: {played.kind}"
            if played.skipped is not None:
                self.skipped[f"{name} ({played.skipped})"] += 1
                return
            self.tries[name] += 1
            other_end = played.kind.startswith(("ended: signal", "ended: deed"))
            self.kills[layer] += played.killed_ns is not None and not other_end
            self.accepted[name] += len(played.accepted)
            self.lost[name] += bool(losses)
            self.losses += losses

    def more(self, losses: list[Loss]) -> None:
        """Losses that were found afterwards, in scenes that are counted already."""
        with self._lock:
            self.losses += losses

    def lines(self) -> list[str]:
        """The table, the losses and the sum."""
        found = [f"{'scene':<44}{'tries':>7}{'accepted':>10}{'with losses':>13}"]
        for name in sorted(self.tries):
            row = f"{name:<44}{self.tries[name]:>7}{self.accepted[name]:>10}{self.lost[name]:>13}"
            found.append(row)
        found += [f"not played: {name}: {count}" for name, count in sorted(self.skipped.items())]
        of_kind = Counter(loss.kind for loss in self.losses)
        found += [f"{of_kind[kind]:>6}  {kind}: {words}" for kind, words in KINDS.items() if of_kind[kind]]
        kills = ", ".join(f"{count} kills {layer}" for layer, count in sorted(self.kills.items()))
        total = sum(self.accepted.values())
        tries, lost = sum(self.tries.values()), len(self.losses)
        found.append(f"{tries} scenes ({kills}), {total} prompts accepted, {lost} losses")
        return found
