"""What the nodes share: input types, sleeps of whole milliseconds, small pictures."""

import time

CATEGORY = "stagexec scenarios"
MS = ("INT", {"default": 0, "min": 0, "max": 60_000})
NUMBER = ("INT", {"default": 0, "min": -(2**31), "max": 2**31})
FLOAT = ("FLOAT", {"default": 1.0})
TEXT = ("STRING", {"default": ""})
PREFIX = ("STRING", {"default": "scenario"})


class AnyType(str):
    """Matches every type: the host compares types with `!=` only."""

    __slots__ = ()

    def __ne__(self, other):
        return False


ANY = AnyType("*")


def required(optional=None, **inputs):
    """INPUT_TYPES of required inputs, and of `optional` ones."""

    def spec(kinds):
        return {name: kind if isinstance(kind, tuple) else (kind,) for name, kind in kinds.items()}

    return {"required": spec(inputs), **({"optional": spec(optional)} if optional else {})}


def work(ms):
    """Work of a known length."""
    time.sleep(ms / 1000)


def picture(size=16, batch=1):
    """A grey picture, as IMAGE."""
    import torch

    return torch.full((batch, size, size, 3), 0.5)


def node(name, inputs, outputs, run, **attributes):
    """A node class of `name`: `inputs` as INPUT_TYPES gives them, `run(self, **inputs)` as its function."""
    body = {
        "CATEGORY": CATEGORY,
        "RETURN_TYPES": outputs,
        "FUNCTION": "run",
        "INPUT_TYPES": classmethod(lambda cls: inputs),
        "run": run,
    }
    return type(name, (), {**body, **attributes})
