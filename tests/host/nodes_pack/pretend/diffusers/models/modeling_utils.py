"""The base of all models."""


class ModelMixin:
    """Nothing of its own."""
