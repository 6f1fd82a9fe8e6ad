"""A pipeline as packs write their own, on the base classes of diffusers."""

import functools
import time

from diffusers.models.modeling_utils import ModelMixin
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from diffusers.schedulers.scheduling_utils import SchedulerMixin


class Decoder(ModelMixin):
    """An autoencoder."""

    def decode(self, seconds):
        """Sleeps."""
        time.sleep(seconds)


class Steps(SchedulerMixin):
    """A scheduler."""

    def step(self):
        """Does next to nothing."""
        time.sleep(0.001)


class Pipeline(DiffusionPipeline):
    """Encodes, samples in five steps, decodes."""

    def encode_prompt(self, seconds):
        """Sleeps."""
        time.sleep(seconds)

    def __call__(self, seconds):
        self.encode_prompt(seconds)
        steps = Steps()
        for _ in range(5):
            time.sleep(seconds / 5)
            steps.step()
        Decoder().decode(seconds)


@functools.cache
def pipeline_of():
    """The class."""
    return Pipeline
