"""The host's key set with our digests in it: what its caches find their entries by."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from stagexec.executor import asked
from stagexec.executor.keys import Keys, Local, Taint, digest, encode, fingerprinted
from stagexec.record import clock

LINK = b"L"
"""Stands in a signature where a link is: its source is in the digest, by place. No value is encoded so."""


DEEP = 200
"""So many sub-caches inside each other the host may look through by recursion: well within Python's limit."""


class MerkleKeySet:
    """Mixed into a subclass of the host's `CacheKeySetInputSignature`. One for each cache and sub-cache."""

    api: Any = None
    keys: dict[str, Any]
    subcache_keys: dict[str, Any]
    dynprompt: Any

    is_changed_cache: Any

    async def add_keys(self, node_ids: Iterable[str]) -> None:
        """Make the keys of these nodes; their change fingerprints are asked for as the host asks."""
        wanted = [one for one in node_ids if one not in self.keys and self.dynprompt.has_node(one)]
        prompt_keys = self._prompt_keys()
        prompt_keys.begin()
        for node_id in wanted:
            await prompt_keys.get_node_signature(node_id)
        prompt_keys.keys.make(wanted)
        for node_id in wanted:
            self.keys[node_id] = prompt_keys.keys.key(node_id)
            self.subcache_keys[node_id] = (node_id, self.dynprompt.get_node(node_id)["class_type"])

    def _prompt_keys(self) -> PromptKeys:
        """The digests that this set takes its keys from. All sets of a prompt share them: they hang on the
        one object that lives as long."""
        with_id = bool(self.include_node_id_in_input())  # type: ignore[attr-defined]
        cache = self.is_changed_cache
        holder = cache if hasattr(cache, "__dict__") and hasattr(cache, "__weakref__") else self
        shared = vars(holder).setdefault("_stagexec_keys", {})
        found: PromptKeys | None = shared.get(with_id)
        if found is None or found.dynprompt is not self.dynprompt:
            held = weakref.ref(cache) if holder is cache else lambda: cache
            found = shared[with_id] = PromptKeys(self.api, self.dynprompt, held, with_id)
        return found


def known_ids(cache: Any) -> Any:
    """The ids of all nodes that a cache and its sub-caches have keys for.

    The host gathers them by recursion: after a thousand expansions inside each other it could plan no prompt.
    """
    found: set[str] = set()
    level = [cache]
    for _ in range(DEEP):
        level = [inner for one in level for inner in getattr(one, "subcaches", {}).values()]
        if not level:
            return cache.all_node_ids()
    level = [cache]
    while level:
        one = level.pop()
        found |= one.cache_key_set.all_node_ids()
        level += one.subcaches.values()
    return found


class PromptKeys:
    """The digests of one prompt and what they are made from.

    Nothing in here refers to what holds it: 20,000 nodes' worth of objects are to go with the prompt, and not
    to wait for a collection of garbage, which takes the longer the more there are.
    """

    def __init__(self, api: Any, dynprompt: Any, is_changed_cache: Callable[[], Any], with_id: bool) -> None:
        self.dynprompt = dynprompt
        self._is_changed_cache = is_changed_cache  # a weak reference, where that one holds us
        self._locals = Locals(api, dynprompt, with_id)
        self.keys = Keys(self._locals.of)
        self._asked: set[str] = set()
        self._links: dict[str, list[str]] = {}

    def begin(self) -> None:
        """Digests are about to be made."""
        if any(map(self.dynprompt.has_node, self.keys.missing)):
            self._start_anew()

    # Packs see who asks for IS_CHANGED: these two have the names of the host's functions that do.

    async def get_node_signature(self, node_id: str) -> None:
        """Ask a node and its ancestors for what their digests are made from."""
        for ancestor_id in fingerprinted([node_id], self._sources, self._asked):
            await self.get_immediate_node_signature(ancestor_id)

    def _start_anew(self) -> None:
        """An expansion has brought a node that was linked to before it was there."""
        self.keys = Keys(self._locals.of)
        self._asked.clear()
        self._links.clear()

    async def get_immediate_node_signature(self, node_id: str) -> None:
        """Ask what a node's own part of its key needs: has it changed, and does its class name its id."""
        if not self.dynprompt.has_node(node_id):
            return
        class_type = self.dynprompt.get_node(node_id)["class_type"]
        class_def = self._locals.api.nodes.NODE_CLASS_MAPPINGS[class_type]
        cache = self._is_changed_cache()
        begun_ns = clock.now_ns()
        changed = self._locals.changed[node_id] = await cache.get(node_id)
        took_ns = clock.now_ns() - begun_ns
        if took_ns >= asked.LEAST_NS and (rest_ns := took_ns - asked.latest_ns(node_id)) >= asked.LEAST_NS:
            asked.tell_in_run("INPUT_TYPES", node_id, class_type, rest_ns)
        if changed is not False:  # a pack's function was asked, and may have written into the prompt
            self._locals.known_inputs.clear()
        if class_type in self._locals.named:
            return
        self._locals.named[class_type] = (
            self._locals.with_id
            or bool(getattr(class_def, "NOT_IDEMPOTENT", False))
            or self._locals.api.caching.include_unique_id_in_input(class_type)
        )

    def _sources(self, node_id: str) -> list[str]:
        """The nodes that a node's links come from, in the order of input names."""
        found = self._links.get(node_id)
        if found is None:
            inputs = self._locals.inputs(node_id) if self.dynprompt.has_node(node_id) else ()
            found = self._links[node_id] = [value[0] for _, value, linked in inputs if linked]
        return found


class Locals:
    """What the nodes of one prompt are by themselves."""

    def __init__(self, api: Any, dynprompt: Any, with_id: bool) -> None:
        self.api = api
        self.dynprompt = dynprompt
        self.with_id = with_id
        self.changed: dict[str, Any] = {}
        """Change fingerprint by node id."""
        self.named: dict[str, bool] = {}
        """Does a key of this class hold the node's own id? Asked once a class."""
        self.known_inputs: dict[str, list[tuple[str, Any, bool]]] = {}
        self._words: dict[str, bytes] = {}

    def inputs(self, node_id: str) -> list[tuple[str, Any, bool]]:
        """(name, value, is it a link) of a node's inputs, by name."""
        found = self.known_inputs.get(node_id)
        if found is None:
            is_link, inputs = self.api.execution.is_link, self.dynprompt.get_node(node_id)["inputs"]
            found = self.known_inputs[node_id] = [
                (name, inputs[name], is_link(inputs[name])) for name in sorted(inputs)
            ]
        return found

    def of(self, node_id: str) -> Local | None:
        """A node's; None where there is no such node."""
        if not self.dynprompt.has_node(node_id):
            return None
        node = self.dynprompt.get_node(node_id)
        class_type = node["class_type"]
        taint = Taint()
        # Told apart by the number of pieces: two, or three with the id, and then two for each input.
        pieces = [self._word(class_type), encode(self.changed.get(node_id), taint)]
        if self.with_id or self.named[class_type]:
            pieces.append(encode(node_id, taint))
        links = []
        for name, value, linked in self.inputs(node_id):
            pieces.append(self._word(name))
            if linked:
                source, socket = value
                links.append((source, encode(socket, taint)))
                pieces.append(LINK)
            else:
                pieces.append(encode(value, taint))
        self.known_inputs.pop(node_id, None)
        return Local(digest(*pieces), links, taint.unique, taint.nan)

    def _word(self, word: str) -> bytes:
        """A class or the name of an input, encoded; the same few stand in every node."""
        found = self._words.get(word)
        if found is None:
            found = self._words[word] = encode(word, Taint())
        return found
