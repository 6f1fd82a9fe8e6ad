"""Short digests of what each node of a prompt computes: two runs are told apart without their texts."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from stagexec.record.condition import canonical

DIGEST_BYTES = 8
NAN = "nan"
"""In place of a digest: an answer that can never equal itself."""


def digest(value: Any) -> str:
    """16 hex digits of any value, equal for equal values. Never raises for the value's kind."""
    return hashlib.blake2b(canonical(value), digest_size=DIGEST_BYTES).hexdigest()


def is_link(value: Any) -> bool:
    """Is this input a link, [node id, socket]?"""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def fields_of(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """The digests of `identity`: nodes, constants, links and is_changed. Linear in nodes and inputs."""
    constants, links, changed = [], [], {}
    for node_id, node in prompt.items():
        inputs = node.get("inputs") if isinstance(node, Mapping) else None
        inputs = inputs if isinstance(inputs, Mapping) else {}
        own = {name: value for name, value in inputs.items() if not is_link(value)}
        linked = {name: value for name, value in inputs.items() if is_link(value)}
        constants.append(digest([node.get("class_type") if isinstance(node, Mapping) else None, own]))
        links.append(digest(linked))
        answer = node.get("is_changed") if isinstance(node, Mapping) else None
        if answer is not None:
            changed[str(node_id)] = NAN if _has_nan(answer) else digest(answer)
    return {"nodes": list(map(str, prompt)), "constants": constants, "links": links, "is_changed": changed}


def _has_nan(answer: Any) -> bool:
    values = answer if isinstance(answer, list) else [answer]
    return any(isinstance(value, float) and math.isnan(value) for value in values)
