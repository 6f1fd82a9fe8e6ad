"""Where a node that works on pixels lies in its graph: behind a decoder, or before what conditions a sampler.

Asked as such a node is about to run, so that what the prompt has grown by then counts. Each node and each
link is looked at once for a run, whatever the number of questions, and without recursion. A run without such
nodes is never looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

DECODED = "behind a sampler or a decoder"
CONTROL = "prepares pictures for a ControlNet alone"
PREPARES = "prepares pictures for conditioning"
UNKNOWN = "neither"


class Kind(NamedTuple):
    """What a node class does to the graph around it. Tuples hold one item per output."""

    makes: bool
    """It samples or decodes: what depends on it was made by this graph."""
    carries: tuple[bool, ...]
    """Can the output carry pixels or latents, or what holds them? Widths and texts do not."""
    pixels: tuple[bool, ...]
    works_on: bool
    """Pixels in and out, and no sampling between."""
    controls: bool
    """It applies a ControlNet."""
    conditions: bool
    shows: bool
    """It saves or previews pictures."""
    closes_loop: bool


NOTHING_KNOWN = Kind(False, (), (), False, False, False, False, False)

USE_CONTROL, USE_CONDITIONING, USE_OTHER = 1, 2, 4
"""What the pixels of a node end in, as bits. Being shown is no use."""


class Places:
    """The answers for one prompt in execution; `kind_of` tells what a class is, by its name."""

    def __init__(self, dynprompt: Any, kind_of: Callable[[str], Kind]) -> None:
        # Not the prompt itself, which is the key by which this is found.
        self._original: dict[str, Any] = dynprompt.original_prompt
        self._grown: dict[str, Any] = getattr(dynprompt, "ephemeral_prompt", {})
        self._parents: dict[str, str] = getattr(dynprompt, "ephemeral_parents", {})
        self._kind_of = kind_of
        self._kinds: dict[str, Kind] = {}
        self._made: dict[str, bool] = {}
        self._used: dict[str, int] = {}
        self._consumers: dict[str, list[str]] = {}
        self._linked: set[str] = set()
        self._looked: set[str] = set()
        self._grew: set[str] = set()
        """Nodes that grew into what samples or decodes: what comes out of them was made there."""

    def of(self, node_id: str) -> str:
        """The place of a node that works on pixels."""
        if self._is_made(node_id):
            return DECODED
        self._link()
        uses = self._uses_of(node_id)
        if uses == USE_CONTROL:
            return CONTROL
        return PREPARES if uses and not uses & USE_OTHER else UNKNOWN

    def _is_made(self, node_id: str) -> bool:
        """Does anything that this node works on come from a sampler or a decoder?"""
        self._look_at_growth()
        made, grew = self._made, self._grew
        entered: set[str] = set()
        stack = [node_id]
        while stack:
            here = stack[-1]
            if here in made:
                stack.pop()
                continue
            sources = self._sources(here)
            # What a node gives to those that grow from it is not yet what it grows into.
            outer = self._parents.get(here)
            found = any(
                (source in grew and source != outer) or made.get(source, False) or self._kind(source).makes
                for source in sources
            )
            if not found and here not in entered:
                entered.add(here)
                ahead = [one for one in sources if one not in made and one not in entered]
                if ahead:
                    stack += ahead
                    continue
            made[here] = found
            stack.pop()
        return made[node_id]

    def _look_at_growth(self) -> None:
        """Take note of nodes that have grown since, and of those that they grew from."""
        looked, grew = self._looked, self._grew
        for node_id in reversed(self._grown):
            if node_id in looked:
                break
            looked.add(node_id)
            if self._kind(node_id).makes:
                parent = self._parents.get(node_id)
                while parent is not None and parent not in grew:
                    grew.add(parent)
                    parent = self._parents.get(parent)

    def _uses_of(self, node_id: str) -> int:
        """What the pixels of a node end in, through whatever only works on pixels."""
        used = self._used
        entered: set[str] = set()
        stack = [node_id]
        while stack:
            here = stack[-1]
            if here in used:
                stack.pop()
                continue
            consumers = self._consumers.get(here) or self._parent(here)
            if here not in entered:
                entered.add(here)
                ahead = [one for one in consumers if one not in used and one not in entered]
                ahead = [one for one in ahead if self._hands_on(one)]
                if ahead:
                    stack += ahead
                    continue
            used[here] = 0
            for consumer in consumers:
                used[here] |= self._use(consumer)
            stack.pop()
        return used[node_id]

    def _hands_on(self, node_id: str) -> bool:
        kind = self._kind(node_id)
        return not kind.makes and not kind.controls and any(kind.pixels)

    def _use(self, node_id: str) -> int:
        """What a node does with pixels."""
        kind = self._kind(node_id)
        if kind.controls:
            return USE_CONTROL
        if self._hands_on(node_id):
            further = self._used.get(node_id, 0)
            return further or (USE_CONDITIONING if kind.conditions else 0)
        if kind.conditions:
            return USE_CONDITIONING
        return 0 if kind.shows or (kind.carries and not any(kind.carries)) else USE_OTHER

    def _link(self) -> None:
        """Take note of who takes pixels from whom: once, and later of what the prompt has grown."""
        linked, new = self._linked, []
        if not linked:
            new = list(self._original)
        for node_id in reversed(self._grown):
            if node_id in linked:
                break
            new.append(node_id)
        for node_id in new:
            linked.add(node_id)
            for source, socket in links(self._node(node_id)):
                if at(self._kind(source).pixels, socket):
                    self._consumers.setdefault(source, []).append(node_id)

    def _sources(self, node_id: str) -> list[str]:
        """The nodes whose pixels or latents a node takes.

        A node that grew and takes none by a link was handed them by the node that it grew from.
        """
        given = links(self._node(node_id))
        found = [source for source, socket in given if at(self._kind(source).carries, socket)]
        return found or self._parent(node_id)

    def _parent(self, node_id: str) -> list[str]:
        parent = self._parents.get(node_id)
        return [] if parent is None else [parent]

    def _node(self, node_id: str) -> Any:
        """The node; an empty one where a constant only looks like a link."""
        return self._grown.get(node_id) or self._original.get(node_id) or {}

    def _kind(self, node_id: str) -> Kind:
        class_name = self._node(node_id).get("class_type")
        kind = self._kinds.get(class_name)
        if kind is None:
            kind = self._kinds[class_name] = self._kind_of(str(class_name))
        return kind


def at(sockets: tuple[bool, ...], socket: Any) -> bool:
    """What is said of a socket; True of one that the class does not have."""
    return sockets[socket] if isinstance(socket, int) and 0 <= socket < len(sockets) else True


def links(node: Any) -> list[tuple[str, Any]]:
    """(node, socket) of everything that a node takes by a link."""
    return [
        (value[0], value[1])
        for value in node.get("inputs", {}).values()
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
    ]
