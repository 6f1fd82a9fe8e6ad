"""stagexec: the real ComfyUI under our loop, with an exact stage ledger of every run."""

from stagexec.public import artifact, stage

__version__ = "0.1.0"
__all__ = ["__version__", "artifact", "stage"]
