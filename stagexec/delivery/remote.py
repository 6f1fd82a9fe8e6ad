"""Upload to another machine through fsspec: under a temporary name, read back and compared, then renamed."""

from __future__ import annotations

import hashlib
import logging
import urllib.parse
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from stagexec.delivery.errors import DeliveryFailed
from stagexec.delivery.pending import part_name

log = logging.getLogger("stagexec")

CHUNK = 1 << 20

EXTRAS = {"sftp": "paramiko", "ssh": "sshfs", "s3": "s3fs", "webdav": "webdav4"}
"""Protocol -> the package that it needs; `pip install stagexec[remote]` brings them."""

WEBDAV = {
    "webdav": "https", "davs": "https", "webdavs": "https", "webdav+https": "https",
    "dav": "http", "webdav+http": "http",
}  # fmt: skip
"""Scheme of a WebDAV address -> how it is spoken to."""


class Place(NamedTuple):
    """A folder on another machine: fsspec's protocol, its options, the folder, and how it may be shown."""

    protocol: str
    options: dict[str, Any]
    folder: str
    shown: str


def parse(destination: str) -> Path | Place | None:
    """A local folder, a place elsewhere, or None for nothing. DeliveryFailed when it cannot be meant.

    Users and passwords are better kept in fsspec's own configuration or an SSH agent than in an address:
    a workflow is saved into the files that it makes.
    """
    text = destination.strip()
    if not text:
        return None
    scheme, separator, _ = text.partition("://")
    if not separator:
        return Path(text).expanduser().absolute()
    if scheme == "file":
        return Path(urllib.parse.unquote(urllib.parse.urlsplit(text).path))
    address = urllib.parse.urlsplit(text)
    host = address.hostname or ""
    shown = f"{scheme}://{host}{f':{address.port}' if address.port else ''}{address.path}"
    if scheme in WEBDAV:
        port = f":{address.port}" if address.port else ""
        options: dict[str, Any] = {"base_url": f"{WEBDAV[scheme]}://{host}{port}"}
        if address.username:
            user, word = address.username, address.password or ""
            options["auth"] = (urllib.parse.unquote(user), urllib.parse.unquote(word))
        return Place("webdav", options, urllib.parse.unquote(address.path).strip("/"), shown)
    return Place(scheme, {}, text, shown)


def upload(file: Path, place: Place, sha256: str, timer: Any, overwrite: bool) -> str:
    """Upload `file` into a place; the shown address of what is there. DeliveryFailed with nothing left."""
    system, folder = open_place(place, timer)
    final = str(PurePosixPath(folder) / file.name) if folder else file.name
    part = str(PurePosixPath(folder) / part_name(Path(file.name)).name) if folder else part_name(file).name
    with problems("upload", place), timer.part("upload"):
        if not overwrite and system.exists(final):
            raise DeliveryFailed(
                "upload", f"there is a file of the name {file.name} at {place.shown} already"
            )
        if folder:
            system.makedirs(folder, exist_ok=True)
    done = False
    try:
        with problems("upload", place), timer.part("upload"):
            system.put_file(str(file), part)
        with problems("verify", place), timer.part("verify"):
            found = digest_of(system, part, timer.check)
        if found != sha256:
            raise DeliveryFailed(
                "verify", f"what is at {place.shown} is not what was sent: {found} is not {sha256}"
            )
        with problems("rename", place), timer.part("rename"):
            if overwrite and system.exists(final):
                system.rm_file(final)  # few of these protocols rename over a file
            system.mv(part, final)
            if not system.exists(final):
                raise DeliveryFailed("rename", f"the file is not at {place.shown} after it was renamed")
        done = True
    finally:
        if not done:
            forget(system, part, place)
    return f"{place.shown.rstrip('/')}/{file.name}"


def open_place(place: Place, timer: Any) -> tuple[Any, str]:
    """The file system of a place, and the folder as that knows it."""
    package = EXTRAS.get(place.protocol)
    hint = f"; `pip install stagexec[remote]` brings {package}" if package else ""
    try:
        import fsspec
    except ImportError:
        raise DeliveryFailed(
            "upload", "uploads need fsspec: `pip install stagexec[remote]` brings it"
        ) from None
    with timer.part("upload"):
        try:
            if place.protocol == "webdav":
                return fsspec.filesystem("webdav", **place.options), place.folder
            system, folder = fsspec.core.url_to_fs(place.folder)
        except (ImportError, ValueError) as error:
            raise DeliveryFailed("upload", f"{place.protocol}:// cannot be used: {error}{hint}") from error
        except Exception as error:
            raise said_by(place, "upload", error) from error
    return system, str(folder)


def digest_of(system: Any, path: str, check: Callable[[], None]) -> str:
    """SHA-256 of a remote file, read back from its server."""
    digest = hashlib.sha256()
    with system.open(path, "rb") as file:
        while piece := file.read(CHUNK):
            check()
            digest.update(piece)
    return digest.hexdigest()


class problems:  # noqa: N801 (reads as part of a `with` statement)
    """Whatever a file system raises is a DeliveryFailed of this phase: each library has its own errors."""

    def __init__(self, phase: str, place: Place) -> None:
        self.phase = phase
        self.place = place

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, DeliveryFailed):
            raise said_by(self.place, self.phase, error) from error


def said_by(place: Place, phase: str, error: Exception) -> DeliveryFailed:
    """The library's exception as ours, without an address that could hold a password."""
    text = str(error) or type(error).__name__
    return DeliveryFailed(phase, f"{place.shown} refused in phase {phase}: {type(error).__name__}: {text}")


def forget(system: Any, part: str, place: Place) -> None:
    """Remove what was uploaded in part; where that fails too, say what is left. The failure goes on."""
    try:
        if system.exists(part):
            system.rm_file(part)
    except Exception as error:  # noqa: BLE001 (each library has its own; the first failure is the one to raise)
        log.warning("stagexec: %s may be left at %s (%s)", PurePosixPath(part).name, place.shown, type(error))
