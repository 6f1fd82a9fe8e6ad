"""Paths and files that a person names: taken as they are meant, or refused in one line that says why."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEEPEST = 200
"""Nesting that no table, plan or workflow needs; below it, what works with values works by recursion."""

LARGEST = 256 * 1024**2
"""A workflow of more bytes is none."""

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class BadPath(ValueError):
    """A path that cannot be what it is to be; one line."""


class BadText(ValueError):
    """A text that is not what its file is to hold; one line, which does not name the file."""


def place(text: str | os.PathLike[str]) -> Path:
    """The absolute path that `text` names, `~` resolved. BadPath where it can be none; it need not exist."""
    named = os.fspath(text)
    if not named:
        raise BadPath("an empty name is no path")
    if "\0" in named:
        raise BadPath(f"{named!r} has a NUL character in it")
    try:
        path = Path(named).expanduser().absolute()
        os.lstat(path)
    except RuntimeError:
        raise BadPath(f"{named}: there is no user of that name, or no home folder is known") from None
    except UnicodeEncodeError:
        raise BadPath(f"{named!r} cannot be the name of a file here") from None
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        if not Path(named).is_absolute() and not named.startswith("~") and not _here():
            raise BadPath(f"{named}: the folder that this was started in is gone") from None
        return path
    except (OSError, ValueError) as error:
        raise BadPath(f"{shortened(named)}: {said(error)}") from None
    return path


def _here() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def shortened(named: str) -> str:
    """A name that fits into a line."""
    return named if len(named) <= 200 else f"{named[:150]}… ({len(named)} characters)"


def said(error: Exception) -> str:
    """What the system said, without the path, which may be long."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def kind_of(path: Path) -> str | None:
    """What a path is, where it is no plain file: "a folder", "a pipe" …; None for a file. Raises OSError."""
    mode = os.stat(path).st_mode
    return None if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "no file")


def folder(text: str | os.PathLike[str]) -> Path:
    """The folder of that name, which must be there and be read. BadPath."""
    path = place(text)
    try:
        kind = kind_of(path)
        if kind != "a folder":
            raise BadPath(f"{path} is {kind or 'a file'}, not a folder")
        with os.scandir(path):
            return path
    except OSError as error:
        raise BadPath(f"{path}: {said(error)}") from None


def text_of(named: str | os.PathLike[str]) -> str:
    """What a text file holds, without a mark of byte order. BadPath."""
    path = place(named)
    try:
        kind = kind_of(path)  # before it is opened: a pipe would wait for a writer
        if kind is not None:
            raise BadPath(f"{path}: cannot be read: it is {kind}, not a file")
        if path.stat().st_size > LARGEST:
            raise BadPath(f"{path}: cannot be read: it is larger than {LARGEST >> 20} MiB")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BadPath(f"{path}: cannot be read: {said(error)}") from None
    except UnicodeDecodeError as error:
        raise BadPath(f"{path}: cannot be read: it is not UTF-8 (byte {error.start})") from None


def json_of(text: str) -> Any:
    """A JSON text as a value. BadText, also for a key that stands twice in an object."""
    try:
        return _shallow(json.loads(text, object_pairs_hook=_once))
    except RecursionError:
        raise BadText(f"it is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:
        raise BadText(_brief(error)) from None


def toml_of(text: str) -> dict[str, Any]:
    """A TOML text as a value. BadText."""
    try:
        found: dict[str, Any] = _shallow(tomllib.loads(text))
    except RecursionError:
        raise BadText(f"it is nested deeper than {DEEPEST} levels") from None
    except ValueError as error:
        raise BadText(_brief(error)) from None
    return found


def _brief(error: ValueError) -> str:
    told = " ".join(str(error).split())
    if "integer string conversion" in told:
        return "it has a number of too many digits"
    return told if len(told) <= 300 else f"{told[:200]} … {told[-80:]}"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadText(f"the key {shortened(twice)!r} stands twice in one object")
    return found


def _shallow(value: Any) -> Any:
    """`value`, if it is not too deep."""
    level = [value]
    for _ in range(DEEPEST):
        inner = [
            one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))
        ]
        level = [one for values in inner for one in values]
        if not level:
            return value
    raise BadText(f"it is nested deeper than {DEEPEST} levels")


def unkept(path: Path) -> str | None:
    """Why nothing could be written into the folder `path`, which is made; None where it can.

    A disk that is full now is no reason: it may have room again.
    """
    probe = path / f".stagexec-{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
    except FileExistsError:
        return None if probe.exists() else f"{path} is a file, not a folder"
    except NotADirectoryError:
        return f"a part of {path} is a file, not a folder"
    except OSError as error:
        full = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
        return None if error.errno in full else f"{path}: {said(error)}"
    return None
