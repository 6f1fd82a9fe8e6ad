"""Any value as the journal can hold it."""

from __future__ import annotations

from typing import Any


def plain(value: Any, depth: int = 20) -> Any:
    """`value` as JSON can hold it: no halves of characters, and type names for what is no plain data."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if depth and isinstance(value, dict):
        return {plain(str(key)): plain(one, depth - 1) for key, one in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [plain(one, depth - 1) for one in value]
    return f"<{type(value).__name__}>"
