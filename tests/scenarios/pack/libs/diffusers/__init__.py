"""Of the shape of diffusers, as far as node packs use it; what takes time there takes a known time here."""

from .models.modeling_utils import AutoencoderKL, ModelMixin
from .pipelines.pipeline_utils import DiffusionPipeline, StableDiffusionPipeline
from .schedulers.scheduling_euler_discrete import EulerDiscreteScheduler

__version__ = "0.35.0"
__all__ = [
    "AutoencoderKL",
    "DiffusionPipeline",
    "EulerDiscreteScheduler",
    "ModelMixin",
    "StableDiffusionPipeline",
]
