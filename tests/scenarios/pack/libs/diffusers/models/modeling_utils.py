"""Models of one file or folder."""

import time


class ModelMixin:
    """What all models share."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, slow_ms=0, **kwargs):
        """A model, after `slow_ms`."""
        time.sleep(slow_ms / 1000)
        return cls()


class AutoencoderKL(ModelMixin):
    """A VAE of the library's own."""

    def decode(self, latents, slow_ms=0):
        """Latents to pictures."""
        time.sleep(slow_ms / 1000)
        return latents
