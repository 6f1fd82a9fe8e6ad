"""How a model's weights are quantised, read off the weights themselves as they lie in memory.

Each library has its own way to keep them: a tensor class (GGUF, bitsandbytes, torchao, quanto, ComfyUI's
own), a dtype (fp8, fp4, int8), or a layer that holds packed numbers (nunchaku, GPTQ, AWQ, HQQ). None of them
is imported here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

from stagexec.record import safe

MOST = 50_000
"""So many weights of a model are looked at."""

GGUF_PLAIN = frozenset(["F16", "BF16", "F32", "F64", "I8", "I16", "I32", "I64"])
"""Types of a GGUF file that are ordinary numbers."""

GGUF_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K",
    11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32",
    27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
"""ggml's own numbers, where a pack keeps the bare number."""

SMALL_FLOATS = ("float8", "float4", "float6")
PACKED = frozenset(["int8", "uint8", "int4", "uint4", "int2", "uint2", "int1", "uint1", "int16", "int32"])
"""dtypes in which packed weights lie. Ordinary layers have no weights of whole numbers."""

WEIGHTS = ("weight", "qweight", "W_q", "weight_packed", "scale_weight", "weight_scale")

LIBRARIES = {
    "torchao": "torchao",
    "optimum": "quanto",
    "quanto": "quanto",
    "hqq": "hqq",
    "nunchaku": "svdquant",
}
"""First word of the module in which a tensor or layer class lives -> the name people know it by."""

LAYERS = (("svdq", "svdquant"), ("awq", "awq"), ("gptq", "gptq"), ("hqq", "hqq"))
"""What the name of a layer class begins or goes on with, in small letters."""


PLAIN_CLASSES = frozenset(("Parameter", "Tensor", "Buffer"))
PLAIN = frozenset(("float16", "bfloat16", "float32", "float64", "complex64", "bool", "int64"))

SAMPLE = 64
"""While so many weights at the front are of the kinds they were, the answer for a model is the known one."""

_known: weakref.WeakKeyDictionary[Any, tuple[Any, list[str]]] = weakref.WeakKeyDictionary()


def formats(model: Any) -> list[str]:
    """The formats of a model's quantised weights, sorted; none where all are plain.

    It is asked on the worker's thread when a run ends, so what is plain is passed over fast.
    """
    sample = [
        (type(layer), type(t), getattr(t, "dtype", None)) for layer, _, t in islice(weights(model), SAMPLE)
    ]
    known = safe.ask(None, _known.get, model)
    if known is not None and known[0] == sample:
        return list(known[1])
    found = {format_of(layer, name, tensor) for layer, name, tensor in islice(odd_weights(model), MOST)}
    told = sorted(one for one in found if one)
    safe.ask(None, _known.__setitem__, model, (sample, told))  # a class may allow no weak reference
    return list(told)


def odd_weights(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """(layer, name, tensor) of a model's parameters and packed buffers that are not plain at first sight."""
    plain: dict[Any, bool] = {}
    for layer, name, tensor in weights(model):
        key = type(tensor), getattr(tensor, "dtype", None)
        known = plain.get(key)
        if known is None:
            known = plain[key] = key[0].__name__ in PLAIN_CLASSES and _dtype(tensor) in PLAIN
        if not known:
            yield layer, name, tensor


def weights(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """(layer, name, tensor) of a model's parameters, and of buffers that packed weights may lie in."""
    if not isinstance(getattr(model, "_modules", None), dict):
        parameters = getattr(model, "parameters", None)
        for tensor in parameters() if callable(parameters) else ():
            yield None, "weight", tensor
        return
    waiting, seen = [model], {id(model)}
    while waiting:
        layer = waiting.pop()
        inside = vars(layer)
        for name, tensor in list((inside.get("_parameters") or {}).items()):
            if tensor is not None:
                yield layer, name, tensor
        for name, tensor in list((inside.get("_buffers") or {}).items()):
            if tensor is not None and name in WEIGHTS:
                yield layer, name, tensor
        for child in list((inside.get("_modules") or {}).values()):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)


def format_of(layer: Any, name: str, tensor: Any) -> str | None:
    """The format of one weight; None where it is plain."""
    tensor_type = getattr(tensor, "tensor_type", None)
    if tensor_type is not None:
        return gguf_name(tensor_type)
    return _by_tensor(tensor) or _by_layer(layer, name, tensor) or _by_dtype(layer, name, tensor)


def _by_tensor(tensor: Any) -> str | None:
    layout = getattr(tensor, "_layout_cls", None)
    if layout is not None:
        return str(getattr(layout, "__name__", layout)).removesuffix("Layout")
    kind = type(tensor)
    if kind.__name__ == "Params4bit":
        state = getattr(tensor, "quant_state", None)
        return str(getattr(state, "quant_type", None) or getattr(tensor, "quant_type", None) or "4bit")
    if kind.__name__ == "Int8Params":
        return "int8"
    library = LIBRARIES.get(str(kind.__module__).split(".")[0])
    if library is None:
        return None
    q_type = getattr(tensor, "qtype", None) or getattr(tensor, "_qtype", None)
    return f"{library} {getattr(q_type, 'name', None) or kind.__name__}"


def gguf_name(tensor_type: Any) -> str | None:
    """The name of a GGUF type, given as its enum, number or name; None for ordinary numbers."""
    name = getattr(tensor_type, "name", None)
    if name is None:
        name = GGUF_NAMES.get(tensor_type) if isinstance(tensor_type, int) else tensor_type
    found = str(name if name is not None else f"type {tensor_type}")
    return None if found in GGUF_PLAIN else found


def _by_layer(layer: Any, name: str, tensor: Any) -> str | None:
    if (
        layer is None
        or name not in ("weight", "qweight", "W_q", "weight_packed")
        or _dtype(tensor) not in PACKED
    ):
        return None
    kind = type(layer)
    small = kind.__name__.lower()
    known = next((word for part, word in LAYERS if part in small), None)
    known = known or LIBRARIES.get(str(kind.__module__).split(".")[0])
    if known is None:
        return None
    precision = getattr(layer, "precision", None)
    return f"{known} {precision}" if isinstance(precision, str) and len(precision) < 12 else known


def _by_dtype(layer: Any, name: str, tensor: Any) -> str | None:
    dtype = _dtype(tensor)
    if dtype.startswith(SMALL_FLOATS):
        if name not in WEIGHTS[:4] and layer is not None:
            return None  # a scale is kept in fp8 by some formats; its weight says what it is
        scaled = any(getattr(layer, one, None) is not None for one in WEIGHTS[4:])
        return f"{dtype} scaled" if scaled else dtype
    if dtype in PACKED and name in WEIGHTS[:4] and len(getattr(tensor, "shape", ())) > 1:
        return dtype
    return None


def _dtype(tensor: Any) -> str:
    return str(getattr(tensor, "dtype", "")).removeprefix("torch.")


def main_dtype(model: Any) -> Any:
    """The dtype in which most of a model's plain numbers lie; None for a model without weights."""
    sizes: dict[Any, int] = {}
    for _, _, tensor in islice(weights(model), MOST):
        dtype = getattr(tensor, "dtype", None)
        if dtype is not None:
            count = getattr(tensor, "numel", None)
            sizes[dtype] = sizes.get(dtype, 0) + (count() if callable(count) else 1)
    floats = {dtype: size for dtype, size in sizes.items() if getattr(dtype, "is_floating_point", True)}
    return max(floats or sizes, key=(floats or sizes).__getitem__, default=None)
