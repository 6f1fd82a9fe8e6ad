"""Quality: what is identical, close, wrong or unreadable is told apart, with the textbook's figures."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stagexec.bench import quality
from stagexec.bench.plan import Quality

RNG = np.random.default_rng(1)
PICTURE = RNG.integers(60, 200, (48, 64, 3), dtype=np.uint8)


def save(path: Path, array: np.ndarray) -> Path:
    Image.fromarray(array).save(path)
    return path


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return save(tmp_path / "reference.png", PICTURE)


def test_the_same_picture_is_identical(tmp_path: Path, reference: Path) -> None:
    found = quality.compare([save(tmp_path / "a.png", PICTURE)], [reference])
    assert (found.identical, found.psnr, found.max_abs, found.frames) == (True, None, 0.0, 1)
    assert found.ssim == pytest.approx(1.0)


def test_a_known_error_has_its_psnr_and_differences(tmp_path: Path, reference: Path) -> None:
    found = quality.compare([save(tmp_path / "a.png", PICTURE + 5)], [reference])
    assert found.psnr == pytest.approx(20 * math.log10(255 / 5))
    assert found.max_abs == pytest.approx(5 / 255)
    assert found.mean_abs == pytest.approx(5 / 255)


def test_ssim_falls_with_the_structure_and_hardly_with_brightness() -> None:
    a = PICTURE / 255.0
    shuffled = RNG.permutation(a.reshape(-1, 3)).reshape(a.shape)
    assert quality.ssim(a, a) == pytest.approx(1.0)
    assert quality.ssim(a, a + 0.02) > 0.98
    assert quality.ssim(a, shuffled) < 0.3


def test_ssim_agrees_with_its_formula_on_flat_pictures() -> None:
    a, b = np.full((16, 16, 1), 0.2), np.full((16, 16, 1), 0.6)
    expected = (2 * 0.2 * 0.6 + quality.C1) / (0.2**2 + 0.6**2 + quality.C1)
    assert quality.ssim(a, b) == pytest.approx(expected)


def test_another_size_number_of_files_or_no_picture_is_a_problem(tmp_path: Path, reference: Path) -> None:
    small = save(tmp_path / "small.png", PICTURE[:20])
    assert quality.compare([small], [reference]).problem == "frames of 64×20 instead of 64×48"
    assert quality.compare([], [reference]).problem == "0 files instead of 1"
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    assert "broken.png cannot be read" in str(quality.compare([broken], [reference]).problem)


def test_values_that_are_not_finite_are_found(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.npy", tmp_path / "bad.npy"
    np.save(good, np.zeros((4, 4, 3)))
    array = np.zeros((4, 4, 3))
    array[0, 0, 0] = np.nan
    np.save(bad, array)
    found = quality.compare([bad], [good])
    assert (found.finite, found.problem) == (False, "values are not finite")


@pytest.mark.parametrize(
    ("mode", "dtype", "scale"), [("L", np.uint8, 255), ("RGBA", np.uint8, 255), ("I;16", np.uint16, 65535)]
)
def test_grey_transparent_and_16_bit_pictures_are_read_to_scale(
    tmp_path: Path, mode: str, dtype: type, scale: int
) -> None:
    shape = (8, 8, 4) if mode == "RGBA" else (8, 8)
    path = save(tmp_path / "a.png", np.full(shape, scale // 5, dtype=dtype))
    (frame,) = quality.frames(path)
    assert frame.shape == (8, 8, 4 if mode == "RGBA" else 1)
    assert frame.max() == pytest.approx((scale // 5) / scale)


def test_every_frame_of_an_animation_is_compared(tmp_path: Path) -> None:
    frames = [Image.fromarray(RNG.integers(0, 255, (16, 16, 3), dtype=np.uint8)) for _ in range(3)]
    one, two = tmp_path / "a.webp", tmp_path / "b.webp"
    frames[0].save(one, save_all=True, append_images=frames[1:], lossless=True)
    frames[0].save(two, save_all=True, append_images=frames[1:2], lossless=True)
    assert quality.compare([one], [one]).frames == 3
    assert quality.compare([one], [two]).problem == "another number of frames"


def like(psnr: float | None, ssim: float) -> quality.Likeness:
    return quality.Likeness(True, psnr is None, psnr, ssim, 0.1, 0.01, 1)


def test_an_arm_is_judged_by_its_worst_pair_and_the_criterion_is_spelled_out() -> None:
    rules = Quality(psnr_min=40, ssim_min=0.98)
    good = quality.judge([like(50, 0.99), like(45, 0.985)], rules)
    assert (good.right, good.psnr_min, good.ssim_min) == (True, 45, 0.985)
    assert good.criterion == "PSNR ≥ 40 dB and SSIM ≥ 0.98 for every seed"
    dark = quality.judge([like(50, 0.99), like(39.9, 0.99)], rules)
    assert (dark.right, dark.why) == (False, "PSNR falls to 39.9 dB, 40 is asked for")
    assert "SSIM falls to 0.9000" in quality.judge([like(50, 0.9)], rules).why


def test_a_single_wrong_file_makes_the_arm_wrong_and_nothing_to_compare_does_not() -> None:
    rules = Quality()
    wrong = quality.Likeness(True, problem="frames of 8×8 instead of 16×16")
    assert not quality.judge([like(None, 1.0), wrong], rules).right
    nothing = quality.compare([], [])
    judged = quality.judge([nothing], rules)
    assert (judged.right, judged.why) == (True, "nothing could be compared")
    assert quality.judge([like(None, 1.0)] * 2, rules).why == "identical in all 2 pairs"


def test_random_weights_leave_what_can_be_told_of_any_weights() -> None:
    rules = Quality()
    same = quality.Likeness(True, identical=True, ssim=1.0)
    off = quality.Likeness(True, psnr=12.0, ssim=0.2)
    missing = quality.Likeness(True, problem="1 files instead of 2")
    assert quality.judge([off], rules, random=True).refused
    assert quality.judge([same, off], rules, random=True).right
    equal = quality.judge([same, same], rules, random=True)
    assert (equal.refused, equal.why) == (False, "identical in all 2 pairs")
    wrong = quality.judge([off, missing], rules, random=True)
    assert (wrong.refused, wrong.right) == (False, False)
    asked_for_the_same = quality.judge([off], Quality(psnr_min=100.0, ssim_min=1.0), random=True)
    assert (asked_for_the_same.refused, asked_for_the_same.right) == (False, False)
    assert not quality.judge([off], rules).right
