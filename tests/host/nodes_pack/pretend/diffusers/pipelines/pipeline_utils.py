"""The base of all pipelines."""

import time


class DiffusionPipeline:
    """What its subclasses do in their call is their own."""

    @classmethod
    def from_pretrained(cls, path, slow_ms=0):
        """One, after `slow_ms`."""
        time.sleep(slow_ms / 1000)
        return cls()
