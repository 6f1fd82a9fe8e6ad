"""The base of all schedulers."""


class SchedulerMixin:
    """Nothing of its own."""
