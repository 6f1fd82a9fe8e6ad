"""Where the files that are not code lie, in a wheel and in a checkout: seam tables, plans, workflows."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    """The folder `name` of the wheel's data, else of the checkout; FileNotFoundError if neither is there."""
    in_wheel = _PACKAGE / "data" / name
    in_checkout = _PACKAGE.parent / name
    for folder in (in_wheel, in_checkout):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"stagexec's own folder {name!r} is neither at {in_wheel} nor at {in_checkout}")


def patches_folder() -> Path:
    """The folder of the shipped seam tables (`*.toml`); FileNotFoundError when the installation is broken."""
    return _folder("patches")


def bench_folder() -> Path:
    """The folder of the shipped plans and workflows; FileNotFoundError when the installation is broken."""
    return _folder("bench")


def checkout_root() -> Path | None:
    """The checkout this package is imported from, or None when it was installed as a wheel."""
    root = _PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "patches").is_dir() else None
