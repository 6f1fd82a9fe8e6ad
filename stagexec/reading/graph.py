"""Walks over a run's graph, its expansions included; all of them linear and iterative."""

from __future__ import annotations

from collections.abc import Iterable

from stagexec.reading.runs import Run


class Graph:
    """The submitted graph and what grew from it. Node ids are the host's."""

    def __init__(self, run: Run) -> None:
        self.inputs: dict[str, list[str]] = {}
        self.class_of: dict[str, str | None] = {}
        self.parent_of: dict[str, str] = {}
        self.children_of: dict[str, list[str]] = {}
        self.results_of: dict[str, list[str]] = {}
        self.selected: list[str] = run.accepted.selected_outputs if run.accepted else []
        if run.accepted is not None:
            nodes = run.accepted.nodes
            self.class_of.update(zip(nodes, run.accepted.classes, strict=False))
            for node, positions in zip(nodes, run.accepted.links, strict=False):
                self.inputs[node] = [nodes[p] for p in positions if 0 <= p < len(nodes)]
        for grown in run.growth:
            self.class_of.update(zip(grown.nodes, grown.classes, strict=False))
            self.inputs.update(zip(grown.nodes, grown.links, strict=False))
            if grown.parent is not None:
                self.children_of.setdefault(grown.parent, []).extend(grown.nodes)
                self.results_of.setdefault(grown.parent, []).extend(grown.results)
                for node in grown.nodes:
                    self.parent_of.setdefault(node, grown.parent)

    def ancestors(self, of: Iterable[str]) -> dict[str, None]:
        """`of` and everything it takes inputs from, by links of the submitted graph and of growth."""
        seen = dict.fromkeys(of)
        waiting = list(seen)
        while waiting:
            for node in self.inputs.get(waiting.pop(), ()):
                if node not in seen:
                    seen[node] = None
                    waiting.append(node)
        return seen

    def needed(self, of: Iterable[str]) -> dict[str, None]:
        """What had to be done so that the nodes `of` could give their outputs.

        A node needs what it takes inputs from. One that grew out of another needs that to have been called,
        and no more of it: not its brothers, and not what its parent gives in the end. One that expanded gives
        what its results give, so who takes its output needs those of its children, and no others.
        """
        seen: dict[str, None] = {}
        whole: set[str] = set()
        waiting = [(node, True) for node in of]
        while waiting:
            node, gives = waiting.pop()
            if gives and node not in whole:
                whole.add(node)
                waiting += [(child, True) for child in self.results_of.get(node, ())]
            if node in seen:
                continue
            seen[node] = None
            waiting += [(other, True) for other in self.inputs.get(node, ())]
            if node in self.parent_of:
                waiting.append((self.parent_of[node], False))
        return seen
