"""Deliver a file: nothing is under its final name before it is whole, synced and verified.

Temporary file on the target's file system, flush, fsync, probe, atomic rename, then where asked a copy or
an upload, read back and compared by SHA-256. Each part is a part of the stage `delivery_commit`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from stagexec.delivery import numbers, pending, remote
from stagexec.delivery.errors import DeliveryFailed, cause_of
from stagexec.delivery.verify import DEFAULT_BUDGET_BYTES, Check, verify
from stagexec.public import stage

CHUNK = 1 << 20

NO_LINKS = {
    getattr(errno, name)
    for name in ("EPERM", "ENOTSUP", "EOPNOTSUPP", "ENOSYS", "EMLINK", "EXDEV", "EACCES", "EINVAL")
    if hasattr(errno, name)
}


class Delivered(msgspec.Struct):
    """A committed file. `state` and `reason` as in verify.Check; `parts_ns` sums the time of each part.

    `remote` is where it was copied or uploaded to, without user and password; null when it was not.
    """

    path: str
    bytes: int
    sha256: str
    state: str
    reason: str | None
    media: str
    remote: str | None
    parts_ns: dict[str, int]


class Timer:
    """Times the parts of one delivery, for its own record and for the ledger at once.

    `check` is called between pieces of work and may raise, to cancel; `cancel` is what it raised.
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self.parts_ns: dict[str, int] = {}
        self.cancel: BaseException | None = None
        self._check = check

    def check(self) -> None:
        """Raise if a stop was asked for."""
        try:
            self._check()
        except BaseException as cancel:
            self.cancel = cancel
            raise

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """The time until the end belongs to this part. An OSError becomes a DeliveryFailed of this phase."""
        start = time.perf_counter_ns()
        try:
            with stage("delivery_commit", name):
                yield
        except OSError as error:
            raise of_error(name, error) from error
        finally:
            self.parts_ns[name] = self.parts_ns.get(name, 0) + time.perf_counter_ns() - start


def of_error(phase: str, error: OSError) -> DeliveryFailed:
    """What the operating system said, as our own problem."""
    text = f"delivery failed in phase {phase}: {error.strerror or error}"
    return DeliveryFailed(phase, text, cause_of(error))


def deliver(
    source: Path,
    target: Path,
    destination: str = "",
    *,
    overwrite: bool = False,
    numbered: bool = False,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    committed: Callable[[str], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Delivered:
    """Commit a copy of `source` as `target`, then copy it to `destination`: a folder, or a URL of fsspec.

    `committed` is told the path as soon as the file is under its final name: what happens afterwards does
    not undo that. `check` is called again and again and may raise, to cancel. Without `overwrite` an
    existing file is never replaced. With `numbered` the name is one of a row, `name_00001_.mp4`: where it is
    taken, by another server at the same moment too, the next free number is, and `overwrite` is only for
    the destination. `source` is left as it is.
    Raises DeliveryFailed; then nothing of this delivery is under the name that it failed for.
    """
    timer = Timer(check)
    place = remote.parse(destination)
    found, target = commit(source, target, timer, overwrite and not numbered, budget_bytes, numbered=numbered)
    if committed is not None:
        committed(str(target))
    assert found.sha256 is not None
    assert found.bytes is not None
    shown = None
    if isinstance(place, Path):
        copy = place / target.name
        with timer.part("copy"):
            place.mkdir(parents=True, exist_ok=True)
        _, copy = commit(
            target, copy, timer, overwrite, budget_bytes, expected=found.sha256, numbered=numbered
        )
        shown = str(copy)
    elif place is not None:
        shown = remote.upload(target, place, found.sha256, timer, overwrite, numbered)
    return Delivered(
        str(target), found.bytes, found.sha256, found.state, found.reason, found.media, shown, timer.parts_ns
    )


def commit(
    source: Path,
    target: Path,
    timer: Timer,
    overwrite: bool,
    budget_bytes: int,
    expected: str | None = None,
    numbered: bool = False,
) -> tuple[Check, Path]:
    """One local commit of `source` under the name `target`, or the next free one of its row where `numbered`.

    Gives the check of what is there afterwards, and the name.
    """
    if not overwrite and not numbered and os.path.lexists(target):
        raise DeliveryFailed("rename", f"there is a file of the name {target.name} already")
    with timer.part("copy"):
        target.parent.mkdir(parents=True, exist_ok=True)
    part = pending.part_name(target)
    with pending.noted(part, str(target)):
        try:
            digest = copy_synced(source, part, timer)
            with timer.part("verify"):
                check = confirmed(part, expected or digest, budget_bytes)
                identity = identity_of(part)
            with timer.part("rename"):
                target = named(part, target, overwrite, numbered)
        finally:
            part.unlink(missing_ok=True)
    with timer.part("fsync"):
        sync_folder(target.parent)
    with timer.part("verify"):
        if identity_of(target) != identity:
            raise DeliveryFailed("verify", f"{target.name} was changed by another while it was delivered")
    return check, target


def named(part: Path, target: Path, overwrite: bool, numbered: bool) -> Path:
    """Give the temporary file the name `target`, or of a row the first that is free; which it was."""
    row = numbers.Row(lambda: os.listdir(target.parent))
    found = target
    while True:
        try:
            put_in_place(part, found, overwrite)
        except FileExistsError:
            if overwrite or not numbered:
                raise
            found = found.with_name(row.after(found.name))
            continue
        return found


def copy_synced(source: Path, part: Path, timer: Timer) -> str:
    """Copy to a new file, and wait until it is on the disk; the SHA-256 of what was read."""
    with timer.part("copy"):
        reader = source.open("rb")
    with reader:
        with timer.part("copy"):
            number = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
            writer = os.fdopen(number, "wb", buffering=0)
        with writer:
            with timer.part("copy"):
                digest = copy_hashed(reader, writer, timer.check)
            with timer.part("fsync"):
                os.fsync(writer.fileno())
    return digest


def copy_hashed(reader: BinaryIO, writer: Any, check: Callable[[], None]) -> str:
    """Copy in one pass; each piece is hashed by another thread while it is written."""
    digest = hashlib.sha256()
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    with ThreadPoolExecutor(1, thread_name_prefix="stagexec-hash") as hashing:
        while count := reader.readinto(buffer):  # type: ignore[attr-defined]
            check()
            piece = view[:count]
            hashed = hashing.submit(digest.update, piece)
            while len(piece):
                piece = piece[writer.write(piece) :]
            hashed.result()
    return digest.hexdigest()


def confirmed(part: Path, expected: str, budget_bytes: int) -> Check:
    """The check of the temporary file: it opens, and holds what was read from the source."""
    check = verify(part, budget_bytes)
    if check.sha256 is not None and check.sha256 != expected:
        raise DeliveryFailed(
            "verify", f"what was written is not what was read: {check.sha256} is not {expected}"
        )
    if check.state == "corrupt":
        raise DeliveryFailed("verify", f"the file is damaged: {check.reason}", "artifact_corrupt")
    if check.sha256 is None:
        raise DeliveryFailed("verify", f"the temporary file cannot be read back: {check.reason}")
    return check


def put_in_place(part: Path, target: Path, overwrite: bool) -> None:
    """Give the temporary file its final name in one step. FileExistsError unless `overwrite`."""
    if overwrite:
        os.replace(part, target)
        return
    if os.name == "nt":
        os.rename(part, target)  # refuses an existing name
        return
    try:
        os.link(part, target)  # the only way of POSIX to give a file a name that no other has taken meanwhile
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        rename_alone(part, target)  # FAT and some network disks have no links


def rename_alone(part: Path, target: Path) -> None:
    """A look before the leap, and of all of us only one leaps: the one that could make a file that says so.

    What says so stays behind when its process is killed; then the name counts as taken.
    """
    claim = target.with_name(f".{target.name}.{pending.MARK}")
    os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    with pending.noted(claim, str(target)):
        try:
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            os.rename(part, target)
        finally:
            claim.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Wait until the new name is on the disk, where the system can."""
    if os.name == "nt":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # network disks sync no folders
            raise
    finally:
        os.close(number)


def identity_of(path: Path) -> tuple[int, int, int]:
    """What stays the same when a file is only renamed."""
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns
