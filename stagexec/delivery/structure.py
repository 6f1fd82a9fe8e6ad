"""Where a media file says that it ends, and whether it does: read from the bytes, with no decoder.

A decoder cannot be trusted with this alone: Pillow has a process-wide switch that makes it accept
truncated images, and other packs turn it on; a demuxer that meets the end of a truncated file just
stops.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from stagexec.delivery import pulse

CHUNK = 1 << 20
TAIL = 1 << 16
UNKNOWN_RIFF_SIZES = (0, 0xFFFFFFFF)
EBML_SEGMENT = 0x18538067


class Shortfall(NamedTuple):
    """Why a file is not whole: `state` is corrupt, or unverified where the file does not say its end."""

    state: str
    reason: str


def shortfall(path: Path) -> Shortfall | None:
    """Why the file's own structure says it is not whole; None when it is, or when it does not say.

    The kind of file is taken from its first bytes, not from its name. Raises OSError.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(16)
        for matches, walk in WALKS:
            if matches(head):
                file.seek(0)
                return walk(file, size)
    return None


def _corrupt(reason: str) -> Shortfall:
    return Shortfall("corrupt", reason)


def _png(file: BinaryIO, size: int) -> Shortfall | None:
    file.seek(8)
    while True:
        pulse.beat()
        header = file.read(8)
        if len(header) < 8:
            return _corrupt("PNG ends before its IEND chunk")
        length, kind = struct.unpack(">I4s", header)
        if length > size - file.tell():
            return _corrupt(f"PNG ends inside a {_printable(kind)} chunk")
        crc = zlib.crc32(kind)
        while length:
            pulse.beat()
            piece = file.read(min(length, CHUNK))
            if not piece:
                return _corrupt(f"PNG ends inside a {_printable(kind)} chunk")
            crc = zlib.crc32(piece, crc)
            length -= len(piece)
        if file.read(4) != struct.pack(">I", crc):
            return _corrupt(f"PNG has a wrong checksum in a {_printable(kind)} chunk")
        if kind == b"IEND":
            return None


def _printable(kind: bytes) -> str:
    return kind.decode("ascii", "backslashreplace")


def _tail(file: BinaryIO, size: int) -> bytes:
    file.seek(max(size - TAIL, 0))
    return file.read(TAIL)


def _jpeg(file: BinaryIO, size: int) -> Shortfall | None:
    # Entropy-coded data escapes every 0xFF, so the marker cannot appear inside a scan.
    return None if b"\xff\xd9" in _tail(file, size) else _corrupt("JPEG ends before its end marker")


def _gif(file: BinaryIO, size: int) -> Shortfall | None:
    return None if _tail(file, size).rstrip(b"\0").endswith(b";") else _corrupt("GIF ends before its trailer")


def _riff(file: BinaryIO, size: int) -> Shortfall | None:
    head = file.read(12)
    if len(head) < 12:
        return _corrupt("RIFF file ends inside its header")
    declared = int.from_bytes(head[4:8], "little")
    kind = _printable(head[8:12]).strip()
    if declared in UNKNOWN_RIFF_SIZES and kind != "WEBP":
        return Shortfall("unverified", f"{kind} was never finished: its header gives no size")
    if declared + 8 > size:
        return _corrupt(f"{kind} declares {declared + 8} bytes and holds {size}")
    return None


def _bmff(file: BinaryIO, size: int) -> Shortfall | None:
    at = 0
    while at < size:
        pulse.beat()
        file.seek(at)
        header = file.read(16)
        if len(header) < 8:
            return _corrupt("MP4 ends inside a box header")
        length, kind = struct.unpack(">I4s", header[:8])
        if length == 1 and len(header) == 16:
            length = int.from_bytes(header[8:16], "big")
        elif length == 0:
            return None
        if length < 8:
            return _corrupt(f"MP4 has a {_printable(kind)} box of {length} bytes")
        at += length
        if at > size:
            return _corrupt(f"MP4 ends inside its {_printable(kind)} box: {at - size} bytes are missing")
    return None


def _vint(file: BinaryIO, keep_marker: bool) -> tuple[int, bool] | None:
    """An EBML number and whether all its bits are ones (unknown size); None at a bad or short one."""
    first = file.read(1)
    if not first or first == b"\0":
        return None
    length = 9 - first[0].bit_length()
    raw = first + file.read(length - 1)
    if len(raw) < length:
        return None
    value = int.from_bytes(raw, "big")
    bits = (1 << (7 * length)) - 1
    return (value if keep_marker else value & bits), value & bits == bits


def _ebml(file: BinaryIO, size: int) -> Shortfall | None:
    while file.tell() < size:
        pulse.beat()
        identity = _vint(file, keep_marker=True)
        length = _vint(file, keep_marker=False)
        if identity is None or length is None:
            return _corrupt("Matroska ends inside an element header")
        if identity[0] == EBML_SEGMENT and length[1]:
            return Shortfall("unverified", "Matroska was never finished: its segment gives no size")
        end = file.tell() + length[0]
        if end > size:
            return _corrupt(f"Matroska ends inside an element: {end - size} bytes are missing")
        file.seek(end)
    return None


def _ogg(file: BinaryIO, size: int) -> Shortfall | None:
    ended: dict[int, bool] = {}
    at = 0
    while at < size:
        pulse.beat()
        file.seek(at)
        header = file.read(27)
        if len(header) < 27 or header[:4] != b"OggS":
            return _corrupt("Ogg ends inside a page" if ended else "Ogg has no whole page")
        table = file.read(header[26])
        ended[int.from_bytes(header[14:18], "little")] = bool(header[5] & 4)
        at += 27 + header[26] + sum(table)
        if at > size or len(table) < header[26]:
            return _corrupt("Ogg ends inside a page")
    if not all(ended.values()):
        return _corrupt("Ogg has a stream with no last page")
    return None


def _mp3(file: BinaryIO, size: int) -> Shortfall | None:
    """The encoder's own header in the first frame may count the bytes from there on."""
    head = file.read(10)
    start = 0
    if head.startswith(b"ID3") and len(head) == 10:
        start = 10 + sum((byte & 0x7F) << (7 * (3 - at)) for at, byte in enumerate(head[6:]))
    file.seek(start)
    frame = file.read(192)
    for tag in (b"Xing", b"Info"):
        at = frame.find(tag)
        if at < 0 or len(frame) < at + 16:
            continue
        flags, _, declared = struct.unpack(">III", frame[at + 4 : at + 16])
        if flags & 3 == 3 and start + declared > size:
            return _corrupt(f"MP3 declares {start + declared} bytes and holds {size}")
    return None


def _starts(*magics: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(magics)


WALKS: tuple[tuple[Callable[[bytes], bool], Callable[[BinaryIO, int], Shortfall | None]], ...] = (
    (_starts(b"\x89PNG\r\n\x1a\n"), _png),
    (_starts(b"\xff\xd8\xff"), _jpeg),
    (_starts(b"GIF87a", b"GIF89a"), _gif),
    (_starts(b"RIFF"), _riff),
    (_starts(b"\x1aE\xdf\xa3"), _ebml),
    (_starts(b"OggS"), _ogg),
    (_starts(b"ID3", b"\xff\xfb", b"\xff\xfa", b"\xff\xf3", b"\xff\xf2"), _mp3),
    (lambda head: head[4:8] == b"ftyp", _bmff),
)
"""First bytes of a kind of file, and how its end is found."""
