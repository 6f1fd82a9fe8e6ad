"""Test nodes: each provokes one thing that the ledger must get right, on a stock ComfyUI or under us."""

import sys

from . import causes, encoders, failures, files, flow, libraries, planting, questions, shapes, timing

NODE_CLASS_MAPPINGS = {}
for _module in (timing, failures, flow, files, encoders, planting, libraries, questions, causes, shapes):
    NODE_CLASS_MAPPINGS.update(_module.NODES)

if "server" in sys.modules:  # tests import this too, for its names
    questions.add_handler()
