"""The ffmpeg program: where it is, and the command line of an encode, built with ffmpeg-python."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagexec.delivery.errors import EncodeFailed

BINARY_VARIABLE = "STAGEXEC_FFMPEG"
"""Environment variable that names the ffmpeg to use."""

CONTAINERS = {"mp4": "mp4", "mkv": "matroska", "webm": "webm", "mov": "mov", "gif": "gif"}
"""Suffix of a container -> ffmpeg's name for its muxer."""

CODECS = (
    "libx264", "libx265", "libvpx-vp9", "libsvtav1", "libaom-av1", "prores_ks", "ffv1", "mpeg4", "gif",
    "h264_nvenc", "hevc_nvenc", "av1_nvenc", "h264_qsv", "hevc_qsv", "av1_qsv",
    "h264_vaapi", "hevc_vaapi", "av1_vaapi", "h264_videotoolbox", "hevc_videotoolbox",
)  # fmt: skip

PIXEL_FORMATS = (
    "yuv420p", "yuv422p", "yuv444p", "yuva420p", "yuv420p10le", "yuv422p10le", "yuv444p10le", "yuva444p10le",
    "gbrp", "rgb24", "rgba", "bgr0", "nv12", "p010le", "pal8",
)  # fmt: skip

HWACCELS = ("none", "cuda", "vaapi", "qsv", "videotoolbox")
UPLOADS = ("vaapi", "qsv")
"""Devices whose encoders take frames only from their own memory."""

AUDIO_CODECS = {"mp4": "aac", "mov": "aac", "mkv": "aac", "webm": "libopus"}

CRF = ("libx264", "libx265", "libvpx-vp9", "libsvtav1", "libaom-av1")
OWN_RATE = ("libvpx-vp9", "libaom-av1")
"""Encoders that take a quality as the rate only when the bit rate is set to nothing."""

DEEP = ("10", "12", "16", "p010")


@dataclass(frozen=True)
class Settings:
    """How to encode. `quality` below 0 and empty texts leave the choice to the encoder."""

    fps: float = 24.0
    codec: str = "libx264"
    preset: str = ""
    quality: int = -1
    pixel_format: str = "yuv420p"
    filters: str = ""
    container: str = "mp4"
    threads: int = 0
    hwaccel: str = "none"

    @property
    def deep(self) -> bool:
        """Does the pixel format hold more than 8 bits?"""
        return any(word in self.pixel_format for word in DEEP)


@dataclass(frozen=True)
class Frames:
    """Raw frames as they come: ffmpeg's name of their layout, and their size in pixels."""

    layout: str
    width: int
    height: int


@dataclass(frozen=True)
class Sound:
    """Raw 32-bit float samples in a file, interleaved."""

    path: Path
    rate: int
    channels: int


def find() -> str:
    """$STAGEXEC_FFMPEG, else the system's ffmpeg, else imageio-ffmpeg's. EncodeFailed when there is none."""
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise EncodeFailed("spawn", f"${BINARY_VARIABLE} names {named!r}, which is no program")
        return found
    system = shutil.which("ffmpeg")
    if system is not None:
        return system
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):
        raise EncodeFailed(
            "spawn", "ffmpeg is not installed: install it, or `pip install imageio-ffmpeg`"
        ) from None


def command(binary: str, settings: Settings, frames: Frames, sound: Sound | None, target: Path) -> list[str]:
    """The arguments of one encode: frames on stdin, progress on stdout, the file at `target`."""
    import ffmpeg

    video = ffmpeg.input(
        "pipe:0",
        format="rawvideo",
        pix_fmt=frames.layout,
        s=f"{frames.width}x{frames.height}",
        framerate=f"{settings.fps:.6g}",
    )
    streams = [video]
    if sound is not None:
        streams.append(ffmpeg.input(str(sound.path), format="f32le", ar=sound.rate, ac=sound.channels))
    options = output_options(settings, frames, sound is not None)
    made = ffmpeg.output(*streams, str(target), **options)
    made = made.global_args("-hide_banner", "-nostdin", "-nostats", "-loglevel", "warning")
    made = made.global_args("-progress", "pipe:1", *device_options(settings))
    words: list[str] = ffmpeg.compile(made, cmd=binary, overwrite_output=True)
    return words


def output_options(settings: Settings, frames: Frames, has_sound: bool) -> dict[str, Any]:
    """The output's options by name, in order."""
    options: dict[str, Any] = {"format": CONTAINERS[settings.container], "c:v": settings.codec}
    options |= rate_options(settings)
    if settings.hwaccel not in UPLOADS:
        options["pix_fmt"] = settings.pixel_format
    if chain := filter_chain(settings, frames):
        options["vf"] = chain
    if settings.threads:
        options["threads"] = settings.threads
    if settings.container in ("mp4", "mov"):
        options["movflags"] = "+faststart"
    if has_sound and settings.container in AUDIO_CODECS:
        options["c:a"] = AUDIO_CODECS[settings.container]
    return options


def rate_options(settings: Settings) -> dict[str, Any]:
    """Preset and quality, by the names that the encoder has for them."""
    codec, preset, quality = settings.codec, settings.preset, settings.quality
    options: dict[str, Any] = {}
    if preset:
        name = {"libvpx-vp9": "deadline", "libaom-av1": "cpu-used", "prores_ks": "profile:v"}.get(
            codec, "preset"
        )
        options[name] = preset
    if quality >= 0:
        if codec in CRF:
            options["crf"] = quality
        elif codec.endswith("_nvenc"):
            options["cq"] = quality
        elif codec.endswith(("_qsv", "_vaapi")):
            options["global_quality"] = quality
        else:
            options["q:v"] = quality
        if codec in OWN_RATE:
            options["b:v"] = 0
    return options


def filter_chain(settings: Settings, frames: Frames) -> str:
    """The user's filters, then what the pixel format and the device need."""
    chain = [settings.filters] if settings.filters.strip() else []
    halved = settings.pixel_format.startswith(("yuv420", "yuva420", "nv12", "p010", "yuv422"))
    if halved and not chain and (frames.width % 2 or frames.height % 2):
        chain.append("pad=ceil(iw/2)*2:ceil(ih/2)*2")
    if settings.hwaccel in UPLOADS:
        chain += [f"format={'p010le' if settings.deep else 'nv12'}", "hwupload"]
    return ",".join(chain)


def device_options(settings: Settings) -> list[str]:
    """The device that an encoder works on."""
    if settings.hwaccel == "none":
        return []
    made = ["-init_hw_device", f"{settings.hwaccel}=stx"]
    return [*made, "-filter_hw_device", "stx"] if settings.hwaccel in UPLOADS else made
