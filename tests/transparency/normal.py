"""What must differ between two servers, taken out: clocks, folders, addresses, and frames of executor code.

Nothing else is touched: types, values, key order and list order stay as the server gave them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

TIMES = ("timestamp", "create_time", "execution_start_time", "execution_end_time")
"""Wall clock milliseconds, by key."""

OWN_MESSAGES = "stagexec."
"""Prefix of the message types that only we send; the design allows them."""

HISTORY_ENTRY = {"prompt", "outputs", "status"}
OWN_KEY = "stagexec"
"""The key that we alone add to a history entry; the design allows it."""

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
_TEMPORARY = re.compile(r"_temp_[a-z]{5}_")
"""PreviewImage names its files with five letters from Python's unseeded `random`."""
_FRAME_FILE = re.compile(r'File "([^"]+)", line \d+')
_LINE = re.compile(r'", line \d+')

EXECUTOR_CODE = ("/execution.py", "/stagexec/", "/wrapt/", "/asyncio/")
"""Endings and folders of files whose frames belong to the machinery that calls a node."""


class Normaliser:
    """Knows the names of one server's folders. `folders` maps a path to the word that stands for it."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = sorted(folders.items(), key=lambda item: -len(item[0]))

    def __call__(self, value: Any, key: str | None = None) -> Any:
        """`value` as JSON, comparable; `key` is the name it was found under."""
        if key in TIMES and isinstance(value, int):
            return "<time>"
        if key == "traceback" and isinstance(value, list):
            return [self.text(_LINE.sub('", line N', frame)) for frame in value if not is_executor(frame)]
        if isinstance(value, dict):
            if value.keys() >= HISTORY_ENTRY:
                value = {name: item for name, item in value.items() if name != OWN_KEY}
            return {self.text(str(name)): self(item, name) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self(item) for item in value]
        if isinstance(value, bytes):
            return {"bytes": len(value), "head": value[:8].hex(), "sha256": hashlib.sha256(value).hexdigest()}
        return self.text(value) if isinstance(value, str) else value

    def text(self, value: str) -> str:
        """A text without this server's folders, memory addresses and random temporary names."""
        for folder, word in self._folders:
            value = value.replace(folder, word)
        return _TEMPORARY.sub("_temp_<random>_", _ADDRESS.sub("<address>", value))


def is_executor(frame: str) -> bool:
    """Is this formatted traceback frame one of the host's or our machinery round a node?"""
    found = _FRAME_FILE.search(frame)
    return bool(found) and any(code in found.group(1).replace("\\", "/") for code in EXECUTOR_CODE)
