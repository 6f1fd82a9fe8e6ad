"""The journal's file: it stays ours, whatever happens to it, and has room for what matters on a full disk.

Before each write the file at the path is compared with the one that was opened. Closed by a node's
`os.close`, it is opened again; removed, truncated or replaced, it begins again, and the journal repeats what
is still open. Replaced by an earlier copy of itself (a restore, a sync), only what the copy lacks is written.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stagexec.record import clock

RESERVE = 1024 * 1024
"""Bytes of the disk set aside behind the file's end, so that a run that a full disk ends is in the ledger."""

SMALLER = 4
"""On a disk with less room than that, a quarter is asked for, and again a quarter of it."""

COMPARED = 64 * 1024
"""A copy is the same as ours up to its end when these last bytes are equal."""

BEGINNING = 256
"""Bytes by which a file is known for ours: they hold the pid and the time of the start."""

FULL = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)}

FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND
for _name in ("O_BINARY", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"):
    FLAGS |= getattr(os, _name, 0)

KEEP_SIZE = 1
"""Linux's FALLOC_FL_KEEP_SIZE: blocks behind the end of a file, which keeps its size."""

_SIZE = ctypes.c_int64


class JournalFile:
    """One file that lines are appended to. Not for two threads at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path: Path | None = None
        self._file = -1
        self._identity: tuple[int, int] | None = None
        self._size = 0
        self._torn = False
        self._beginning = b""
        self._reserved_to = 0
        self._can_reserve = sys.platform == "linux"

    def is_same(self) -> bool:
        """Whether the file at the path is the one that is open, as it was left. Two looks, no more."""
        if self.path is None:
            return False
        try:
            held, there = os.fstat(self._file), os.stat(self.path)
        except OSError:
            return False
        return _identity(held) == _identity(there) == self._identity and held.st_size == self._size

    def prepare(self) -> bool:
        """Make the file ready to be written. False when it begins again. Raises OSError: nothing changed."""
        held = self._held()
        there = self._there()
        if there is not None and _identity(there) == self._identity:
            if held is None:
                self._file = self._open(self._known_path())  # other code closed it
            return self._goes_on(there.st_size)
        return self._replace(self._file if held is not None else -1, there)

    def write(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        """How many of `lines` are in the file whole, and what ended the writing; ends a torn line first."""
        start = b"\n" if self._torn else b""
        data = start + b"".join(lines)
        done, problem = 0, None
        try:
            while done < len(data):
                done += os.write(self._file, memoryview(data)[done:])
        except OSError as error:
            problem = error
        if done:
            self._torn = data[done - 1 : done] != b"\n"
            self._size += done
            if len(self._beginning) < BEGINNING:
                self._beginning = (self._beginning + data[:done])[:BEGINNING]
        ends = done + 1 if done > len(start) else done  # the end of its line, if torn, is written next time
        return data.count(b"\n", len(start), ends), problem

    def keep_reserve(self) -> bool:
        """Set RESERVE bytes aside behind the end. False when the disk has no room for it."""
        if self._reserved_to - self._size >= RESERVE // 2:
            return True
        size = RESERVE
        while size >= RESERVE // SMALLER**3:
            done = self._allocate(size)
            if done is None:
                return self._free() > RESERVE
            if done:
                self._reserved_to = self._size + size
                return size == RESERVE
            size //= SMALLER
        return False

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes leave half of the reserve untouched."""
        if self._reserved_to - self._size - size >= RESERVE // 2:
            return True
        done = self._allocate(size + RESERVE)
        if done:
            self._reserved_to = self._size + size + RESERVE
        return self._free() > size + RESERVE if done is None else done

    def close(self) -> None:
        """Give back what was set aside, and close."""
        if self._held() is None:
            return
        with contextlib.suppress(OSError):  # at the end of the process: nothing more can be done
            if self._reserved_to > self._size:
                os.ftruncate(self._file, self._size)  # frees the blocks behind the end
            os.close(self._file)
        self._file = -1

    def _known_path(self) -> Path:
        assert self.path is not None
        return self.path

    def _held(self) -> os.stat_result | None:
        """What our descriptor leads to, if that is still our file."""
        if self._file < 0:
            return None
        try:
            held = os.fstat(self._file)
        except OSError:  # closed
            return None
        return held if _identity(held) == self._identity else None

    def _there(self) -> os.stat_result | None:
        if self.path is None:
            return None
        try:
            return os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _goes_on(self, size: int) -> bool:
        """The same file: has it all that was written to it?"""
        if size >= self._size:
            self._torn = self._torn or size > self._size  # another program wrote to it: end its line
            self._size = size
            return True
        self._torn, self._size, self._reserved_to, self._beginning = size > 0, size, 0, b""
        return False

    def _replace(self, old: int, there: os.stat_result | None) -> bool:
        """Open another file in the place of the one that is gone, `old` unless other code has closed it."""
        path = self.path if there is None or self._is_ours(self._known_path(), there) else None
        if path is None:
            day = time.strftime("%Y-%m-%d", time.localtime(clock.ANCHOR_WALL_NS / 1e9))
            start = clock.ANCHOR_WALL_NS if self.path is None else time.time_ns()
            path = self.folder / "journal" / day / f"{socket.gethostname()}-{os.getpid()}-{start}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        file = self._open(path)
        try:
            found = os.fstat(file)
            is_copy = old >= 0 and found.st_size > 0 and _is_beginning(file, found.st_size, old)
            if is_copy:
                _copy(old, found.st_size, file)
            size = os.fstat(file).st_size
        except OSError:
            os.close(file)
            raise
        if old >= 0:
            os.close(old)
        self.path, self._file, self._identity = path, file, _identity(found)
        self._reserved_to, self._size = 0, size
        self._beginning = os.pread(file, BEGINNING, 0) if size and hasattr(os, "pread") else b""
        if not is_copy:
            self._torn = size > 0
        return is_copy

    def _open(self, path: Path) -> int:
        file = os.open(path, FLAGS, 0o644)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        return file

    def _is_ours(self, path: Path, there: os.stat_result) -> bool:
        """Whether what stands at our path may be written to: an empty file, or a copy of ours."""
        if not stat.S_ISREG(there.st_mode) or not self._beginning:
            return stat.S_ISREG(there.st_mode) and there.st_size == 0
        with open(path, "rb") as found:
            beginning = found.read(len(self._beginning))
        return self._beginning.startswith(beginning)

    def _allocate(self, size: int) -> bool | None:
        """Blocks of the disk for `size` bytes behind the end; None where this system or disk cannot."""
        if not self._can_reserve:
            return None
        code = _fallocate(self._file, self._size, size)
        if code == 0:
            return True
        if code in FULL:
            return False
        self._can_reserve = False
        return None

    def _free(self) -> int:
        try:
            return shutil.disk_usage(self.folder).free
        except OSError:
            return 0


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_beginning(file: int, size: int, of: int) -> bool:
    """Whether the first `size` bytes of the file `of` are those of `file`, by the last ones of them."""
    if size > os.fstat(of).st_size or not hasattr(os, "pread"):
        return False
    begin = max(0, size - COMPARED)
    return os.pread(file, size - begin, begin) == os.pread(of, size - begin, begin)


def _copy(source: int, begin: int, target: int) -> None:
    while block := os.pread(source, COMPARED, begin):
        done = 0
        while done < len(block):
            done += os.write(target, memoryview(block)[done:])
        begin += len(block)


def _made_fallocate() -> Callable[..., int] | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError, TypeError):  # no such function, or no such library
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, _SIZE, _SIZE]
    return function


_found: list[Callable[..., int] | None] = []


def _fallocate(file: int, begin: int, size: int) -> int:
    """0, or the error's number."""
    if not _found:
        _found.append(_made_fallocate())
    function = _found[0]
    if function is None:
        return errno.ENOSYS
    return 0 if function(file, KEEP_SIZE, begin, size) == 0 else ctypes.get_errno()
