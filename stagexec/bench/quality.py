"""Is the output right? Delivered pictures and videos against the reference arm's, frame by frame."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stagexec.bench.plan import Quality

VIDEO = {".mp4", ".webm", ".mkv", ".mov", ".avi", ".gif"}
SIGMA = 1.5
"""Width of SSIM's Gaussian window in pixels; it is cut off at 3.5 of them."""
C1, C2 = 0.01**2, 0.03**2
"""SSIM's constants for values from 0 to 1."""


class Unreadable(Exception):
    """A file that holds no picture we can read; one line."""


class Likeness(msgspec.Struct, frozen=True):
    """How like one delivered output is to the reference's. Values of pixels run from 0 to 1.

    `psnr` in dB, None when the two are identical or nothing could be compared; `problem` says why not.
    """

    finite: bool
    identical: bool = False
    psnr: float | None = None
    ssim: float | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    frames: int = 0
    problem: str | None = None


def frames(path: Path) -> Iterator[Any]:
    """The frames of a picture or video as arrays (height, width, channels) of float, 0 to 1.

    Raises Unreadable.
    """
    try:
        yield from _video(path) if path.suffix.lower() in VIDEO else _picture(path)
    except (OSError, ValueError, ImportError) as error:
        raise Unreadable(f"{path.name} cannot be read: {error}") from None


def _picture(path: Path) -> Iterator[Any]:
    import numpy as np

    if path.suffix.lower() == ".npy":
        array = np.load(path, allow_pickle=False).astype(float)
        yield array if array.ndim == 3 else array.reshape(*array.shape[:2], -1)
        return
    from PIL import Image, ImageSequence

    with Image.open(path) as image:
        for frame in ImageSequence.Iterator(image):
            array = np.asarray(frame.convert("RGBA") if frame.mode == "P" else frame)
            scale = {"u": float(np.iinfo(array.dtype).max) if array.dtype.kind == "u" else 1.0, "i": 65535.0}
            array = array.astype(float) / scale.get(array.dtype.kind, 1.0)
            yield array[:, :, None] if array.ndim == 2 else array


def _video(path: Path) -> Iterator[Any]:
    import av

    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            yield frame.to_ndarray(format="rgb24").astype(float) / 255.0


def compare(ours: Sequence[Path], reference: Sequence[Path]) -> Likeness:
    """All files of a run against the reference's for the same seed; the worst SSIM, PSNR over all frames."""
    import numpy as np

    if len(ours) != len(reference):
        return Likeness(True, problem=f"{len(ours)} files instead of {len(reference)}")
    if not ours:
        return Likeness(True, problem="no picture was delivered to compare")
    squares = absolutes = highest = 0.0
    count = number = 0
    similar = 1.0
    try:
        for a, b in _pairs(ours, reference):
            if a is None or b is None or a.shape != b.shape:
                return Likeness(True, frames=number, problem=_shapes(a, b))
            if not (np.isfinite(a).all() and np.isfinite(b).all()):
                return Likeness(bool(np.isfinite(a).all()), frames=number, problem="values are not finite")
            apart = np.abs(a - b)
            squares += float((apart**2).sum())
            absolutes += float(apart.sum())
            highest = max(highest, float(apart.max()))
            count += apart.size
            number += 1
            similar = min(similar, ssim(a, b))
    except Unreadable as error:
        return Likeness(True, frames=number, problem=str(error))
    square = squares / count
    psnr = None if square == 0 else -10 * math.log10(square)
    return Likeness(True, square == 0, psnr, similar, highest, absolutes / count, number)


def _pairs(ours: Sequence[Path], reference: Sequence[Path]) -> Iterator[tuple[Any, Any]]:
    for a, b in zip(ours, reference, strict=True):
        yield from itertools.zip_longest(frames(a), frames(b))


def _shapes(a: Any, b: Any) -> str:
    if a is None or b is None:
        return "another number of frames"
    return f"frames of {a.shape[1]}×{a.shape[0]} instead of {b.shape[1]}×{b.shape[0]}"


def ssim(a: Any, b: Any) -> float:
    """Mean structural similarity of two frames (height, width, channels) with values from 0 to 1."""
    from scipy.ndimage import gaussian_filter

    def smooth(x: Any) -> Any:
        return gaussian_filter(x, sigma=(SIGMA, SIGMA, 0), truncate=3.5)

    mean_a, mean_b = smooth(a), smooth(b)
    var_a = smooth(a * a) - mean_a**2
    var_b = smooth(b * b) - mean_b**2
    both = smooth(a * b) - mean_a * mean_b
    top = (2 * mean_a * mean_b + C1) * (2 * both + C2)
    bottom = (mean_a**2 + mean_b**2 + C1) * (var_a + var_b + C2)
    return float((top / bottom).mean())


class Judgement(msgspec.Struct, frozen=True):
    """All pairs of an arm together: the worst figures, and whether the output may be used."""

    right: bool
    why: str
    compared: int
    identical: int
    psnr_min: float | None
    ssim_min: float | None
    max_abs: float | None
    mean_abs: float | None
    criterion: str
    refused: bool = False
    """There is no verdict: the weights are random, so what a picture looks like means nothing."""


RANDOM = "the shipped checkpoint has random weights: no verdict on quality"
EQUAL_DB = 100.0
"""Who asks for this much asks whether the outputs are the same, and that can be told of any weights."""


def judge(found: Sequence[Likeness], rules: Quality, random: bool = False) -> Judgement:
    """Judge by the worst pair. Nothing to compare is not wrong, and is said.

    `random`: the model's weights are random. What is missing, not finite or of another shape is wrong all the
    same, and outputs that are the same are the same; how like two pictures are says nothing of quality then.
    """
    criterion = f"PSNR ≥ {rules.psnr_min:g} dB and SSIM ≥ {rules.ssim_min:g} for every seed"
    usable = [one for one in found if one.problem is None]
    psnrs = [one.psnr for one in usable if one.psnr is not None]
    ssims = [one.ssim for one in usable if one.ssim is not None]
    figures = (
        len(usable),
        sum(one.identical for one in usable),
        min(psnrs, default=None),
        min(ssims, default=None),
        max((one.max_abs for one in usable if one.max_abs is not None), default=None),
        max((one.mean_abs for one in usable if one.mean_abs is not None), default=None),
        criterion,
    )
    missing = "no picture was delivered to compare"
    problems = sorted({one.problem for one in found if one.problem is not None and one.problem != missing})
    if problems:
        return Judgement(False, "; ".join(problems), *figures)
    if not usable:
        return Judgement(True, "nothing could be compared", *figures)
    if random and len(usable) != figures[1] and rules.psnr_min < EQUAL_DB:
        return Judgement(True, RANDOM, *figures, refused=True)
    if psnrs and min(psnrs) < rules.psnr_min:
        return Judgement(
            False, f"PSNR falls to {min(psnrs):.1f} dB, {rules.psnr_min:g} is asked for", *figures
        )
    # A SSIM of 1 is asked for where outputs must be the same; rounding leaves it a hair below.
    if ssims and min(ssims) < rules.ssim_min - 1e-9:
        return Judgement(False, f"SSIM falls to {min(ssims):.4f}, {rules.ssim_min:g} is asked for", *figures)
    if len(usable) == figures[1]:
        pairs = "the one pair" if len(usable) == 1 else f"all {len(usable)} pairs"
        return Judgement(True, f"identical in {pairs}", *figures)
    return Judgement(True, "within the limits", *figures)
