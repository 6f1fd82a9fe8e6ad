"""What all schedulers share."""


class SchedulerMixin:
    """The base of every scheduler."""
