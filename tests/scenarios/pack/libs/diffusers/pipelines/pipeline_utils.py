"""Pipelines: several models and a scheduler behind one call."""

import time

from diffusers.models.modeling_utils import AutoencoderKL
from diffusers.schedulers.scheduling_euler_discrete import EulerDiscreteScheduler


class DiffusionPipeline:
    """What all pipelines share."""

    def __init__(self):
        self.scheduler = EulerDiscreteScheduler()
        self.vae = AutoencoderKL()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, slow_ms=0, **kwargs):
        """A pipeline, after `slow_ms`."""
        time.sleep(slow_ms / 1000)
        return cls()

    def to(self, *args, **kwargs):
        """Itself."""
        return self


class StableDiffusionPipeline(DiffusionPipeline):
    """Text, steps, decode."""

    def encode_prompt(self, prompt, slow_ms=0):
        """Embeddings of a text."""
        time.sleep(slow_ms / 1000)

    def __call__(self, prompt, num_inference_steps=3, encode_ms=0, step_ms=0, decode_ms=0, **kwargs):
        """Draw."""
        self.encode_prompt(prompt, encode_ms)
        for at in range(num_inference_steps):
            time.sleep(step_ms / 1000)  # the model
            self.scheduler.step(None, at, None)
        self.vae.decode(None, decode_ms)
