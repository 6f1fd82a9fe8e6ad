"""Frames and sound as bytes, a piece at a time: no second copy of a batch is ever made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stagexec.delivery.errors import EncodeFailed

PIECE = 1 << 21
"""Elements converted together: a few megabytes of buffers, whatever the size of a frame."""

LAYOUTS = {(1, False): "gray", (3, False): "rgb24", (4, False): "rgba"} | {
    (1, True): "gray16le",
    (3, True): "rgb48le",
    (4, True): "rgba64le",
}
"""(channels, more than 8 bits) -> ffmpeg's name of the raw layout."""


def layout_of(images: Any, deep: bool) -> str:
    """ffmpeg's name for the frames of an IMAGE batch [frames, height, width, channels], or EncodeFailed."""
    if getattr(images, "ndim", 0) != 4 or 0 in images.shape:
        raise EncodeFailed("input", f"the images have the shape {tuple(getattr(images, 'shape', ()))}")
    found = LAYOUTS.get((images.shape[3], deep and images.is_floating_point()))
    if found is None:
        raise EncodeFailed("input", f"images with {images.shape[3]} channels cannot be encoded")
    return found


class Converter:
    """Pieces of frames as raw bytes. Float images are 0 to 1 and are rounded; uint8 goes as it is.

    The buffers are reused: each piece is valid until the next is asked for.
    """

    def __init__(self, deep: bool) -> None:
        self.deep = deep
        self._float: Any = None
        self._whole: Any = None

    def pieces(self, frame: Any, number: int) -> Iterator[memoryview]:
        """The bytes of frame `number` [height, width, channels]. EncodeFailed on NaN or infinity."""
        import torch

        if frame.dtype == torch.uint8 and frame.is_contiguous() and frame.device.type == "cpu":
            yield memoryview(frame.numpy()).cast("B")
            return
        rows = max(PIECE // (frame.shape[1] * frame.shape[2]), 1)
        for top in range(0, frame.shape[0], rows):
            piece = frame[top : top + rows].detach()
            if not frame.is_floating_point():
                yield memoryview(piece.to("cpu", torch.uint8).contiguous().numpy()).cast("B")
            else:
                yield self._rounded(piece, number, torch)

    def _rounded(self, piece: Any, number: int, torch: Any) -> memoryview:
        import numpy

        if self._float is None or self._float.shape[0] < piece.shape[0]:
            self._float = torch.empty(piece.shape, dtype=torch.float32)
            self._whole = numpy.empty(tuple(piece.shape), numpy.uint16 if self.deep else numpy.uint8)
        work, whole = self._float[: piece.shape[0]], self._whole[: piece.shape[0]]
        work.copy_(piece)
        if not bool(torch.isfinite(work.sum())) and not bool(torch.isfinite(work).all()):
            raise EncodeFailed(
                "input", f"frame {number} has NaN or infinite values", cause="artifact_nonfinite"
            )
        work.mul_(65535.0 if self.deep else 255.0).round_().clamp_(0.0, 65535.0 if self.deep else 255.0)
        numpy.copyto(whole, work.numpy(), casting="unsafe")
        return memoryview(whole).cast("B")


def write_sound(audio: Any, path: Path) -> tuple[int, int]:
    """AUDIO as interleaved 32-bit floats in a new file: (rate, channels). EncodeFailed on bad samples."""
    import torch

    wave, rate = audio["waveform"], int(audio["sample_rate"])
    while wave.ndim > 2:
        wave = wave[0]
    if wave.ndim != 2 or 0 in wave.shape or rate <= 0:
        raise EncodeFailed("input", f"the audio has the shape {tuple(audio['waveform'].shape)} at {rate} Hz")
    step = max(PIECE // wave.shape[0], 1)
    with path.open("xb") as file:
        for start in range(0, wave.shape[1], step):
            piece = wave[:, start : start + step].detach().to("cpu", torch.float32)
            if not bool(torch.isfinite(piece).all()):
                raise EncodeFailed(
                    "input", "the audio has NaN or infinite samples", cause="artifact_nonfinite"
                )
            file.write(memoryview(piece.T.contiguous().numpy()).cast("B"))
    return rate, int(wave.shape[0])
