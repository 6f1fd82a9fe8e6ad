"""The custom-node lock: every pack's commit and the hash of its code."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from stagexec.record.condition import canonical

SKIPPED = frozenset({".git", "__pycache__", "node_modules", "models", "web", ".venv", "venv"})
CODE = (".py", ".pyd", ".so", ".json", ".toml")
LARGEST = 4 * 1024**2
"""Larger files are data; their size stands for them."""


def lock() -> tuple[str, dict[str, Any]]:
    """(hash, {pack: {commit, content}}) of all packs that the host loads, switched-off ones left out."""
    folders = sys.modules.get("folder_paths")
    found: dict[str, Any] = {}
    for folder in folders.get_folder_paths("custom_nodes") if folders is not None else ():
        for path in sorted(Path(folder).iterdir()) if os.path.isdir(folder) else ():
            if path.name.startswith((".", "__")) or path.name.endswith((".disabled", ".example")):
                continue
            if path.is_dir() or path.suffix == ".py":
                found[path.name] = {"commit": commit(path), "content": content(path)}
    return hashlib.sha256(canonical(found)).hexdigest(), found


def content(path: Path) -> str:
    """SHA-256 over names and contents of a pack's code. What cannot be read counts by its name."""
    total = hashlib.sha256()
    for file in [path] if path.is_file() else _code(path):
        total.update(str(file.relative_to(path.parent)).replace(os.sep, "/").encode() + b"\0")
        try:
            size = file.stat().st_size
            total.update(file.read_bytes() if size <= LARGEST else str(size).encode())
        except OSError:
            total.update(b"unreadable")
        total.update(b"\0")
    return total.hexdigest()


def _code(folder: Path) -> list[Path]:
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        found += [Path(root, name) for name in sorted(files) if name.endswith(CODE)]
    return found


def commit(folder: Path) -> str | None:
    """The commit that a checkout stands at, read from its files; None for what is no checkout."""
    git = folder / ".git"
    try:
        if git.is_file():  # a work tree or submodule: it names the folder
            git = folder / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not head.startswith("ref:"):
        return head or None
    return _ref(git, head.partition("ref:")[2].strip())


def _ref(git: Path, name: str) -> str | None:
    linked = git / "commondir"  # a linked work tree names the folder that has the refs
    common = git / linked.read_text(encoding="utf-8").strip() if linked.is_file() else git
    for base in (git, common):
        try:
            return (base / name).read_text(encoding="utf-8").strip()
        except OSError:
            continue
    try:
        lines = (common / "packed-refs").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.split(" ")[0] for line in lines if line.endswith(f" {name}")), None)
