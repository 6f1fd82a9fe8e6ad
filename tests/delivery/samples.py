"""Real encodes of a few frames or a second of sound, made with the libraries that the host uses."""

from pathlib import Path

import av
import numpy as np
from PIL import Image


def picture(size=(32, 24), shade=0):
    pixels = np.random.default_rng(shade).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def image(path: Path, frames=1, **options) -> Path:
    extra = (
        {"save_all": True, "append_images": [picture(shade=at) for at in range(1, frames)]}
        if frames > 1
        else {}
    )
    picture().save(path, **extra, **options)
    return path


def video(path: Path, codec: str, frames=48, rate=24, **options) -> Path:
    with av.open(str(path), "w", options=options) as out:
        stream = out.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for at in range(frames):
            frame = av.VideoFrame.from_image(picture((64, 48), at))
            out.mux(stream.encode(frame.reformat(format="yuv420p")))
        out.mux(stream.encode())
    return path


def sound(path: Path, codec: str, seconds=4, rate=48_000) -> Path:
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=rate, layout="mono")
        noise = np.random.default_rng(0).integers(-9000, 9000, (1, seconds * rate), dtype=np.int16)
        resampler = av.AudioResampler(
            stream.codec_context.format, "mono", rate, stream.codec_context.frame_size or 1024
        )
        frame = av.AudioFrame.from_ndarray(noise, format="s16", layout="mono")
        frame.sample_rate = rate
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            out.mux(stream.encode(piece))
        out.mux(stream.encode())
    return path


def cut(path: Path, share: float) -> Path:
    """Only the first `share` of the file, under its own name."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path
