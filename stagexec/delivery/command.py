"""What the command line of an encoder process says: its role, its output, where its progress goes."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from stagexec.record import words as names

PROGRAMS = ("ffmpeg", "gifski")
"""A program is watched when its name begins so: imageio calls its own ffmpeg `ffmpeg-linux-x86_64-v7.1`."""

TEXT_OPTIONS = frozenset(("-metadata", "-i", "-attach", "-passlogfile", "-stats_file", "-report"))
"""Options whose value is a path or a text of the user's."""

RAW_FORMATS = frozenset(
    ("rawvideo", "image2pipe", "s16le", "f32le", "s32le", "u8", "wav", "ffmetadata", "md5", "framecrc")
)
"""Formats in which a file is read through a pipe: a process that writes one to its stdout only decodes."""

FLAGS = frozenset(
    (
        "-y", "-n", "-hide_banner", "-nostdin", "-stdin", "-nostats", "-stats", "-an", "-vn", "-sn", "-dn",
        "-re", "-shortest", "-report", "-copyts", "-start_at_zero", "-noautorotate", "-ignore_unknown",
    )
)  # fmt: skip
"""Options of ffmpeg without a value; ffmpeg-python puts them behind the output."""

PIPES = re.compile(r"-|pipe:\d*")
FILE_NAME = re.compile(r"\.[A-Za-z]\w{1,5}$")
"""The value of an option that is not known here to have one can stand where an output does."""
NULLS = frozenset(("/dev/null", "NUL", "nul"))
PLAIN_TOKEN = re.compile(r"[A-Za-z0-9_.:,=+-]{1,64}")


class Command(NamedTuple):
    """`role` is encode, decode, analyse (it writes nowhere) or query (no input or no output at all); other
    where the program is no encoder.

    `part` is mux when the video is only copied. `target` is the output's name, for comparison within the
    process and never recorded. `progress` is stdout, stderr, a path, or None. `template` is the SHA-256 of
    the command without paths and texts.
    """

    program: str
    role: str
    part: str
    target: str | None
    progress: str | None
    template: str
    words: tuple[str, ...]
    targets: tuple[str, ...] = ()
    """All outputs, `target` the last of them."""


def read(args: Any, executable: Any = None, shell: bool = False) -> Command | None:
    """What `subprocess.Popen(args, executable=…, shell=…)` would start; None when it is no encoder."""
    words = [] if isinstance(args, Iterator) else _words(args)  # it could be read once: it is the caller's
    if not words:
        return None
    program = _stem(words[0] if shell or executable is None else os.fsdecode(executable))
    if not program.startswith(PROGRAMS):
        return None
    outputs = _outputs(words, program)
    return Command(
        "ffmpeg" if program.startswith("ffmpeg") else "gifski",
        _role(words, program),
        _part(words),
        _target(words, program),
        _progress(words),
        template_of(words),
        tuple(words),
        tuple(one for one in outputs[:-1] if FILE_NAME.search(one)) + tuple(outputs[-1:]),
    )


def other(args: Any, executable: Any = None, shell: bool = False) -> Command | None:
    """The same of a program that is no encoder; None when it cannot be told which it is."""
    words = [] if isinstance(args, Iterator) else _words(args)
    if not words:
        return None
    name = names.program(_stem(words[0] if shell or executable is None else os.fsdecode(executable)))
    return Command(name, "other", "other", None, None, template_of(words), tuple(words))


def _words(args: Any) -> list[str]:
    if isinstance(args, (bytes, str, os.PathLike)):
        text = os.fsdecode(args)
        try:
            return shlex.split(text, posix=os.name != "nt")
        except ValueError:  # an open quote: the shell will complain itself
            return text.split()
    return [os.fsdecode(word) if isinstance(word, (bytes, os.PathLike)) else str(word) for word in args]


def _stem(word: str) -> str:
    word = word.strip('"')
    name = (PureWindowsPath(word) if "\\" in word else PurePosixPath(word)).name.lower()
    return name.removesuffix(".exe")


def _value(words: Sequence[str], *options: str) -> str | None:
    """The value of the last of `options` that is given."""
    for at in range(len(words) - 2, 0, -1):
        if words[at] in options:
            return words[at + 1]
    return None


def _target(words: Sequence[str], program: str) -> str | None:
    return next(reversed(_outputs(words, program)), None)


def _outputs(words: Sequence[str], program: str) -> list[str]:
    if program.startswith("gifski"):
        named = _value(words, "-o", "--output")
        return [] if named is None else [named]
    found, at = [], 1
    while at < len(words):
        word = words[at]
        if word != "-" and word.startswith("-"):
            at += 1 if word in FLAGS else 2
            continue
        found.append(word)
        at += 1
    return found


def _role(words: Sequence[str], program: str) -> str:
    if program.startswith("gifski"):
        return "encode" if _target(words, program) else "query"
    target = _target(words, program)
    if "-i" not in words or target is None:
        return "query"
    form = _value(words, "-f")
    if target in NULLS or form == "null":
        return "analyse"
    return "decode" if PIPES.fullmatch(target) and form in RAW_FORMATS else "encode"


def _part(words: Sequence[str]) -> str:
    copies = _value(words, "-c", "-codec", "-c:v", "-codec:v", "-vcodec")
    return "mux" if copies == "copy" else "encode"


def _progress(words: Sequence[str]) -> str | None:
    where = _value(words, "-progress")
    if where is None:
        return None
    if where in ("-", "pipe:", "pipe:1"):
        return "stdout"
    return "stderr" if where == "pipe:2" else where.removeprefix("file:")


def template_of(words: Sequence[str]) -> str:
    """SHA-256 (hex) of a command with its paths and texts left out: equal for equal settings."""
    kept = [_stem(words[0])]
    target = _target(words, kept[0])
    for at in range(1, len(words)):
        word, before = words[at], words[at - 1]
        if before in TEXT_OPTIONS or word == target:
            kept.append("<name>")
        else:
            kept.append(word if PLAIN_TOKEN.fullmatch(word) else "<text>")
    return hashlib.sha256("\0".join(kept).encode("utf-8", "surrogateescape")).hexdigest()
