"""The host's key set with our digests in it: what its caches find their entries by."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from stagexec.executor.keys import Keys, Local, Taint, digest, encode, fingerprints

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

    def __init__(self, dynprompt: Any, node_ids: Any, is_changed_cache: Any) -> None:
        super().__init__(dynprompt, node_ids, is_changed_cache)  # type: ignore[call-arg]
        # All key sets of a prompt share the digests: they hang on the one object that lives as long.
        shared = vars(is_changed_cache)
        if "_stagexec_keys" not in shared:
            shared["_stagexec_keys"] = PromptKeys(self.api, dynprompt, is_changed_cache)
        self._prompt_keys: PromptKeys = shared["_stagexec_keys"]

    async def add_keys(self, node_ids: Iterable[str]) -> None:
        """Make the keys of these nodes; their change fingerprints are asked for as the host asks."""
        wanted = [one for one in node_ids if one not in self.keys and self.dynprompt.has_node(one)]
        with_id = self.include_node_id_in_input()  # type: ignore[attr-defined]
        await self._prompt_keys.make(wanted, with_id)
        for node_id in wanted:
            self.keys[node_id] = self._prompt_keys.keys.key(node_id)
            self.subcache_keys[node_id] = (node_id, self.dynprompt.get_node(node_id)["class_type"])


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

    def __init__(self, api: Any, dynprompt: Any, is_changed_cache: Any) -> None:
        self.dynprompt = dynprompt
        self._is_changed_cache = weakref.ref(is_changed_cache)  # which holds us
        self._locals = Locals(api, dynprompt)
        self.keys = Keys(self._locals.of)
        self._asked: set[str] = set()
        self._links: dict[str, list[str]] = {}

    async def make(self, node_ids: list[str], with_id: bool) -> None:
        """Make the digests of these nodes."""
        self._locals.with_id = with_id
        if any(map(self.dynprompt.has_node, self.keys.missing)):
            self._start_anew()
        await fingerprints(node_ids, self._sources, self._ask, self._asked)
        self.keys.make(node_ids)

    def _start_anew(self) -> None:
        """An expansion has brought a node that was linked to before it was there."""
        self.keys = Keys(self._locals.of)
        self._asked.clear()
        self._links.clear()

    async def _ask(self, node_id: str) -> None:
        if self.dynprompt.has_node(node_id):
            cache = self._is_changed_cache()
            assert cache is not None, "the key set that asks holds it"
            changed = self._locals.changed[node_id] = await cache.get(node_id)
            if changed is not False:  # a pack's function was asked, and may have written into the prompt
                self._locals.known_inputs.clear()

    def _sources(self, node_id: str) -> list[str]:
        """The nodes that a node's links come from, in the order of input names."""
        found = self._links.get(node_id)
        if found is None:
            inputs = self._locals.inputs(node_id) if self.dynprompt.has_node(node_id) else ()
            found = self._links[node_id] = [value[0] for _, value, linked in inputs if linked]
        return found


class Locals:
    """What the nodes of one prompt are by themselves."""

    def __init__(self, api: Any, dynprompt: Any) -> None:
        self.api = api
        self.dynprompt = dynprompt
        self.with_id = False
        self.changed: dict[str, Any] = {}
        """Change fingerprint by node id."""
        self._classes: dict[str, bool] = {}
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
        if self.with_id or self._named(class_type):
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

    def _named(self, class_type: str) -> bool:
        """Does a key of this class hold the node's own id? Asked once a class."""
        found = self._classes.get(class_type)
        if found is None:
            class_def = self.api.nodes.NODE_CLASS_MAPPINGS[class_type]
            idempotent = not getattr(class_def, "NOT_IDEMPOTENT", False)
            found = not idempotent or self.api.names_itself(class_type)
            self._classes[class_type] = found
        return found
