"""Signs of life of a thread that checks files: it says that it goes on, and hears when it was given up.

A thread of Python cannot be ended from outside. One that a dead disk holds is left behind; should the disk
answer after all, its next `beat` ends it.
"""

from __future__ import annotations

import threading

_here = threading.local()


class GivenUp(BaseException):
    """Ends a thread whose check was given up. No Exception: what fences a decoder's faults lets it pass."""


class Pulse:
    """Of one thread. It alone writes, and another reads, except `given_up`."""

    __slots__ = ("beats", "bytes", "decoding", "given_up")

    def __init__(self) -> None:
        self.beats = 0
        self.bytes = 0
        self.decoding = False
        self.given_up = False

    def begin(self) -> None:
        """Another check begins: on the disk, and of a file whose size is not known yet."""
        self.bytes, self.decoding = 0, False
        self.beats += 1


def attach(pulse: Pulse) -> None:
    """From now on the calling thread is watched by its `pulse`."""
    _here.pulse = pulse


def beat() -> None:
    """The caller goes on. Raises GivenUp when it is not waited for any more; nothing on other threads."""
    pulse = getattr(_here, "pulse", None)
    if pulse is None:
        return
    pulse.beats += 1
    if pulse.given_up:
        raise GivenUp


def expect(size: int) -> None:
    """The check is of so many bytes: that much longer it may take."""
    pulse = getattr(_here, "pulse", None)
    if pulse is not None:
        pulse.bytes = size
        beat()


def decoding(now: bool) -> None:
    """What follows is a decoder's work on bytes that the disk has given (or is over): silence is its own."""
    pulse = getattr(_here, "pulse", None)
    if pulse is not None:
        pulse.decoding = now
        beat()
