"""Content hashes of model files, off the run's path, kept in the ledger by path, size, mtime and inode."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from stagexec.record.fingerprint import digest

CHUNK = 8 * 1024**2
PAUSE_S = 0.05
"""Between two chunks while a run is in execution: the disk and the cores are the run's."""

MOST_HEADER = 100 * 1024**2
"""The format's own limit for a safetensors header."""


DTYPE = re.compile(r"(?:BOOL|[UIFBC]F?\d{1,2}(?:_E\dM\d(?:FNU?Z?)?)?)")


class Known(msgspec.Struct):
    """One line of the file of hashes: which file, and what is in it."""

    path: str
    """A digest of the path: a model can have any name."""
    size: int
    mtime_ns: int
    inode: int
    sha256: str
    dtypes: dict[str, int] | None = None
    """Stored dtype -> bytes of tensors, from a safetensors header; null for other files."""


class Hashes:
    """The hashes of one ledger. For one thread; several processes may append to one file."""

    def __init__(self, folder: Path, busy: Callable[[], bool]) -> None:
        self.file = folder / "hashes.jsonl"
        self.busy = busy
        self._known: dict[str, Known] = {}
        self._read()

    def _read(self) -> None:
        try:
            lines = self.file.read_bytes().splitlines()
        except OSError:
            return
        for line in lines:
            try:
                one = msgspec.json.decode(line, type=Known)
            except msgspec.DecodeError:
                continue  # a torn line: that file is hashed again
            self._known[one.path] = one

    def of(self, path: str, compute: bool = True) -> Known | None:
        """The hash of a file's content. One that is not known is computed, or None. Raises OSError."""
        stat = os.stat(path)
        place = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        name = digest(path)
        known = self._known.get(name) or self._known.get(path)  # older ledgers have the paths themselves
        if known is not None and (known.size, known.mtime_ns, known.inode) == place:
            return known
        if not compute:
            return None
        new = Known(name, *place, self._hash(path), stored_dtypes(path))
        self._known[name] = new
        self._keep(new)
        return new

    def _hash(self, path: str) -> str:
        found = hashlib.sha256()
        with open(path, "rb", buffering=0) as stream:
            while chunk := stream.read(CHUNK):
                found.update(chunk)
                if self.busy():
                    time.sleep(PAUSE_S)
        return found.hexdigest()

    def _keep(self, new: Known) -> None:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("ab") as out:
                out.write(msgspec.json.encode(new) + b"\n")
        except OSError:
            return  # the hash is right all the same; the next process computes it again


def stored_dtypes(path: str) -> dict[str, int] | None:
    """dtype -> bytes of a safetensors file, from its header alone; None for other files."""
    if not path.endswith((".safetensors", ".sft")):
        return None
    try:
        with open(path, "rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            if size > MOST_HEADER:
                return None
            header: dict[str, Any] = json.loads(stream.read(size))
    except (OSError, ValueError, struct.error):
        return None
    count: Counter[str] = Counter()
    for name, tensor in header.items():
        if name != "__metadata__" and isinstance(tensor, dict):
            begin, end = tensor.get("data_offsets", (0, 0))
            stored = str(tensor.get("dtype"))
            count[stored if DTYPE.fullmatch(stored) else "other"] += end - begin
    return dict(count)
