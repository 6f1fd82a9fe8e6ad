"""Texts from anywhere, made safe to be printed: what would steer a terminal is shown instead of obeyed."""

from __future__ import annotations

import logging
import re
from typing import Any

MARKS = "\u200b\u200e\u200f\u061c\u180e\u2028\u2029\u2060\ufeff"
"""Marks of direction and of nothing, and separators of lines. Joiners stay: scripts and emoji need them."""

UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2061-\u206f\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f"
    f"{MARKS}\U0001d173-\U0001d17a\ufffe\uffff]"
)
"""Control characters (C0, DEL, C1), overrides of direction, halves of characters, tags."""

SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(value: Any, keep: str = "") -> str:
    """`value` as text, with the escape of each character of UNSEEN that is not in `keep` in its place."""

    def escape(found: re.Match[str]) -> str:
        char = found[0]
        if char in keep:
            return char
        number = ord(char)
        form = f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
        return SHORT.get(char, form if number < 0x10000 else f"\\U{number:08x}")

    return UNSEEN.sub(escape, str(value))


class Visible(logging.Filter):
    """Of a logger of ours: its messages are one visible line each, whatever text of others is in them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the message; of one that cannot be made its fixed words stay."""
        try:
            record.msg, record.args = visible(record.getMessage(), keep="\t"), ()
        except Exception:  # noqa: BLE001 (a pack's object may raise anything from its __str__)
            record.msg, record.args = f"{visible(record.msg)} (its values cannot be shown)", ()
        return True
