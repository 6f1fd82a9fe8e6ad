"""Condition manifests and custom-node locks, as they lie in the ledger."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import msgspec

from stagexec.reading.journal import opened


class Manifest(msgspec.Struct, frozen=True):
    """Every field of a condition, and for each null one the reason."""

    fields: dict[str, Any]
    reasons: dict[str, str] = {}


NAME = re.compile(r"[\w.-]{1,200}\Z", re.ASCII)
"""What may be the name of a file here: an id comes from a journal, which may be damaged."""

TROUBLES = {"manifest_missing": "no manifest", "manifest_damaged": "a manifest that cannot be read"}
"""kind of a finding -> what a condition has."""


def trouble(ledger: pathlib.Path, condition_id: str) -> str | None:
    """What is wrong with the manifest of a condition, one of TROUBLES; None where nothing is."""
    if manifest(ledger, condition_id) is not None:
        return None
    try:
        there = bool(NAME.match(condition_id)) and (ledger / "conditions" / f"{condition_id}.json").exists()
    except OSError:
        there = True
    return "manifest_damaged" if there else "manifest_missing"


def manifest(ledger: pathlib.Path, condition_id: str | None) -> Manifest | None:
    """The manifest of a condition; None when the ledger has none that can be read."""
    return _read(ledger / "conditions", condition_id, Manifest) if condition_id else None


def lock(ledger: pathlib.Path, custom_nodes_hash: str | None) -> dict[str, Any]:
    """{pack: {commit, content}} behind a manifest's custom_nodes_hash; empty when it is not there."""
    if not custom_nodes_hash:
        return {}
    return _read(ledger / "locks", custom_nodes_hash, dict[str, Any]) or {}


def _read(folder: pathlib.Path, name: str, kind: Any) -> Any:
    if not NAME.match(name):
        return None
    try:
        with opened(folder / f"{name}.json") as stream:
            return msgspec.json.decode(stream.read(), type=kind)
    except (OSError, msgspec.DecodeError, RecursionError, ValueError):
        return None
