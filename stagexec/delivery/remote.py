"""Upload to another machine through fsspec: under a temporary name, read back and compared, then renamed."""

from __future__ import annotations

import hashlib
import os
import re
import urllib.parse
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from stagexec.delivery.errors import DeliveryFailed, cause_of
from stagexec.delivery.pending import part_name
from stagexec.record.safe import log

CHUNK = 1 << 20

EXTRAS = {"sftp": "paramiko", "ssh": "sshfs", "s3": "s3fs", "webdav": "webdav4"}
"""Protocol -> the package that it needs; `pip install stagexec[remote]` brings them."""

WEBDAV = {
    "webdav": "https", "davs": "https", "webdavs": "https", "webdav+https": "https",
    "dav": "http", "webdav+http": "http",
}  # fmt: skip
"""Scheme of a WebDAV address -> how it is spoken to."""


class Place(NamedTuple):
    """A folder on another machine: fsspec's protocol, its options, the folder, and how it may be shown.

    `hidden` are the texts that may never be shown: the address as it was given, and the password in it.
    """

    protocol: str
    options: dict[str, Any]
    folder: str
    shown: str
    hidden: tuple[str, ...] = ()

    def without_secrets(self, text: str) -> str:
        """`text` with what is hidden left out of it."""
        for secret in self.hidden:
            text = text.replace(secret, "***")
        return text


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
        return Path(os.path.abspath(os.path.expanduser(text)))
    if scheme == "file":
        return Path(os.path.abspath(urllib.parse.unquote(urllib.parse.urlsplit(text).path)))
    address, port = _read(scheme, text)
    host = address.hostname or ""
    shown = f"{scheme}://{host}{port}{address.path}"
    hidden = _secrets(text, address)
    if scheme in WEBDAV:
        options: dict[str, Any] = {"base_url": f"{WEBDAV[scheme]}://{host}{port}"}
        if address.username:
            user, word = address.username, address.password or ""
            options["auth"] = (urllib.parse.unquote(user), urllib.parse.unquote(word))
        return Place("webdav", options, urllib.parse.unquote(address.path).strip("/"), shown, hidden)
    return Place(scheme, {}, text, shown, hidden)


def _read(scheme: str, text: str) -> tuple[urllib.parse.SplitResult, str]:
    """The parts of an address, and its port as `:number` or nothing. The text is never shown: see `_secrets`.

    What is allowed is told by the path, so nothing may stand in an address that leads elsewhere than its
    path says: no `..`, in whatever spelling, and nothing that only some file systems take for a part of it.
    """
    try:
        address = urllib.parse.urlsplit(text)
        port = f":{address.port}" if address.port else ""
    except ValueError:
        raise DeliveryFailed(
            "open", f"the {scheme}:// destination is no address: write what is special in it as %.."
        ) from None
    if "::" in scheme:
        raise DeliveryFailed("open", f"{scheme}://: addresses inside addresses are not taken")
    if ".." in re.split(r"[/\\?#]", urllib.parse.unquote(text)) or "?" in text or "#" in text:
        raise DeliveryFailed("open", f"the {scheme}:// destination has .., ? or # in it, which is not taken")
    return address, port


def _secrets(text: str, address: urllib.parse.SplitResult) -> tuple[str, ...]:
    """What of an address may not be shown; a user without a password is often a token."""
    word = address.password or address.username
    return () if not word else (text, word, urllib.parse.unquote(word))


def upload(file: Path, place: Place, sha256: str, timer: Any, overwrite: bool) -> str:
    """Upload `file` into a place; the shown address of what is there. DeliveryFailed with nothing left."""
    system, folder = open_place(place, timer)
    final = str(PurePosixPath(folder) / file.name) if folder else file.name
    part = str(PurePosixPath(folder) / part_name(Path(file.name)).name) if folder else part_name(file).name
    with timer.part("upload"), problems("upload", place, timer):
        if not overwrite and system.exists(final):
            raise taken("upload", file.name, place)
        if folder:
            system.makedirs(folder, exist_ok=True)
    done = False
    try:
        with timer.part("upload"), problems("upload", place, timer):
            system.put_file(str(file), part)
        with timer.part("verify"), problems("verify", place, timer):
            found = digest_of(system, part, timer.check)
        if found != sha256:
            raise DeliveryFailed(
                "verify", f"what is at {place.shown} is not what was sent: {found} is not {sha256}"
            )
        with timer.part("rename"), problems("rename", place, timer):
            put_in_place(system, part, final, place, overwrite)
            if not system.exists(final):
                raise DeliveryFailed("rename", f"the file is not at {place.shown} after it was renamed")
        done = True
    finally:
        if not done:
            forget(system, part, place)
    return f"{place.shown.rstrip('/')}/{file.name}"


def put_in_place(system: Any, part: str, final: str, place: Place, overwrite: bool) -> None:
    """Rename `part` to `final`. A file that is there is put aside until that is done, and back if it fails.

    Few of these protocols rename over a file.
    """
    if not system.exists(final):
        system.mv(part, final)
        return
    name = PurePosixPath(final).name
    if not overwrite:
        raise taken("rename", name, place)
    aside = str(PurePosixPath(final).with_name(part_name(Path(name)).name))
    system.mv(final, aside)
    try:
        system.mv(part, final)
    except BaseException:
        system.mv(aside, final)
        raise
    forget(system, aside, place)


def taken(phase: str, name: str, place: Place) -> DeliveryFailed:
    """Somebody else's file has the name."""
    return DeliveryFailed(phase, f"there is a file of the name {name} at {place.shown} already")


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
            text = place.without_secrets(f"{place.protocol}:// cannot be used: {error}{hint}")
            raise DeliveryFailed("upload", text) from shown_cause(place, error)
        except Exception as error:  # noqa: BLE001 (each library has its own; it goes on as ours)
            raise said_by(place, "upload", error) from shown_cause(place, error)
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
    """Whatever a file system raises is a DeliveryFailed of this phase: each library has its own errors.

    Not what the timer's `check` raised: that is a cancel, which some hosts raise as a plain Exception.
    """

    def __init__(self, phase: str, place: Place, timer: Any) -> None:
        self.phase = phase
        self.place = place
        self.timer = timer

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or error is self.timer.cancel:
            return
        if isinstance(error, Exception) and not isinstance(error, DeliveryFailed):
            raise said_by(self.place, self.phase, error) from shown_cause(self.place, error)


def said_by(place: Place, phase: str, error: Exception) -> DeliveryFailed:
    """The library's exception as ours, without an address that could hold a password."""
    text = place.without_secrets(str(error)) or type(error).__name__
    text = f"{place.shown} refused in phase {phase}: {type(error).__name__}: {text}"
    return DeliveryFailed(phase, text, cause_of(error))


def shown_cause(place: Place, error: Exception) -> Exception | None:
    """`error` as the cause of ours; None where it could show a password in the host's log."""
    return None if place.hidden else error


def forget(system: Any, part: str, place: Place) -> None:
    """Remove what was uploaded in part; where that fails too, say what is left. The failure goes on."""
    try:
        if system.exists(part):
            system.rm_file(part)
    except Exception as error:  # noqa: BLE001 (each library has its own; the first failure is the one to raise)
        log.warning("stagexec: %s may be left at %s (%s)", PurePosixPath(part).name, place.shown, type(error))
