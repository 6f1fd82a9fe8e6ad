"""Nodes that encode with ffmpeg as packs do: well, badly, silently, on a thread."""
# ruff: noqa: N802 (the host asks for these names)

import os
import signal
import subprocess
import threading
import time

from .files import new_file
from .kinds import ANY, CATEGORY, NUMBER, PREFIX, required

SIZE = 64


def binary():
    """The ffmpeg that the tests use."""
    import imageio_ffmpeg

    return imageio_ffmpeg.get_ffmpeg_exe()


def arguments(path, codec, *more):
    """Raw frames from stdin to a file."""
    raw = ["-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{SIZE}x{SIZE}", "-r", "8", "-i", "-"]
    return [binary(), *raw, "-c:v", codec, "-pix_fmt", "yuv420p", *more, "-y", path]


def frames(count):
    """Bytes of frames that differ."""
    return [bytes([at % 256]) * (SIZE * SIZE * 3) for at in range(count)]


class Encoder:
    """What the nodes here share: `value` only makes them run again."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ()
    OUTPUT_NODE = True
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(
            value=ANY, codec=("STRING", {"default": "mpeg4"}), count=NUMBER, filename_prefix=PREFIX
        )


class StxFfmpegPipe(Encoder):
    """Writes frames to ffmpeg one after the other, reads what it says, and raises when it failed."""

    def run(self, value, codec, count, filename_prefix):
        path, entry = new_file(filename_prefix, "mp4")
        with subprocess.Popen(
            arguments(path, codec), stdin=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                for frame in frames(count):
                    process.stdin.write(frame)
                process.stdin.close()
            except BrokenPipeError:
                pass
            said = process.stderr.read()
        if process.returncode:
            raise RuntimeError("ffmpeg failed: " + said.decode())
        return {"ui": {"gifs": [entry]}}


class StxFfmpegRun(Encoder):
    """Gives all frames to subprocess.run, and tells in a text what it got back; swallows a failure."""

    def run(self, value, codec, count, filename_prefix):
        path, entry = new_file(filename_prefix, "mp4")
        done = subprocess.run(
            arguments(path, codec, "-progress", "pipe:1"), input=b"".join(frames(count)), capture_output=True
        )
        shown = {"text": [str(done.returncode), done.stdout.decode()[-20:], done.stderr.decode()]}
        return {"ui": {**shown, "gifs": [entry]} if os.path.exists(path) else shown}


class StxFfmpegRetry(Encoder):
    """Its first attempt fails, its second makes the same file: VideoHelperSuite does so with metadata."""

    def run(self, value, codec, count, filename_prefix):
        path, entry = new_file(filename_prefix, "mp4")
        data = b"".join(frames(count))
        subprocess.run(arguments(path, "no_such_encoder"), input=data, capture_output=True)
        subprocess.run(arguments(path, codec), input=data, capture_output=True, check=True)
        return {"ui": {"gifs": [entry]}}


class StxFfmpegKilled(Encoder):
    """Another program kills ffmpeg in mid-work; the node goes on as if nothing had happened."""

    def run(self, value, codec, count, filename_prefix):
        path, _ = new_file(filename_prefix, "mkv")
        process = subprocess.Popen(arguments(path, codec), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        process.stdin.write(frames(1)[0])
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGKILL)
        try:
            for frame in frames(count):
                process.stdin.write(frame)
            process.stdin.close()
        except BrokenPipeError:
            pass
        time.sleep(0.5)  # the node looks late: who saw the exit when it happened did not learn it here
        process.wait()
        return {"ui": {"text": ["done"]}}


class StxFfmpegThread(Encoder):
    """ffmpeg runs on another thread while the node sleeps."""

    def run(self, value, codec, count, filename_prefix):
        path, entry = new_file(filename_prefix, "mp4")
        data = b"".join(frames(count))
        thread = threading.Thread(
            target=lambda: subprocess.run(arguments(path, codec), input=data, capture_output=True), name="enc"
        )
        thread.start()
        thread.join()
        return {"ui": {"gifs": [entry]}}


class StxFfmpegMissing(Encoder):
    """Starts an ffmpeg that is not there."""

    def run(self, value, codec, count, filename_prefix):
        subprocess.run(["/nowhere/ffmpeg", "-i", "-", "-f", "mp4", "x.mp4"], check=True)


class StxFfmpegDecode(Encoder):
    """Reads a video through a pipe and stops in the middle: no failure of an encoder."""

    def run(self, value, codec, count, filename_prefix):
        path, _ = new_file(filename_prefix, "mp4")
        subprocess.run(arguments(path, codec), input=b"".join(frames(count)), check=True)
        words = [binary(), "-v", "error", "-i", path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE)
        process.stdout.read(SIZE)
        process.stdout.close()
        process.wait()
        os.remove(path)
        return {"ui": {"text": ["read"]}}


class StxSineAudio:
    """A second of sound; `bad` puts a sample in it that is not a number."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("AUDIO",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(bad=("BOOLEAN", {"default": False}))

    def run(self, bad):
        import torch

        wave = torch.sin(torch.arange(16000) * 0.17).reshape(1, 1, -1)
        if bad:
            wave[0, 0, 77] = float("nan")
        return ({"waveform": wave, "sample_rate": 16000},)


NODES = {
    cls.__name__: cls
    for cls in (
        StxFfmpegPipe,
        StxFfmpegRun,
        StxFfmpegRetry,
        StxFfmpegKilled,
        StxFfmpegThread,
        StxFfmpegMissing,
        StxFfmpegDecode,
        StxSineAudio,
    )
}
