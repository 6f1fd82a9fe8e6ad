"""The tiny checkpoint: the same bytes each time, and a real ComfyUI takes it for Stable Diffusion 1.5."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench import checkpoint as checkpoints
from stagexec.bench import lab
from stagexec.cli import demo
from stagexec.host import checkpoint as recipe

pytestmark = pytest.mark.host


def header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        found: dict[str, Any] = json.loads(file.read(length))
    found.pop("__metadata__", None)
    return found


def test_it_has_the_parts_of_a_checkpoint_in_fp16(checkpoint: Path) -> None:
    tensors = header(checkpoint)
    prefixes = {"model": 0, "cond_stage_model": 0, "first_stage_model": 0}
    for key, tensor in tensors.items():
        count = 1
        for length in tensor["shape"]:
            count *= length
        prefixes[key.split(".")[0]] += count
        assert tensor["dtype"] == "F16"
    assert {name: round(count / 1e6) for name, count in prefixes.items()} == {
        "model": 44,
        "cond_stage_model": 123,
        "first_stage_model": 84,
    }


def test_weights_depend_on_the_seed_and_on_nothing_else() -> None:
    shapes = {"a.weight": (3, 4), "b.weight": (5, 2), "norm.weight": (4,), "a.bias": (3,)}
    once, again = recipe.random_weights(shapes, 1), recipe.random_weights(dict(reversed(shapes.items())), 1)
    other = recipe.random_weights(shapes, 2)
    assert all(bool((once[key] == again[key]).all()) for key in shapes)
    assert not bool((once["a.weight"] == other["a.weight"]).all())
    assert once["norm.weight"].tolist() == [1.0] * 4
    assert once["a.bias"].tolist() == [0.0] * 3


def test_a_link_whose_cache_is_gone_is_made_anew(tmp_path: Path) -> None:
    gone, link = tmp_path / "gone", tmp_path / "link"
    gone.write_text("old")
    checkpoints._link(gone, link)
    gone.unlink()
    new = tmp_path / "new"
    new.write_text("new")
    checkpoints._link(new, link)
    assert link.read_text() == "new"


def test_it_says_of_itself_that_its_weights_are_random_and_a_trained_one_does_not(
    tmp_path: Path,
) -> None:
    import torch
    from safetensors.torch import save_file

    recipe.write({"a": torch.zeros(2)}, tmp_path / "tiny.safetensors")
    save_file({"a": torch.zeros(2)}, str(tmp_path / "trained.safetensors"), metadata={"format": "pt"})
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 20)
    told = {path.stem: checkpoints.has_random_weights(path) for path in tmp_path.iterdir()}
    assert told == {"tiny": True, "trained": False, "broken": False}
    assert not checkpoints.has_random_weights(tmp_path / "absent.safetensors")
    assert set(recipe.MARK) == {checkpoints.MARK}
    assert checkpoints.has_random_weights(checkpoints.make_checkpoint())


def test_a_link_to_what_an_older_recipe_made_is_followed_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, target = tmp_path / "old", tmp_path / "made" / "tiny.safetensors"
    old.write_text("old")
    target.parent.mkdir()
    checkpoints._link(old, target)
    monkeypatch.setattr(checkpoints, "checkpoint_path", lambda: target)
    monkeypatch.setattr(checkpoints.setup, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(checkpoints, "_make", lambda path, tree, python: path.write_text("new"))
    assert checkpoints.make_checkpoint(tmp_path).read_text() == "new"
    monkeypatch.setattr(checkpoints, "_make", lambda path, tree, python: pytest.fail("it is there"))
    assert checkpoints.make_checkpoint(tmp_path).read_text() == "new"


def test_stock_comfyui_makes_a_finite_image_of_it(stock: lab.Server) -> None:
    import numpy as np
    from PIL import Image

    with stock.client() as browser:
        entry = browser.run(demo.workflow(3))
        assert entry["status"]["status_str"] == "success", entry["status"]
        file = entry["outputs"]["9"]["images"][0]
        pixels = np.asarray(Image.open(io.BytesIO(browser.image(file))))
    assert pixels.shape == (64, 64, 3)
    assert pixels.std() > 1, "NaN latents come out as one flat colour"
    assert "model_type EPS" in stock.log()
