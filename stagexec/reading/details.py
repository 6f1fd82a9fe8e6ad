"""What the details of marks hold, as far as an answer counts on it: a bad value is left out, and no more."""

from __future__ import annotations

from typing import Any

import msgspec

from stagexec.reading.events import Whole

MODEL: dict[str, Any] = {
    "class": str | None,
    "id": Whole | str | None,
    "bytes": Whole | None,
    "loaded_bytes": Whole | None,
    "resident": bool | None,
    "dtype": str | None,
}

KNOWN: dict[str, dict[str, Any]] = {
    "model_load": {"models": list[dict[str, Any]], "count": Whole, "resident": Whole},
    "attention": {"calls": dict[str, Whole], "asked": str | None, "configured": str | None},
    "compiled": {},
    "cache_defeated": {"why": str | None},
    "warmup": {},
    "weights_read": {
        "file": str | None,
        "bytes": Whole | None,
        "pages": Whole | None,
        "cold_pages": Whole | None,
        "io_bytes": Whole | None,
        "ns": Whole | None,
    },
}
"""Name of a mark -> the fields of its detail that are read, with their types."""


def checked(name: str, detail: Any) -> tuple[Any, list[str]]:
    """The detail of a mark without what is of the wrong type, and the names of that."""
    fields = KNOWN.get(name)
    if fields is None or detail is None:
        return detail, []
    if not isinstance(detail, dict):
        return None, ["detail"]
    kept, bad = _kept(detail, fields)
    if name == "compiled":
        kept, bad = _kept(detail, dict.fromkeys(detail, Whole))
    if "models" in kept:
        pairs = [_kept(model, MODEL) for model in kept["models"]]
        kept["models"] = [model for model, _ in pairs]
        bad += [f"models.{name}" for _, names in pairs for name in names]
    return kept, bad


def _kept(told: dict[str, Any], fields: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    bad = []
    for name in told.keys() & fields.keys():
        try:
            msgspec.convert(told[name], fields[name])
        except (msgspec.ValidationError, ValueError):
            bad.append(name)
    return {name: value for name, value in told.items() if name not in bad}, sorted(bad)
