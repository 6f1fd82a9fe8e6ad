"""The tiny checkpoint: made once by a subprocess that has the host's classes, and kept in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from stagexec.bench import setup

NAME = "stagexec-tiny-sd15.safetensors"
SEED = 20240607


def checkpoint_path() -> Path:
    """Where the tiny checkpoint lies, or would."""
    return setup.work_folder() / "checkpoints" / NAME


def make_checkpoint(host: Path | None = None, python: str = sys.executable) -> Path:
    """The tiny checkpoint (about 503 MB, fp16, seeded random weights), made if it is not there.

    `python` must be able to import what the host needs. Raises SetupError with the maker's last words.
    """
    target = checkpoint_path()
    if target.exists():
        return target
    tree = host or setup.fetch_host()
    cached = setup.cache_folder() / "checkpoints" / f"{_recipe_key()}.safetensors"
    setup.built_once(cached, lambda path: _make(path, tree, python))
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        _link(cached, target)
    return target


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
