"""Encode frames to a file with ffmpeg: streamed to its stdin, its progress read; a whole file or none."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from stagexec.delivery import ffmpeg, pending, pixels, saying
from stagexec.delivery.errors import EncodeFailed

PIPE_BYTES = 1 << 20
"""Size asked for the pipe of frames, where the system lets one ask: fewer switches between us and ffmpeg."""

LOOK_S = 0.05
"""A cancel is looked for this often, also while ffmpeg takes no more frames."""

END_S = 5.0
"""A process that was told to end gets this long, then it is not waited for any more."""


class Host(Protocol):
    """What an encode wants of its caller. A stock host and ours give the same."""

    def progress(self, done: int, total: int) -> None:
        """`done` of `total` frames are encoded. May raise to cancel."""

    def cancelled(self) -> bool:
        """Was a stop asked for? Only looks. Called on another thread."""

    def raise_if_cancelled(self) -> None:
        """Raise what the host raises for a cancel, if there was one."""


class Quiet:
    """Without progress and without cancels."""

    def progress(self, done: int, total: int) -> None:
        """Nothing."""

    def cancelled(self) -> bool:
        """Never."""
        return False

    def raise_if_cancelled(self) -> None:
        """Never."""


def encode(
    images: Any, audio: Any, settings: ffmpeg.Settings, target: Path, host: Host | None = None
) -> dict[str, Any]:
    """Encode an IMAGE batch (and AUDIO or None) to `target`, which must not exist before.

    Gives {path, frames, bytes}. Raises EncodeFailed, or what `host` raises on a cancel; then there is
    nothing at `target` and no temporary file left.
    """
    binary = ffmpeg.find()
    layout = pixels.layout_of(images, settings.deep)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = pending.part_name(target)
    with pending.noted(part, str(target)), removed(part), sound_file(audio, part) as sound:
        frames = ffmpeg.Frames(layout, int(images.shape[2]), int(images.shape[1]))
        words = ffmpeg.command(binary, settings, frames, sound, part)
        Encoder(words, len(images), host or Quiet()).run(images, pixels.Converter(layout.endswith("le")))
        size = part.stat().st_size if part.exists() else 0
        if not size:
            raise EncodeFailed("close", "ffmpeg ended well and wrote nothing", 0)
        os.replace(part, target)
    return {"path": str(target), "frames": len(images), "bytes": size}


@contextmanager
def removed(part: Path) -> Iterator[None]:
    """The temporary file is gone afterwards, however this ends."""
    try:
        yield
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def sound_file(audio: Any, part: Path) -> Iterator[ffmpeg.Sound | None]:
    """The audio in a temporary file beside `part`; None without audio."""
    if audio is None:
        yield None
        return
    path = part.with_suffix(".f32le")
    with pending.noted(path, None), removed(path):
        rate, channels = pixels.write_sound(audio, path)
        yield ffmpeg.Sound(path, rate, channels)


class Encoder:
    """One ffmpeg process, from its start to its end."""

    def __init__(self, words: list[str], total: int, host: Host) -> None:
        self.words = words
        self.total = total
        self.host = host
        self.done = 0
        self._said = bytearray()
        self._over = threading.Event()

    def run(self, images: Any, converter: pixels.Converter) -> None:
        """Feed all frames and wait for the end. EncodeFailed, or the host's own exception on a cancel."""
        process = self._start()
        widen(process.stdin)
        threads: list[threading.Thread] = []
        try:
            listeners = (self._listen, self._read_progress, self._watch_cancel)
            threads.extend(self._thread(what, process) for what in listeners)
            fed = self._feed(process, images, converter)
            while process.poll() is None:
                self._report()
                self._wait(process)
        except BaseException:
            process.kill()
            raise
        finally:
            self._over.set()
            self._end(process, threads)
        self.host.raise_if_cancelled()
        if process.returncode != 0:  # a filter may want no more frames: then it ends well, and early
            raise self._failure(process.returncode, fed)
        self.done = self.total
        self._report()

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self.words,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise EncodeFailed("spawn", f"ffmpeg could not be started: {error.strerror or error}") from error

    def _feed(self, process: subprocess.Popen[bytes], images: Any, converter: pixels.Converter) -> bool:
        """Write every frame; False when ffmpeg stopped reading."""
        assert process.stdin is not None
        for number, frame in enumerate(images):
            for piece in converter.pieces(frame, number):
                try:
                    write_all(process.stdin, piece)
                except (BrokenPipeError, OSError) as error:
                    if not isinstance(error, BrokenPipeError) and os.name != "nt":
                        raise
                    return False
            self._report()
        try:
            process.stdin.close()
        except BrokenPipeError:
            return False
        return True

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        try:
            process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            return

    def _report(self) -> None:
        self.host.raise_if_cancelled()
        self.host.progress(min(self.done, self.total), self.total)

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        while piece := process.stderr.read(1 << 14):
            self._said += piece
            del self._said[: -saying.TAIL_BYTES]

    def _read_progress(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        while piece := process.stdout.read(1 << 12):
            told = saying.progress_of(piece).get("frames")
            if isinstance(told, int):
                self.done = told

    def _watch_cancel(self, process: subprocess.Popen[bytes]) -> None:
        """ffmpeg may hang with its pipe full, and we in a write to it: only this thread can then end it."""
        while not self._over.wait(LOOK_S):
            if self.host.cancelled():
                process.kill()
                return

    def _thread(self, what: Callable[[Any], None], process: Any) -> threading.Thread:
        thread = threading.Thread(target=what, args=(process,), name="stagexec-encode", daemon=True)
        thread.start()
        return thread

    def _end(self, process: subprocess.Popen[bytes], threads: list[threading.Thread]) -> None:
        """The process is waited for and its pipes are closed."""
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for thread in threads:
            thread.join(END_S)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was still buffered for a process that is gone
                    continue

    def _failure(self, exit_code: int, fed: bool) -> EncodeFailed:
        text = self._said.decode("utf-8", "replace")
        lines = saying.lines_of(text, keep_text=True)
        full = saying.is_disk_full(text) or exit_code == saying.FILE_TOO_LARGE
        if self.done:
            phase = "close" if fed else "encode"
        else:
            phase = "open" if saying.is_refusal(text) and exit_code > 0 else "close" if fed else "encode"
        said = "\n".join(lines) or "it said nothing"
        return EncodeFailed(
            phase,
            f"ffmpeg failed in phase {phase} with exit code {exit_code} "
            f"after {self.done} of {self.total} frames:\n{said}",
            exit_code,
            "disk_full" if full else "encode_failed",
        )


def widen(pipe: Any) -> None:
    """Ask for a pipe of PIPE_BYTES. Without it the encode is a little slower."""
    try:
        import fcntl

        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)  # type: ignore[attr-defined,unused-ignore]
    except (ImportError, AttributeError, OSError):  # no Linux; or more than this user's pipes may take in all
        return


def write_all(pipe: Any, data: memoryview) -> None:
    """Write all of `data` to an unbuffered pipe."""
    while len(data):
        data = data[pipe.write(data) :]
