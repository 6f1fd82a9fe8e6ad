"""What a bench needs besides the core: packages that ComfyUI brings, and another Python may lack."""

from __future__ import annotations

import importlib

PACKAGES = {"numpy": "numpy", "scipy": "scipy", "PIL": "Pillow"}
"""Module -> package, of what every report is made with."""


class Missing(Exception):
    """A package is not installed; the message says which, and how to get it."""


def require() -> None:
    """Raises Missing before there is any work to lose."""
    missing = []
    for module, package in PACKAGES.items():
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(package)
    if missing:
        raise Missing(f"the bench needs {' and '.join(missing)}: pip install 'stagexec[bench]'")
