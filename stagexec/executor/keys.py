"""Cache keys as Merkle digests: each node once, without recursion, equal exactly where the host's are equal.

The host's key of a node is its own signature and that of every ancestor, numbered in the order of a walk from
the node. Two keys are equal when the two graphs above the nodes are the same graph: not only the same when
unfolded into trees, but sharing the same nodes. A digest made of the inputs' digests alone would lose the
sharing, so each digest also says how its inputs' ancestries overlap:

* `one`: all links come from one node; its ancestry is the whole ancestry.
* `shared`: no two nodes of the ancestry look alike, so what looks alike is the same node.
* `meet`: for each input the nodes in which its ancestry first meets those of the inputs before it, each
  named by where it stands on both sides. They and what is above them is all that is shared.
* `walk`: in a cycle, and below one: a walk over the whole ancestry, as the host does it.

Each of them is a property of the ancestry alone, so equal ancestries get equal digests in any prompt.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

MARK = "stagexec"
"""First element of our keys, so that they are not taken for the host's."""

Key = tuple[Any, ...]
"""(MARK, hex digest), with a NaN behind it when the node must never be found outside this process."""

_packed = msgspec.msgpack.Encoder().encode

_tokens = itertools.count()
"""Makes a digest that equals no other: for values that the host never finds equal."""

MAX_NANS = 20_000
"""NaN objects remembered by identity: the host finds a NaN equal to itself when it is the same object, as
with a class that keeps one and returns it. Older ones are forgotten, and then are simply not equal."""

_nans: dict[int, tuple[float, bytes]] = {}


class Local:
    """What a node is by itself: encoded signature, links in the order of input names, and its taints."""

    __slots__ = ("encoded", "links", "nan", "unique")

    def __init__(self, encoded: bytes, links: list[tuple[str, bytes]], unique: bool, nan: bool) -> None:
        self.encoded = encoded
        self.links = links
        self.unique = unique
        self.nan = nan


class Taint:
    """What turned up while a value was encoded: nothing comparable (`unique`), or a NaN."""

    __slots__ = ("nan", "unique")

    def __init__(self) -> None:
        self.unique = False
        self.nan = False


def encode(value: Any, taint: Taint) -> bytes:
    """Bytes that are equal exactly where the host's `to_hashable` values are equal.

    1, 1.0 and True are one value; a list equals the mapping of its positions; other objects equal nothing.
    Recurses into a constant only, which nests no deeper than JSON's own parser allows.
    """
    if value is None:
        return b"N"
    if isinstance(value, (int, float)):
        return _number(value, taint)
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogatepass")
        return b"s%d:" % len(raw) + raw
    if isinstance(value, bytes):
        return b"b%d:" % len(value) + value
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, Sequence):
        pairs = list(enumerate(value))
    else:
        taint.unique = True
        return b"U"
    encoded = sorted(_pair(encode(key, taint), encode(item, taint)) for key, item in pairs)
    return b"c%d:" % len(encoded) + b"".join(encoded)


def _pair(key: bytes, item: bytes) -> bytes:
    return b"p%d:%d:" % (len(key), len(item)) + key + item


def _number(value: Any, taint: Taint) -> bytes:
    if isinstance(value, int):
        return b"i%d;" % int(value)
    if math.isnan(value):
        taint.nan = True
        return b"n" + _nan_token(value)
    if math.isinf(value):
        return b"f+" if value > 0 else b"f-"
    whole = float(value)
    if whole.is_integer():
        return b"i%d;" % int(whole)
    return b"f" + struct.pack(">d", whole)


def _nan_token(value: Any) -> bytes:
    """The same bytes for the same NaN object; other bytes for any other, even at the same address."""
    found = _nans.pop(id(value), None)
    if found is None or found[0] is not value:
        found = (value, b"%d;" % next(_tokens))
    _nans[id(value)] = found  # last again: the ones in use are forgotten last
    if len(_nans) > MAX_NANS:
        del _nans[next(iter(_nans))]
    return found[1]


def digest(*pieces: bytes) -> bytes:
    """16 bytes for these pieces; their lengths are hashed too, so no two lists of pieces run together."""
    return hashlib.blake2b(_packed(pieces), digest_size=16).digest()


def unique_digest() -> bytes:
    """A digest that nothing else has."""
    return digest(b"unique", b"%d" % next(_tokens))


class Keys:
    """The digests of one prompt's nodes, those of its expansions included. They never change once made.

    `local_of(node_id)` gives a node's Local, or None where there is no such node; it is asked once a node.
    """

    def __init__(self, local_of: Callable[[str], Local | None]) -> None:
        self._local_of = local_of
        self._locals: dict[str, Local | None] = {}
        self._made: dict[str, bytes] = {}
        self._order: list[str] = []
        self._cyclic: set[str] = set()
        self._nan: set[str] = set()
        self.missing: set[str] = set()
        """What was linked to and is not there: digests above it hold only until it comes."""
        self._unique: set[str] = set()
        self._first: dict[bytes, str] = {}
        self._likeness: Likeness | None = None

    def key(self, node_id: str) -> Key:
        """The key of a node whose digest has been made."""
        text = self._made[node_id].hex()
        if node_id in self._nan or node_id in self._unique:
            return (MARK, text, math.nan)  # external caches must not be asked: they skip what holds a NaN
        return (MARK, text)

    def make(self, node_ids: Iterable[str]) -> None:
        """Make the digests of these nodes and of all their ancestors."""
        made = self._made
        for root in node_ids:
            if root in made:
                continue
            local = self.local(root)
            if local is None or all(child in made for child, _ in local.links):
                self._finish(root)  # without a walk: prompts mostly name a node after its inputs
            else:
                self._make_from(root)

    def local(self, node_id: str) -> Local | None:
        """A node's Local, from memory after the first time."""
        if node_id not in self._locals:
            found = self._locals[node_id] = self._local_of(node_id)
            if found is None:
                self.missing.add(node_id)
        return self._locals[node_id]

    def _make_from(self, root: str) -> None:
        """Depth first with an explicit stack; a node is made after its inputs. A cycle is walked whole."""
        entered: set[str] = {root}
        stack: list[tuple[str, Any]] = [(root, self._inputs(root))]
        while stack:
            node_id, inputs = stack[-1]
            for child in inputs:
                if child not in entered and child not in self._made:
                    entered.add(child)
                    stack.append((child, self._inputs(child)))
                    break
            else:
                stack.pop()
                self._finish(node_id)

    def _inputs(self, node_id: str) -> Any:
        local = self.local(node_id)
        return iter([child for child, _ in local.links]) if local is not None else iter(())

    def _finish(self, node_id: str) -> None:
        local = self.local(node_id)
        if local is None or local.unique:
            self._unique.add(node_id)
            self._keep(node_id, unique_digest())
            return
        links = local.links
        if len(links) < 2 and (not links or self._is_sound(links[0][0])):  # as most nodes are
            if local.nan:
                self._nan.add(node_id)
            inputs = [self._made[child] + b"0" + socket for child, socket in links]
            self._keep(node_id, digest(b"one", local.encoded, *inputs))
            return
        children = list(dict.fromkeys(child for child, _ in links))
        if any(child not in self._made or child in self._cyclic for child in children):
            self._cyclic.add(node_id)  # a cycle above: only the whole of it can be compared
            self._keep(node_id, self._walk(node_id))
            return
        if any(child in self._unique for child in children):
            self._unique.add(node_id)
            self._keep(node_id, unique_digest())
            return
        if local.nan or any(child in self._nan for child in children):
            self._nan.add(node_id)
        how = self._overlap(children)
        place = {child: index for index, child in enumerate(children)}
        inputs = [self._made[child] + b"%d" % place[child] + socket for child, socket in links]
        self._keep(node_id, digest(how, local.encoded, *inputs))

    def _is_sound(self, child: str) -> bool:
        """Has this input a digest like any other?"""
        odd = child in self._cyclic or child in self._unique or child in self._nan
        return child in self._made and not odd

    def _keep(self, node_id: str, made: bytes) -> None:
        self._made[node_id] = made
        self._order.append(node_id)
        first = self._first.setdefault(made, node_id)
        if self._likeness is not None:
            self._likeness.add(node_id, made, self._children(node_id))
        elif first != node_id:
            self._likeness = Likeness()
            for known in self._order:
                self._likeness.add(known, self._made[known], self._children(known))

    def _children(self, node_id: str) -> list[str]:
        local = self.local(node_id)
        return [child for child, _ in local.links] if local is not None else []

    def _overlap(self, children: list[str]) -> bytes:
        if len(children) < 2:
            return b"one"
        if self._likeness is None:
            return b"shared"
        return self._likeness.overlap(children)

    def _walk(self, root: str) -> bytes:
        """A digest of the whole ancestry of `root`, numbered in the order in which the host meets it."""
        number: dict[str, int] = {}
        order: list[str] = []
        stack = [self._inputs(root)]
        while stack:
            child = next((one for one in stack[-1] if one not in number), None)
            if child is None:
                stack.pop()
                continue
            number[child] = len(order)
            order.append(child)
            stack.append(self._inputs(child))
        pieces = []
        for node_id in [root, *order]:
            local = self.local(node_id)
            if local is None or local.unique:
                self._unique.add(root)
                return unique_digest()
            if local.nan:
                self._nan.add(root)
            links = [b"%d" % number[child] + socket for child, socket in local.links]
            pieces.append(digest(local.encoded, *links))
        return digest(b"walk", *pieces)


class Likeness:
    """Which nodes and which digests every ancestry holds, as bit sets; made only when nodes look alike."""

    def __init__(self) -> None:
        self._order: list[str] = []
        self._made: dict[str, bytes] = {}
        self._children: dict[str, list[str]] = {}
        self._alike: dict[bytes, int] = {}
        self._kind: dict[bytes, int] = {}
        self._nodes: dict[str, int] = {}
        self._kinds: dict[str, int] = {}
        self._names: dict[tuple[str, str], bytes] = {}

    def add(self, node_id: str, made: bytes, children: list[str]) -> None:
        """One more node, after its inputs."""
        nodes = own = 1 << len(self._order)
        kinds = 1 << self._kind.setdefault(made, len(self._kind))
        for child in children:
            nodes |= self._nodes.get(child, 0)
            kinds |= self._kinds.get(child, 0)
        self._order.append(node_id)
        self._made[node_id] = made
        self._children[node_id] = children
        self._alike[made] = self._alike.get(made, 0) | own
        self._nodes[node_id] = nodes
        self._kinds[node_id] = kinds

    def overlap(self, children: list[str]) -> bytes:
        """How the ancestries of these different nodes meet; the same bytes for the same meeting."""
        nodes = kinds = 0
        for child in children:
            nodes |= self._nodes[child]
            kinds |= self._kinds[child]
        if nodes.bit_count() == kinds.bit_count():
            return b"shared"
        united = self._nodes[children[0]]
        pieces = []
        for at in range(1, len(children)):
            own = self._nodes[children[at]]
            pieces.append(digest(*sorted(self._meetings(children, at, united & own))))
            united |= own
        return digest(b"meet", *pieces)

    def _meetings(self, children: list[str], at: int, common: int) -> list[bytes]:
        """What is shared but above nothing else that is shared, by its names on both sides."""
        found = []
        while common:
            # The one made last is above none of the others; with it goes all that is above it.
            node_id = self._order[common.bit_length() - 1]
            found.append(self._name(children, node_id) + self._name(children[at:], node_id))
            common &= ~self._nodes[node_id]
        return found

    def _name(self, roots: list[str], node_id: str) -> bytes:
        """Where a node stands above the first of `roots` that it stands above; one name for one node."""
        own = self._alike[self._made[node_id]]
        bit = self._nodes[node_id] & own  # its own: no node is above one that looks like it
        path: list[tuple[str, int]] = []
        at, here = self._first_with(roots, bit)
        first = at
        name = self._names.get((here, node_id))
        while name is None:
            if own & self._nodes[here] == bit:
                name = self._made[node_id]
                break
            at, above = self._first_with(self._children[here], bit)
            path.append((here, at))
            here = above
            name = self._names.get((here, node_id))
        for below, place in reversed(path):
            name = digest(b"%d" % place, name)
            self._names[below, node_id] = name
        return b"%d:" % first + name

    def _first_with(self, roots: list[str], bit: int) -> tuple[int, str]:
        return next((at, root) for at, root in enumerate(roots) if self._nodes[root] & bit)


def fingerprinted(
    node_ids: Iterable[str], inputs_of: Callable[[str], list[str]], known: set[str]
) -> Iterator[str]:
    """Every node and its ancestors, to be asked for their change fingerprints, in the host's order: a node,
    then its ancestors as a walk meets them. `known` holds those asked before and grows."""
    for root in node_ids:
        if root in known:
            continue
        order = [root]  # in a cycle the walk comes by the root once more, as the host's does
        inputs = inputs_of(root)
        stack = [iter(inputs)] if not known.issuperset(inputs) else []
        while stack:
            child = next((one for one in stack[-1] if one not in known), None)
            if child is None:
                stack.pop()
                continue
            known.add(child)
            order.append(child)
            stack.append(iter(inputs_of(child)))
        known.add(root)
        yield from order
