"""Which attention function ran, counted call by call, beside the one that was asked for."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stagexec.record import live

ATTENTION = "comfy.ldm.modules.attention"
PLACES = ("optimized_attention", "optimized_attention_masked", "attention_pytorch")
"""Names that models take the function by; attention_pytorch is also what the others fall back to."""

FLAGS = {
    "use_sage_attention": "attention_sage",
    "use_flash_attention": "attention_flash",
    "use_pytorch_cross_attention": "attention_pytorch",
    "use_split_cross_attention": "attention_split",
    "use_quad_cross_attention": "attention_sub_quad",
}
"""The host's options -> the function that they ask for."""


def asked() -> str | None:
    """The attention function that the command line asks for; None where it leaves the choice to the host."""
    cli = sys.modules.get("comfy.cli_args")
    args = getattr(cli, "args", None)
    return next((name for flag, name in FLAGS.items() if getattr(args, flag, False)), None)


def counting(module: ModuleType, original: Any) -> Any:
    """A function in `original`'s place that counts its calls in the run by the name of what it calls.

    A plain function that torch.compile traces through without a break: in a trace the counting is left out,
    so calls inside compiled graphs are not counted.
    """
    name = getattr(original, "__name__", type(original).__name__)
    overridden = f"override of {name}"
    compiling = sys.modules["torch"].compiler.is_compiling
    configured = getattr(module, "optimized_attention", None)
    live.attention_facts = {"configured": getattr(configured, "__name__", None), "asked": asked()}

    @functools.wraps(original)
    def count(*args: Any, **kwargs: Any) -> Any:
        if not compiling():
            run = live.here()
            if run is not None:
                options = kwargs.get("transformer_options")
                known = isinstance(options, dict) and "optimized_attention_override" in options
                key = overridden if known else name
                run.attention[key] = run.attention.get(key, 0) + 1
        return original(*args, **kwargs)

    return count


def places() -> dict[str, Callable[[ModuleType, Any], Any]]:
    """What takes the place of each attention function."""
    return {f"{ATTENTION}:{name}": counting for name in PLACES}
