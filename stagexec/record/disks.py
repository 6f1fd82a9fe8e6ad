"""Whether a folder lies on a disk of this machine: a write to a network's disk can hang for ever."""

from __future__ import annotations

import os
import sys
from pathlib import Path

LOCAL_KINDS = frozenset({
    "aufs", "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfs", "hfsplus", "jfs",
    "msdos", "nilfs2", "ntfs", "ntfs3", "overlay", "ramfs", "reiserfs", "rootfs", "shiftfs", "tmpfs", "udf",
    "ufs", "vfat", "xfs", "zfs",
})  # fmt: skip
"""Linux file systems with neither a network nor a program in user space behind them."""

MOUNTS = Path("/proc/self/mountinfo")

FIXED_DRIVES = (2, 3, 6)
"""Windows: removable, fixed and RAM drives."""

MNT_LOCAL = 0x1000
"""macOS: the flag of a file system that is stored on this machine."""


def is_local(path: Path) -> bool:
    """Whether `path`, which need not exist yet, lies on a disk of this machine; False where not known."""
    try:
        whole = Path(os.path.realpath(path))
        if sys.platform == "win32":
            return _drive_is_fixed(whole)
        if sys.platform == "darwin":
            return _is_local_on_mac(whole)
        return _kind_of(str(whole), MOUNTS.read_text("utf-8", "surrogateescape")) in LOCAL_KINDS
    except (OSError, ValueError, AttributeError):  # no such table or call here: not known
        return False


def _kind_of(path: str, mounts: str) -> str | None:
    """The kind of file system that holds `path`, by the lines of Linux's mountinfo."""
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        before, found, after = line.partition(" - ")
        words = before.split(" ")
        if not found or len(words) < 5:
            continue
        point = _unescaped(words[4]).rstrip("/")
        inside = path == point or path.startswith(point + "/")
        if inside and (
            best is None or len(point) >= best[0]
        ):  # the later of two on one point covers the other
            best = len(point), after.split(" ")[0]
    return best[1] if best is not None else None


def _unescaped(point: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(code, character)
    return point


def _drive_is_fixed(path: Path) -> bool:
    import ctypes

    if path.drive.startswith("\\\\"):
        return False
    kind = ctypes.windll.kernel32.GetDriveTypeW(path.drive + "\\")  # type: ignore[attr-defined,unused-ignore]
    return kind in FIXED_DRIVES


def _is_local_on_mac(path: Path) -> bool:
    import ctypes

    while not path.exists() and path != path.parent:
        path = path.parent
    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, "statfs$INODE64", None) or library.statfs
    told = ctypes.create_string_buffer(4096)  # struct statfs: flags at byte 64, the kind's name at byte 72
    if call(os.fsencode(path), told):
        return False
    flags = int.from_bytes(told.raw[64:68], sys.byteorder)
    return bool(flags & MNT_LOCAL) and b"fuse" not in told.raw[72:88]
