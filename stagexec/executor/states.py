"""Progress states that we have made ourselves, and their text as JSON."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def encoded(message: Any) -> str | None:
    """The message as JSON, or None when it holds something that only the host's encoder may judge."""
    try:
        return _encode(message).decode()
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError):  # a pack has put something in
        return None


def is_plain(number: Any) -> bool:
    """Do both encoders write this number alike? Not NaN, not infinity, nothing a pack has made up."""
    kind = type(number)
    return kind is int or kind is bool or (kind is float and math.isfinite(number))


def _changing(name: str) -> Any:
    method = getattr(dict, name)

    @functools.wraps(method)
    def change(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.text = None
        return method(self, *args, **kwargs)

    return change


class Told(dict[str, Any]):
    """A dict with its text as JSON beside it, for as long as it is not changed. A copy is a mere dict."""

    __slots__ = ("text",)
    text: str | None

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return dict, (dict(self),)


for _name in ("__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update"):
    setattr(Told, _name, _changing(_name))


class Entry(Told):
    """A node's entry of a progress state; its text begins with the node's id."""

    __slots__ = ()

    def __init__(self, fields: dict[str, Any], **changed: Any) -> None:
        super().__init__(fields, **changed)
        self.text = None

    def tell(self, node_id: str) -> None:
        """Make the text; it stays None where only the host's encoder can."""
        whole = encoded({node_id: self})
        self.text = whole[1:-1] if whole is not None else None


class States(Told):
    """The `nodes` of a progress state that we have made ourselves; for everybody else a dict.

    Its text is that of its entries, none of which is written again for another node's sake: at 200 nodes,
    400 states have 40,000 entries, and 400 texts.
    """

    __slots__ = ()

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.text = ""


_text_of = operator.attrgetter("text")


def text_of_state(message: dict[str, Any]) -> str | None:
    """JSON of `{"type": …, "data": {…, "nodes": States}}`; None where only the host's encoder can."""
    data = message["data"]
    nodes, prompt_id = data["nodes"], data.get("prompt_id")
    ours = type(nodes) is States and nodes.text is not None and type(prompt_id) is str
    if not ours or list(message) != ["type", "data"] or list(data) != ["prompt_id", "nodes"]:
        return encoded(message)
    frame = _frame(message["type"], prompt_id)
    try:
        try:
            entries = ",".join(map(_text_of, nodes.values()))
        except TypeError:  # some have no text yet
            for node_id, entry in nodes.items():
                if entry.text is None:
                    entry.tell(node_id)
            entries = ",".join(map(_text_of, nodes.values()))
    except (TypeError, AttributeError):  # one has none that we can make, or is a pack's own
        return encoded(message)
    return f"{frame}{entries}}}}}}}" if frame is not None else None


@functools.lru_cache(maxsize=1)
def _frame(event: str, prompt_id: str) -> str | None:
    """All of a state's text that stands before its first node: the same for a whole prompt."""
    whole = encoded({"type": event, "data": {"prompt_id": prompt_id, "nodes": {}}})
    return whole.removesuffix("}}}") if whole is not None else None
