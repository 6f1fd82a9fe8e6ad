"""Hear what a pipe says while its owner reads it: the owner's own reads, nothing taken from them."""

from __future__ import annotations

import io
from typing import Any

from stagexec.delivery.saying import TAIL_BYTES


class Heard:
    """The end of what was read from a pipe, and whether its end was reached."""

    def __init__(self) -> None:
        self._tail = bytearray()
        self.ended = False

    def take(self, data: bytes | memoryview | str | None) -> None:
        """Remember the end of `data`; empty data is the end of the pipe."""
        if data is None:
            return
        if not len(data):
            self.ended = True
            return
        piece = data[-TAIL_BYTES:]
        self._tail += piece.encode("utf-8", "replace") if isinstance(piece, str) else piece
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    @property
    def tail(self) -> bytes:
        """The last bytes, at most TAIL_BYTES."""
        return bytes(self._tail[-TAIL_BYTES:])


class HeardPipe(io.RawIOBase):
    """A raw file that hands out exactly what the file below it gives, and tells `heard`."""

    def __init__(self, below: Any, heard: Heard) -> None:
        self._below = below
        self._heard = heard
        self.name = getattr(below, "name", None)
        self.mode = getattr(below, "mode", "rb")

    def readinto(self, buffer: Any) -> int | None:
        """As the file below."""
        count: int | None = self._below.readinto(buffer)
        if count is not None:
            self._heard.take(memoryview(buffer)[:count])
        return count

    def readable(self) -> bool:
        """A pipe's reading end."""
        return True

    def fileno(self) -> int:
        """As the file below."""
        number: int = self._below.fileno()
        return number

    def isatty(self) -> bool:
        """A pipe is none."""
        return False

    def close(self) -> None:
        """Close the file below, once."""
        if not self.closed:
            try:
                self._below.close()
            finally:
                super().close()


def listen(stream: Any, heard: Heard) -> Any:
    """A stream of the same kind as `stream` over the same pipe; `stream` itself when its kind is unknown.

    Only for a stream that no code has read from or holds: one that `subprocess` has just made.
    """
    if type(stream) is io.TextIOWrapper and type(stream.buffer) is io.BufferedReader:
        encoding, errors = stream.encoding, stream.errors
        return io.TextIOWrapper(listen(stream.detach(), heard), encoding=encoding, errors=errors)
    if type(stream) is io.BufferedReader and type(stream.raw) is io.FileIO:
        return io.BufferedReader(HeardPipe(stream.detach(), heard))
    return HeardPipe(stream, heard) if type(stream) is io.FileIO else stream
