"""What an encoder process says: its last lines without paths and texts, and how far it has come."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from stagexec.delivery import vocabulary

TAIL_BYTES = 1 << 14
"""How much of what a process says is kept, in bytes, from its end."""

TAIL_LINES = 12

METADATA = re.compile(r"^\s{2,}[\w.-]{1,40}\s*: ")
"""A line of a file's metadata, as ffmpeg lists it: it can hold a prompt."""

QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
PATHLIKE = re.compile(r"[^\s'\"]*[\\/][^\s'\"]*")
STAND_INS = ("<name>", "<path>", "<text>")
COMPONENT = re.compile(r"@ 0x[0-9a-f]+")
PROGRESS = re.compile(r"(?:^|\s)(frame|fps|total_size|out_time_us|speed)=\s*([0-9.]+x?)", re.MULTILINE)

DISK_FULL = (
    "No space left on device",
    "File too large",
    "Disk quota exceeded",
    "not enough space on the disk",
)

FILE_TOO_LARGE = -int(getattr(signal, "SIGXFSZ", 0)) or None
"""Exit code of a process that outgrew the limit on file sizes; None where there is no such limit."""

REFUSED = re.compile(
    r"Unknown encoder|Unrecognized option|Option not found|Error opening|Error parsing|Invalid argument"
    r"|Unable to (?:find|choose)|Could not (?:open|write header)|Encoder not found"
    r"|No such file|Permission denied|Unknown pixel format|does not support|not divisible by|Error splitting"
    r"|Error applying|Unable to parse|Error initializing|No such filter|Read-only file system"
    r"|No device available|Cannot load",
    re.IGNORECASE,
)
"""What ffmpeg says when it does not get as far as its first frame."""


def lines_of(data: bytes | str | None, names: Iterable[str] = (), keep_text: bool = False) -> list[str]:
    """The last lines that say something. Unless `keep_text`, without metadata and paths, and of all the rest
    only words that are the program's own.

    `names` are the command's own words, for the file names without a slash among them.
    """
    if not data:
        return []
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    found = []
    for line in re.split(r"[\r\n]+", text):
        if not line.strip() or PROGRESS.match(line) or line.startswith(("progress=", "out_time", "bitrate=")):
            continue
        if keep_text:
            found.append(line.strip()[:400])
        elif not METADATA.match(line):
            found.append(_without_text(line.strip(), names)[:400])
    return found[-TAIL_LINES:]


def _without_text(line: str, names: Iterable[str]) -> str:
    for name in names:
        line = line.replace(name, "<name>")
    line = COMPONENT.sub("", line)
    line = QUOTED.sub(lambda found: found[0] if _is_word(found[0]) else "'<text>'", line)
    words = [_kept(word) for word in PATHLIKE.sub(_path, line).replace(" ]", "]").split()]
    return " ".join(word for at, word in enumerate(words) if word != "<text>" or words[at - 1 : at] != [word])


def _path(found: re.Match[str]) -> str:
    # ffmpeg names its streams `vost#0:0/libx264`.
    return found[0] if found[0][0] not in "/\\" and vocabulary.is_said(found[0]) else "<path>"


def _kept(word: str) -> str:
    bare = word.strip(".,:;!()[]'\"")
    return word if bare in STAND_INS or vocabulary.is_said(word) else "<text>"


def _is_word(quoted: str) -> bool:
    # The name of an encoder or an option is what the error is about; any other word can be anybody's.
    return vocabulary.is_said(quoted[1:-1]) and " " not in quoted


def file_names(words: Iterable[str]) -> list[str]:
    """Those words of a command that name files or carry texts, longest first."""
    named = [w for w in words if not w.startswith("-") and (re.search(r"[\\/\s]|\.\w{1,5}$", w))]
    return sorted((w for w in set(named) if len(w) > 2), key=len, reverse=True)


def progress_of(data: bytes | str | None) -> dict[str, int | str]:
    """The last {frames, speed, bytes} that `-progress` (or ffmpeg's status line) told; empty when none."""
    if not data:
        return {}
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    last = {name: value for name, value in PROGRESS.findall(text) if value}
    found: dict[str, int | str] = {}
    if last.get("frame", "").isdigit():
        found["frames"] = int(last["frame"])
    if "speed" in last:
        found["speed"] = last["speed"]
    if last.get("total_size", "").isdigit():
        found["bytes"] = int(last["total_size"])
    return found


def is_disk_full(text: str) -> bool:
    """Does a process say that there was no room for its output?"""
    return any(words in text for words in DISK_FULL)


def is_refusal(text: str) -> bool:
    """Does a process say that it could not begin?"""
    return REFUSED.search(text) is not None
