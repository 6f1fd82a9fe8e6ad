"""Nodes shaped like those of real packs, with work of known length inside; see tests/scenarios."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "libs"))  # a `diffusers` of the real one's shape

from . import drawn, flow, libraries, models, outside, savers

NODE_CLASS_MAPPINGS = {}
for _module in (drawn, flow, libraries, models, outside, savers):
    NODE_CLASS_MAPPINGS.update(_module.NODES)
