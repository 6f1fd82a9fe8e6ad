"""A scheduler: what a pipeline asks after each evaluation of its model."""

from .scheduling_utils import SchedulerMixin


class EulerDiscreteScheduler(SchedulerMixin):
    """Of no time of its own."""

    def step(self, model_output, timestep, sample, **kwargs):
        """The next sample."""
        return (sample,)
