"""The models a run really used, and how they are when it ends: dtypes, quantisation, compilation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from stagexec.host import quantised
from stagexec.record import safe
from stagexec.record.words import hidden

MOST = 1000
"""A run that asks for more different models than this keeps the first ones."""

_BACKENDS = """
    inductor cudagraphs eager aot_eager onnxrt openxla tensorrt torch_tensorrt tvm ipex openvino
    nvfuser npu hpu_backend stable_fast onediff
"""
BACKENDS = frozenset(_BACKENDS.split())
"""A node may take any text for a compiler's name."""

_used: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()


def note(run: Any, patchers: Iterable[Any]) -> None:
    """Models were asked onto the device for `run`; only weak references are kept."""
    mine = _used.setdefault(run, {})
    for patcher in patchers:
        model = getattr(patcher, "model", patcher)
        if id(model) not in mine and len(mine) < MOST:
            mine[id(model)] = (_weak(patcher), _weak(model))


def _weak(thing: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(thing)
    except TypeError:  # a class that allows none: it is not looked at later
        return lambda: None


def read(run: Any) -> dict[str, dict[str, Any]]:
    """Model class -> {weights, compute, quantization, compile} of the run's models, as they are now."""
    found: dict[str, dict[str, Any]] = {}
    for patcher_ref, model_ref in _used.pop(run, {}).values():
        patcher, model = patcher_ref(), model_ref()
        if model is None:
            continue
        told = {
            "weights": weights(model),
            "compute": compute(model, patcher),
            "quantization": quantization(model),
            "compile": compiled(model, patcher),
        }
        name = type(model).__name__
        place = name if found.get(name, told) == told else f"{name} {len(found)}"
        found[place] = told
    return found


def _word(dtype: Any) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def weights(model: Any) -> str | None:
    """dtype of a model's weights: what it says itself, else that of most of them."""
    ask = getattr(model, "get_dtype", None)
    said = _word(ask()) if callable(ask) else None
    return said if said is not None else _word(quantised.main_dtype(model))


def compute(model: Any, patcher: Any) -> str | None:
    """dtype that a model computes in."""
    ask = getattr(model, "get_dtype_inference", None)
    if callable(ask):
        return _word(ask())
    cast = getattr(model, "manual_cast_dtype", None)
    return _word(cast) if cast is not None else weights(model)


def quantization(model: Any) -> str | None:
    """Formats of a model's quantised weights; None where they are plain.

    What the host read in the file comes first, then what the weights are, whichever library holds them.
    """
    config = getattr(getattr(model, "model_config", None), "quant_config", None)
    if config:
        formats = {str(one.get("format")) for one in _dicts(config) if one.get("format") is not None}
        return ", ".join(sorted(formats) or safe.ask([], quantised.formats, model)) or "mixed precision"
    found: list[str] = safe.ask([], quantised.formats, model)  # layers and tensors of any pack's make
    if found:
        return ", ".join(found)
    dtype = weights(model)
    return dtype if dtype is not None and dtype.startswith(quantised.SMALL_FLOATS) else None


def _dicts(value: Any) -> Iterable[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for one in value.values():
            yield from _dicts(one)


def compiled(model: Any, patcher: Any) -> str | None:
    """How a model is compiled: the backend's name; None where it is not."""
    options = getattr(patcher, "model_options", None) or {}
    asked = options.get("torch_compile_kwargs") if isinstance(options, dict) else None
    if asked:
        backend = asked.get("backend", "inductor")
        return f"torch.compile {backend if backend in BACKENDS else hidden(str(backend))}"
    inner = getattr(model, "diffusion_model", model)
    if hasattr(inner, "_orig_mod") or getattr(inner, "_compiled_call_impl", None) is not None:
        return "torch.compile"
    return None
