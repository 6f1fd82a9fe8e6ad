"""Which tensors went into a run's savers, and which node made each of those that live."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any


class Maker:
    """The node that made a tensor: its id and class, and weakly the tensors that went into it."""

    __slots__ = ("inputs", "node_class", "node_id", "run_id", "tensor")

    def __init__(self, tensor: Any, run_id: str, node_id: str, node_class: str, inputs: list[Any]) -> None:
        self.tensor = tensor
        self.run_id = run_id
        self.node_id = node_id
        self.node_class = node_class
        self.inputs = inputs


_makers: dict[int, Maker] = {}


def maker_of(tensor: Any) -> Maker | None:
    """Who made a tensor that is alive; None where no visit of this process was seen to."""
    found = _makers.get(id(tensor))
    return found if found is not None and found.tensor() is tensor else None


def _noted(tensor: Any, run_id: str, node_id: str, node_class: str, inputs: list[Any]) -> Any:
    """A weak reference to the tensor; its maker is the first that had it among its outputs."""
    known = maker_of(tensor)
    if known is not None:
        return known.tensor
    key = id(tensor)

    def gone(reference: Any) -> None:
        found = _makers.get(key)
        if found is not None and found.tensor is reference:
            del _makers[key]

    reference = weakref.ref(tensor, gone)
    _makers[key] = Maker(reference, run_id, node_id, node_class, inputs)
    return reference


class TensorRefs:
    """Which tensors went into the savers, and weakly which came out of every visit: to find non-finite ones.

    Strong references are bounded in bytes, because the check happens after the run.
    """

    MAX_BYTES = 2 * 1024**3

    def __init__(self) -> None:
        self.saved: dict[str, list[Any]] = {}
        self.made: list[tuple[str, list[Any]]] = []
        self.taken: dict[str, list[Any]] = {}
        self.bytes = 0

    def keep_saved(self, node_id: str, values: Iterable[Any]) -> None:
        """Keep the CPU tensors among `values` (also a latent's `samples`) that go into a saver."""
        for tensor in tensors_in(values):
            size = tensor.numel() * tensor.element_size()
            if tensor.device.type == "cpu" and self.bytes + size <= self.MAX_BYTES:
                self.bytes += size
                self.saved.setdefault(node_id, []).append(tensor)

    def keep_taken(self, node_id: str, values: Iterable[Any]) -> None:
        """Keep weak references to the tensors that go into a node."""
        refs = [weakref.ref(tensor) for tensor in tensors_in(values)]
        if refs:
            self.taken[node_id] = refs

    def keep_made(self, run_id: str, node_id: str, node_class: str, outputs: Iterable[Any]) -> None:
        """Keep weak references to the tensors in a visit's outputs, a list of lists."""
        inputs = self.taken.get(node_id, [])
        refs = [
            _noted(tensor, run_id, node_id, node_class, inputs)
            for values in outputs
            if isinstance(values, (list, tuple))
            for tensor in tensors_in(values)
        ]
        if refs:
            self.made.append((node_id, refs))

    def clear(self) -> None:
        """Let go of everything."""
        self.saved.clear()
        self.made.clear()
        self.taken.clear()
        self.bytes = 0


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """The torch tensors among `values`, and those that latents, audio and conditioning carry. Never imports
    torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            for key in ("samples", "waveform"):
                if isinstance(value.get(key), torch.Tensor):
                    yield value[key]
        elif type(value) is list:  # conditioning: [[tensor, options], …]
            for pair in value[:16]:
                if isinstance(pair, (list, tuple)) and pair and isinstance(pair[0], torch.Tensor):
                    yield pair[0]
