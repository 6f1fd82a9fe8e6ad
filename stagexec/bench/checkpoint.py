"""The tiny checkpoint: made once by a subprocess that has the host's classes, and kept in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from stagexec.bench import setup

NAME = "stagexec-tiny-sd15.safetensors"
SEED = 20240607
MARK = "stagexec.random_weights"
"""Key in the file's metadata: its weights are seeded random numbers. The recipe writes it."""
MOST_HEADER = 100_000_000


def checkpoint_path() -> Path:
    """Where the tiny checkpoint lies, or would."""
    return setup.work_folder() / "checkpoints" / NAME


def make_checkpoint(host: Path | None = None, python: str = sys.executable) -> Path:
    """The tiny checkpoint (about 503 MB, fp16, seeded random weights), made if it is not there.

    `python` must be able to import what the host needs. Raises SetupError with the maker's last words.
    """
    target = checkpoint_path()
    cached = setup.cache_folder() / "checkpoints" / f"{_recipe_key()}.safetensors"
    if target.exists() and not (target.is_symlink() and Path(os.readlink(target)) != cached):
        return target  # a link to what an older recipe made is not this one
    tree = host or setup.fetch_host()
    setup.built_once(cached, lambda path: _make(path, tree, python))
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.is_symlink():
        _link(cached, target)
    return target


def has_random_weights(path: Path) -> bool:
    """Whether a safetensors file says of itself that nobody has trained it; False of what cannot be read."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, MOST_HEADER)))
        return MARK in (header.get("__metadata__") or {})
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def _recipe_key() -> str:
    """The recipe is a file of ours; its text and the seed decide what comes out of it."""
    recipe = Path(__file__).parents[1] / "host" / "checkpoint.py"
    return hashlib.sha256(recipe.read_bytes() + str(SEED).encode()).hexdigest()[:16]


def _make(path: Path, tree: Path, python: str) -> None:
    command = [
        python,
        "-m",
        "stagexec.host.checkpoint",
        "--host",
        str(tree),
        "--out",
        str(path),
        "--seed",
        str(SEED),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise setup.SetupError(
            f"the tiny checkpoint could not be made with the packages of {python}:\n{words}"
        )


def _link(source: Path, target: Path) -> None:
    """A symbolic link beside the clone's other files; a copy where the system refuses links."""
    target.unlink(missing_ok=True)  # a link whose cache is gone
    try:
        os.symlink(source, target)
    except OSError:
        partial = target.with_suffix(".partial")
        shutil.copyfile(source, partial)
        os.replace(partial, target)
