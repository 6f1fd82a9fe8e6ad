"""Image, video and audio files opened with the libraries that the host itself uses, imported late.

Each probe answers `(state, reason, facts)`: state is verified, corrupt or unverified. Nothing global
of Pillow or FFmpeg is changed.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

from stagexec.delivery import pulse

Probe = tuple[str, "str | None", "dict[str, Any]"]

OPTIONAL_IMAGES = {".webp": "webp", ".avif": "avif"}
"""Image suffixes that Pillow can read only when it was built so, and the name of that feature."""

SELF_ENDING = frozenset(("PNG", "JPEG", "MPO", "GIF", "WEBP", "AVIF"))
"""Pillow's names of the formats whose end `structure` finds by itself."""

DAMAGE = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, struct.error, zlib.error
)  # fmt: skip
"""What Pillow's readers raise when they are fed damaged data."""

DEMUXERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flac,mp3,ogg,wav,w64"
"""What may be opened. FFmpeg picks by content, and a playlist under a video's name would fetch URLs."""

DECODER_S = 50.0
"""FFmpeg itself ends what takes it longer, which spares the thread; less than hands.SILENCE_S."""

SHORT_SHARE = 0.05
SHORT_STEPS = 3
"""A container may declare this share of its duration, or this many of its longest packets, too much."""


def image(path: Path) -> Probe:
    """Decode every frame. Facts: format, width, height, mode, frames. Raises OSError of the file system."""
    try:
        from PIL import Image, ImageFile, features
    except ImportError:
        return "unverified", "Pillow is not installed", {}
    feature = OPTIONAL_IMAGES.get(path.suffix.lower())
    if feature and not features.check(feature):
        return "unverified", f"this Pillow cannot read {feature}", {}
    facts: dict[str, Any] = {}
    try:
        with Image.open(path) as opened:
            facts = {"format": opened.format, "width": opened.width, "height": opened.height}
            facts |= {"mode": opened.mode, "frames": _decode_frames(opened)}
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        return "unverified", f"larger than Pillow's pixel limit: {error}", facts
    except DAMAGE as error:
        return _image_fault(error, facts)
    if ImageFile.LOAD_TRUNCATED_IMAGES and facts["format"] not in SELF_ENDING:
        return "unverified", "Pillow is set to accept truncated images in this process", facts
    return "verified", None, facts


def _decode_frames(opened: Any) -> int:
    frames = int(getattr(opened, "n_frames", 1))
    for frame in range(frames):
        opened.seek(frame)
        opened.load()
        pulse.beat()
    return frames


def _image_fault(error: Exception, facts: dict[str, Any]) -> Probe:
    if isinstance(error, OSError) and error.errno is not None:
        raise error
    # Pillow refuses large metadata with a plain ValueError; the pixels may be perfect.
    if isinstance(error, ValueError) and "text chunk" in str(error).lower().replace("max_text_", "text "):
        return "unverified", f"more metadata than Pillow reads: {error}", facts
    return "corrupt", f"does not decode: {error or type(error).__name__}", facts


def frames_of(kind: str, facts: dict[str, Any]) -> int | None:
    """How many pictures a checked file holds, by the facts of its probe; None where that is not known."""
    if kind == "image":
        frames: int | None = facts.get("frames")
        return frames
    if kind != "video":
        return None
    counts = [one["packets"] for one in facts.get("streams", ()) if one["type"] == "video"]
    return counts[0] if counts else None


def container(path: Path) -> Probe:
    """Open a video or audio file and count its packets; nothing is decoded. Raises OSError.

    Facts: container, packets, duration_ns (null when the container gives none), streams (a list of
    {type, codec, packets}); of the first video stream, else the first audio one: codec, and width
    and height. Damage inside a packet is not seen, except in the last one of FLAC, where it is the
    only sign of a file that was cut there.
    """
    try:
        import av
    except ImportError:
        return "unverified", "PyAV is not installed", {}
    options = {"protocol_whitelist": "file", "format_whitelist": DEMUXERS}
    try:
        patience = {"timeout": (DECODER_S, DECODER_S)}  # of opening it, and of each packet
        with av.open(str(path), options=options, metadata_errors="ignore", **patience) as opened:
            counts, tally = _demux(opened)
            return _judge(opened, counts, tally, path)
    except av.error.ExitError:
        return "unverified", f"PyAV did not come to an end with it within {DECODER_S:g} s", {}
    except av.error.FFmpegError as error:
        if isinstance(error, OSError) and not isinstance(error, ValueError):
            raise
        return "corrupt", f"does not open or read: {error.strerror or error}", {}


class _Tally:
    """What the packets of a container say in all: corrupt ones, last end and longest step in seconds."""

    def __init__(self) -> None:
        self.corrupt = 0
        self.first = float("inf")
        self.end = 0.0
        self.step = 0.0
        self.last: Any = None

    def add(self, packet: Any) -> None:
        self.corrupt += bool(packet.is_corrupt)
        self.last = packet
        start = packet.pts if packet.pts is not None else packet.dts
        if start is None or packet.time_base is None:
            return
        duration = float((packet.duration or 0) * packet.time_base)
        self.first = min(self.first, float(start * packet.time_base))
        self.end = max(self.end, float(start * packet.time_base) + duration)
        self.step = max(self.step, duration)


def _demux(opened: Any) -> tuple[dict[int, int], _Tally]:
    counts = {stream.index: 0 for stream in opened.streams}
    tally = _Tally()
    for packet in opened.demux():
        pulse.beat()
        if packet.size:  # the empty packet at the end of each stream only flushes decoders
            counts[packet.stream.index] += 1
            tally.add(packet)
    return counts, tally


def _judge(opened: Any, counts: dict[int, int], tally: _Tally, path: Path) -> Probe:
    facts = _facts(opened, counts)
    wanted = [stream for stream in opened.streams if stream.type in ("video", "audio")]
    if not wanted:
        return "corrupt", "holds no video or audio stream", facts
    for stream in wanted:
        if not counts[stream.index]:
            return "corrupt", f"its {stream.type} stream {stream.index} has no packet", facts
    if facts["container"] == "flac" and not _decodes(tally.last):
        return "corrupt", "its last frame is incomplete", facts
    if tally.corrupt:
        return "corrupt", f"{tally.corrupt} of its packets are incomplete", facts
    if facts["duration_ns"] and _declares_duration(opened, path):
        missing = facts["duration_ns"] / 1e9 - (tally.end - min(tally.first, tally.end))
        if missing > max(SHORT_SHARE * facts["duration_ns"] / 1e9, SHORT_STEPS * tally.step):
            return "corrupt", f"its packets end {missing:.3f} s before the duration it declares", facts
    return "verified", None, facts


def _decodes(packet: Any) -> bool:
    import av

    context = packet.stream.codec_context
    context.options = {"err_detect": "crccheck+explode"}
    try:
        return bool(context.decode(packet))
    except av.error.FFmpegError:
        return False


def _facts(opened: Any, counts: dict[int, int]) -> dict[str, Any]:
    duration = opened.duration  # microseconds
    facts: dict[str, Any] = {
        "container": opened.format.name,
        "packets": sum(counts.values()),
        "duration_ns": None if duration is None else int(duration) * 1000,
        "streams": [
            {"type": stream.type, "codec": _codec(stream), "packets": counts[stream.index]}
            for stream in opened.streams
        ],
    }
    for kind in ("video", "audio"):
        for stream in opened.streams:
            if stream.type == kind and "codec" not in facts:
                facts["codec"] = _codec(stream)
                if kind == "video":
                    facts |= {"width": stream.width, "height": stream.height}
    return facts


def _codec(stream: Any) -> str | None:
    context = getattr(stream, "codec_context", None)
    return context.name if context is not None else None


def _declares_duration(opened: Any, path: Path) -> bool:
    """False where the duration is only FFmpeg's guess from size and bit rate: MP3 without a Xing header."""
    if opened.format.name != "mp3":
        return True
    with path.open("rb") as file:
        head = file.read(1 << 16)
    return any(tag in head for tag in (b"Xing", b"Info", b"VBRI"))
