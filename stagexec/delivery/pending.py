"""Temporary files of our own that may be left behind: written down before they are made, struck out after.

One small JSON file each, in `<ledger>/pending/`. A process that is killed leaves its notes, and the next
start names the files. Nothing is removed unless `--stagexec-clean` asks for it, and then only a file that
a note of ours names and whose own name carries our mark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePath
from typing import TypeVar

import msgspec

from stagexec.delivery.asking import ask
from stagexec.record import paths
from stagexec.record.guard import guarded

log = logging.getLogger("stagexec")

MARK = "stagexec-part"
"""In the name of every temporary file of ours."""

LOOK_S = 5.0
"""How long a start waits for what an earlier process may have left."""
P = TypeVar("P", bound=PurePath)

_mine: set[str] = set()


class Note(msgspec.Struct):
    """A temporary file that was about to be made: absolute `path`, for `target`, by process `pid`."""

    path: str
    target: str | None
    pid: int
    hostname: str
    made_wall_ns: int


class Left(msgspec.Struct):
    """What a process that is gone has left. `bytes` is null when the file is not there any more."""

    note: str
    path: str
    target: str | None
    bytes: int | None


def part_name(final: P) -> P:
    """A new hidden name beside `final`, with our mark, and with its suffix: tools go by that."""
    return final.with_name(f".{final.stem}.{uuid.uuid4().hex[:12]}.{MARK}{final.suffix}")


@contextlib.contextmanager
def noted(path: Path, target: str | None) -> Iterator[None]:
    """Meanwhile a note says that `path` is ours and temporary. A failure to note is no failure to deliver.

    The note stays where the file could not be removed: the next start names it.
    """
    note = _write(path, target)
    try:
        yield
    finally:
        if not os.path.lexists(path):
            _strike(note)


@guarded
def _write(path: Path, target: str | None) -> Path | None:
    # The ledger may lie on another disk than the delivery, and that one may be dead.
    note: Path | None = ask(partial(_written, path, target), None, late=_remove)
    return note


def _written(path: Path, target: str | None) -> Path | None:
    folder = (paths.used_folder or paths.ledger_folder()) / "pending"
    note = folder / f"{uuid.uuid4().hex}.json"
    content = Note(str(path), target, os.getpid(), platform.node(), time.time_ns())
    _mine.add(note.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        note.write_bytes(msgspec.json.encode(content))
    except OSError as problem:  # no fault of ours: the ledger's disk is full, or cannot be written
        log.warning("stagexec: no note can be made of a temporary file (%s).", problem.strerror)
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)
        _mine.discard(note.name)
        return None
    return note


@guarded
def _strike(note: Path | None) -> None:
    if note is not None:
        ask(partial(_remove, note), None)


@guarded
def _remove(note: Path) -> None:
    note.unlink(missing_ok=True)
    _mine.discard(note.name)


def left(ledger: Path) -> list[Left]:
    """What processes of this machine that are gone have left, oldest first. Notes of others are not read.

    Of a disk that gives no answer nothing is known: then nothing is left.
    """
    return ask(partial(_left, ledger), [], LOOK_S)


def _left(ledger: Path) -> list[Left]:
    found: list[tuple[int, Left]] = []
    for file in sorted((ledger / "pending").glob("*.json")):
        try:
            note = msgspec.json.decode(file.read_bytes(), type=Note)
        except (OSError, msgspec.MsgspecError):  # gone by now, or cut short by the same death
            continue
        if note.hostname != platform.node() or file.name in _mine or _is_alive(note):
            continue
        try:
            size: int | None = os.stat(note.path).st_size
        except OSError:
            size = None
        found.append((note.made_wall_ns, Left(str(file), note.path, note.target, size)))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def _is_alive(note: Note) -> bool:
    if note.pid == os.getpid():
        return False  # not among ours: the number came round again
    if os.name == "nt":
        # os.kill would end it. A number of a process that lives, or came round again, is left alone.
        import ctypes

        kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
        handle = kernel.OpenProcess(0x1000, False, note.pid)
        if handle:
            kernel.CloseHandle(handle)
        return bool(handle)
    try:
        os.kill(note.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def clean(ledger: Path) -> tuple[list[Left], list[tuple[Left, str]]]:
    """Remove what is left: (removed, [(kept, why)]). A note whose file is gone is struck out."""
    removed: list[Left] = []
    kept: list[tuple[Left, str]] = []
    for one in left(ledger):
        if one.bytes is not None and MARK not in os.path.basename(one.path):
            kept.append((one, "its name does not carry our mark"))
            continue
        try:
            Path(one.path).unlink(missing_ok=True)
            Path(one.note).unlink(missing_ok=True)
        except OSError as error:
            kept.append((one, error.strerror or str(error)))
            continue
        removed.append(one)
    return removed, kept
