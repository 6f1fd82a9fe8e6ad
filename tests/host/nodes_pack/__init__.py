"""Test nodes: each provokes one thing that the ledger must get right, on a stock ComfyUI or under us."""

from . import encoders, failures, files, flow, planting, shapes, timing

NODE_CLASS_MAPPINGS = {}
for _module in (timing, failures, flow, files, encoders, planting, shapes):
    NODE_CLASS_MAPPINGS.update(_module.NODES)
