"""Input types that the nodes share."""


class AnyType(str):
    """Matches every type, in the way that most packs do it: the host compares types with `!=` only."""

    __slots__ = ()

    def __ne__(self, other):
        return False


ANY = AnyType("*")
CATEGORY = "stagexec test"
SECONDS = ("FLOAT", {"default": 0.1, "min": 0.0, "max": 3600.0, "step": 0.001})
NUMBER = ("INT", {"default": 0, "min": -(2**31), "max": 2**31})
PREFIX = ("STRING", {"default": "stagexec"})


def required(**inputs):
    """The INPUT_TYPES of a node whose inputs are all required."""
    return {"required": {name: kind if isinstance(kind, tuple) else (kind,) for name, kind in inputs.items()}}
