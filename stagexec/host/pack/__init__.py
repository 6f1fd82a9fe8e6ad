"""Encode Video and Deliver as a plain custom node pack of a stock ComfyUI: link or copy this folder there.

`pip install stagexec` into ComfyUI's Python first; a link to this folder finds its own checkout without.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

if importlib.util.find_spec("stagexec") is None:
    _ROOT = Path(__file__).resolve().parents[3]
    if (_ROOT / "stagexec" / "host").is_dir():
        sys.path.append(str(_ROOT))


async def comfy_entrypoint() -> Any:
    """What ComfyUI asks a pack of V3 nodes for."""
    from stagexec.host.node_pack import make_extension

    return make_extension()
