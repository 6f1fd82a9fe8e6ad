"""Nodes that do their host harm, or that keep it at work while harm is done to it from outside."""

from . import hostile, work

NODE_CLASS_MAPPINGS = {**hostile.NODES, **work.NODES}
