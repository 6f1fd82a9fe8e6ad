"""Input types that the nodes share."""


class AnyType(str):
    """Matches every type: the host compares types with `!=` only."""

    __slots__ = ()

    def __ne__(self, other):
        return False


ANY = AnyType("*")
CATEGORY = "stagexec test"
NUMBER = ("INT", {"default": 0, "min": -(2**31), "max": 2**31})


def required(**inputs):
    """The INPUT_TYPES of a node whose inputs are all required."""
    return {"required": {name: kind if isinstance(kind, tuple) else (kind,) for name, kind in inputs.items()}}
