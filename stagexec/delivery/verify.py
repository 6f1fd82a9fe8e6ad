"""Is a delivered file there, whole and readable: one answer per file, never a guess in its favour."""

from __future__ import annotations

import codecs
import errno
import hashlib
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.parsers import expat

import msgspec

from stagexec.delivery import media, pulse
from stagexec.delivery.structure import shortfall

DEFAULT_BUDGET_BYTES = 4 << 30
"""Files above this are hashed and not decoded, so one of them cannot hold up the checks behind it."""

HOLLOW_SHARE = 0.01
"""Of a larger file, less than that on the disk is no picture or film: reading its zeros would take hours."""

TEXT_BUDGET_BYTES = 64 << 20
"""JSON and SVG above this are not parsed: parsing needs several times the size in memory."""

RACY_NS = 2_000_000_000
"""An answer is kept only for files that old: the coarsest file systems (FAT) stamp times to 2 s, so a
younger file could be written again and keep its size and stamp."""

CHANGED = "it changed while it was read"

CHUNK = 1 << 20

IMAGES = frozenset((".png", ".apng", ".jpg", ".jpeg", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff"))
VIDEOS = frozenset((".mp4", ".m4v", ".webm", ".mkv", ".mov", ".avi"))
AUDIOS = frozenset((".flac", ".mp3", ".opus", ".ogg", ".oga", ".wav", ".m4a"))
TENSORS = frozenset((".safetensors", ".sft", ".latent"))

SAFETENSORS_HEADER_LIMIT = 100_000_000
"""The format's own limit on its header, in bytes."""


class Check(msgspec.Struct, frozen=True):
    """What is known of one file.

    `state` is verified, unverified, missing or corrupt; `reason` is null exactly when it is verified;
    `media` is image, video, audio or other, from the name; `bytes` is null when the file is missing;
    `sha256` is hex, null when the file was not read to its end; `facts` depends on the kind of file.
    """

    state: str
    reason: str | None
    media: str
    bytes: int | None
    sha256: str | None
    facts: dict[str, Any]


def media_of(path: Path) -> str:
    """image, video, audio or other, from the name."""
    suffix = path.suffix.lower()
    for kind, suffixes in (("image", IMAGES), ("video", VIDEOS), ("audio", AUDIOS)):
        if suffix in suffixes:
            return kind
    return "other"


def verify(path: Path, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> Check:
    """Check one file. Never raises for anything the file is or does; the reason says what went wrong."""
    kind = media_of(path)
    try:
        before = _stamp(path)
    except (OSError, ValueError) as error:
        return _unreadable(kind, error)
    size = before.st_size
    if not stat.S_ISREG(before.st_mode):
        what = "a folder" if stat.S_ISDIR(before.st_mode) else "not a regular file"
        return Check("unverified", what, kind, None, None, {})
    if size > budget_bytes and _is_hollow(before):
        return Check(
            "unverified",
            "larger than the verification budget, and nearly all of it a hole",
            kind,
            size,
            None,
            {},
        )
    pulse.expect(size)
    if size == 0:
        return Check("corrupt", "the file is empty", kind, 0, hashlib.sha256().hexdigest(), {})
    try:
        digest = _sha256(path)
        state, reason, facts = _content(path, size, budget_bytes)
        if _identity(_stamp(path)) != _identity(before):
            return Check("unverified", CHANGED, kind, size, None, {})
    except OSError as error:
        return _unreadable(kind, error)
    return Check(state, reason, kind, size, digest, facts)


class Verifier:
    """`verify` with a bounded memory: a file that has not changed is not read again.

    Thread-safe. `capacity` is in files; the least recently asked for is forgotten first.
    """

    def __init__(self, capacity: int = 4096, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self._capacity = capacity
        self._budget_bytes = budget_bytes
        self._known: OrderedDict[tuple[Any, ...], Check] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, path: Path) -> Check:
        """The check of the file as it is now; see `verify`."""
        try:
            before = _stamp(path)
        except (OSError, ValueError) as error:
            return _unreadable(media_of(path), error)
        key = (str(path), *_identity(before))
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        found = verify(path, self._budget_bytes)
        if found.sha256 is not None and time.time_ns() - before.st_mtime_ns >= RACY_NS:
            self._remember(key, found)
        return found

    def _remember(self, key: tuple[Any, ...], found: Check) -> None:
        with self._lock:
            self._known[key] = found
            while len(self._known) > self._capacity:
                self._known.popitem(last=False)


def _stamp(path: Path) -> os.stat_result:
    return os.stat(path)


def _is_hollow(stamp: os.stat_result) -> bool:
    """Does the disk hold next to nothing of it? Systems that do not say so give no `st_blocks`."""
    blocks = getattr(stamp, "st_blocks", None)
    return blocks is not None and blocks * 512 < stamp.st_size * HOLLOW_SHARE


def _identity(stamp: os.stat_result) -> tuple[int, int, int, int]:
    # The change time sees a rewrite whose modification time was set back.
    return stamp.st_size, stamp.st_mtime_ns, stamp.st_ino, stamp.st_ctime_ns


def _unreadable(kind: str, error: OSError | ValueError) -> Check:
    if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Check("missing", "the file is not there", kind, None, None, {})
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return Check("unverified", f"it could not be read: {text}", kind, None, None, {})


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            pulse.beat()
            digest.update(piece)
    return digest.hexdigest()


def _content(path: Path, size: int, budget_bytes: int) -> media.Probe:
    suffix = path.suffix.lower()
    probe = PROBES.get(suffix)
    if probe is None:
        return "unverified", f"no check for {suffix} files" if suffix else "no check for such files", {}
    if size > budget_bytes:
        return "unverified", "larger than the verification budget", {}
    pulse.decoding(True)
    try:
        return probe(path)
    except MemoryError:
        return "unverified", "not enough memory to decode it", {}
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - a decoder's own fault says nothing of the file
        return "unverified", f"the check itself failed: {type(error).__name__}: {error}", {}
    finally:
        pulse.decoding(False)


def _whole(probe: Callable[[Path], media.Probe]) -> Callable[[Path], media.Probe]:
    """`probe`, asked only about files whose own structure does not say that they are cut short."""

    def check(path: Path) -> media.Probe:
        short = shortfall(path)
        if short is not None and short.state == "corrupt":
            return "corrupt", short.reason, {}
        state, reason, facts = probe(path)
        if short is not None and state == "verified":
            return short.state, short.reason, facts
        return state, reason, facts

    return check


def _text(path: Path) -> media.Probe:
    decoder = codecs.getincrementaldecoder("utf-8")()
    characters = 0
    try:
        with path.open("rb") as file:
            while piece := file.read(CHUNK):
                pulse.beat()
                characters += len(decoder.decode(piece))
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        return "corrupt", f"not UTF-8: {error.reason}", {}
    return "verified", None, {"characters": characters}


def _json(path: Path) -> media.Probe:
    data = _small(path)
    if data is None:
        return "unverified", "larger than the budget for JSON", {}
    try:
        msgspec.json.decode(data.removeprefix(codecs.BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return "corrupt", f"not JSON: {error}", {}
    return "verified", None, {}


def _svg(path: Path) -> media.Probe:
    data = _small(path)
    if data is None:
        return "unverified", "larger than the budget for SVG", {}
    root: list[str] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, _: None if root else root.append(name)
    try:
        for at in range(0, len(data), CHUNK):  # the parser holds the interpreter's lock all the while
            pulse.beat()
            parser.Parse(data[at : at + CHUNK], False)
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        return "corrupt", f"not well-formed XML: {error}", {}
    if root[0].rpartition(":")[2] != "svg":
        return "corrupt", "its root element is not svg", {}
    return "verified", None, {}


def _small(path: Path) -> bytes | None:
    return None if path.stat().st_size > TEXT_BUDGET_BYTES else path.read_bytes()


def _safetensors(path: Path) -> media.Probe:
    """The header is well-formed, and the file is exactly as long as it says; no tensor is read."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, SAFETENSORS_HEADER_LIMIT):
            return "corrupt", "its header is longer than the file", {}
        header = file.read(length)
    try:
        entries = msgspec.json.decode(header, type=dict[str, Any])
        ends = [_tensor_end(entry) for name, entry in entries.items() if name != "__metadata__"]
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        return "corrupt", f"its header is not a safetensors header: {error}", {}
    expected = 8 + length + max(ends, default=0)
    facts = {"tensors": len(ends)}
    if expected != size:
        return "corrupt", f"its header declares {expected} bytes and it holds {size}", facts
    return "verified", None, facts


def _tensor_end(entry: Any) -> int:
    start, end = entry["data_offsets"]
    if not 0 <= start <= end:
        raise ValueError(f"data_offsets {start}, {end}")
    return int(end)


PROBES: dict[str, Callable[[Path], media.Probe]] = {
    **dict.fromkeys(IMAGES, _whole(media.image)),
    **dict.fromkeys(VIDEOS | AUDIOS, _whole(media.container)),
    **dict.fromkeys(TENSORS, _safetensors),
    ".json": _json,
    ".txt": _text,
    ".svg": _svg,
}
"""How the content of each kind of file is checked; what is not here is never verified."""
