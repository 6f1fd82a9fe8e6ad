"""Condition manifests and custom-node locks, as they lie in the ledger."""

from __future__ import annotations

import pathlib
from typing import Any

import msgspec


class Manifest(msgspec.Struct, frozen=True):
    """Every field of a condition, and for each null one the reason."""

    fields: dict[str, Any]
    reasons: dict[str, str] = {}


def manifest(ledger: pathlib.Path, condition_id: str | None) -> Manifest | None:
    """The manifest of a condition; None when the ledger has none that can be read."""
    return _read(ledger / "conditions" / f"{condition_id}.json", Manifest) if condition_id else None


def lock(ledger: pathlib.Path, custom_nodes_hash: str | None) -> dict[str, Any]:
    """{pack: {commit, content}} behind a manifest's custom_nodes_hash; empty when it is not there."""
    if not custom_nodes_hash:
        return {}
    return _read(ledger / "locks" / f"{custom_nodes_hash}.json", dict[str, Any]) or {}


def _read(path: pathlib.Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None
