"""Find the user's ComfyUI tree."""

from __future__ import annotations

import os
from pathlib import Path

from stagexec import files

MARKS = ("main.py", "execution.py", "nodes.py", "server.py", "comfy", "comfy_execution")
"""What makes a folder a ComfyUI tree."""


class HostNotFound(Exception):
    """No ComfyUI tree where we looked; the message says where that was."""


def missing_marks(folder: Path) -> list[str]:
    """Which of MARKS `folder` lacks; empty for a ComfyUI tree."""
    return [name for name in MARKS if not (folder / name).exists()]


def locate(explicit: str | None) -> Path:
    """The host tree: `explicit`, else $COMFYUI_PATH, else the current folder (or its ComfyUI subfolder).

    Raises HostNotFound; a place that was named but is no ComfyUI tree is an error, not skipped.
    """
    named = [("--stagexec-comfyui", explicit), ("$COMFYUI_PATH", os.environ.get("COMFYUI_PATH"))]
    for source, value in named:
        if value or (value is not None and value is explicit):
            try:
                return _named(source, files.place(value))
            except (files.BadPath, OSError) as error:
                raise HostNotFound(f"{source}: {error}") from None
    try:
        here = files.place(".")
    except files.BadPath as error:
        raise HostNotFound(f"no ComfyUI found: {error}") from None
    for folder in (here, here / "ComfyUI"):
        if not missing_marks(folder):
            return folder.absolute()
    raise HostNotFound(
        "no ComfyUI found. Looked at: --stagexec-comfyui (not given), $COMFYUI_PATH (not set), "
        f"the current folder {here} (no {', '.join(missing_marks(here))}) and {here / 'ComfyUI'}. "
        "Give the folder that holds ComfyUI's main.py with --stagexec-comfyui DIR."
    )


def _named(source: str, folder: Path) -> Path:
    if not folder.is_dir():
        raise HostNotFound(f"{source} names {folder}, which is not a folder.")
    lacking = missing_marks(folder)
    if lacking:
        raise HostNotFound(
            f"{source} names {folder}, which is not a ComfyUI tree: it has no {', '.join(lacking)}."
        )
    return folder
