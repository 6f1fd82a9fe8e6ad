"""Upload to another machine through fsspec: under a temporary name, read back and compared, then renamed."""

from __future__ import annotations

import functools
import hashlib
import os
import urllib.parse
import uuid
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from stagexec.addresses import HIDDEN
from stagexec.addresses import shown as redacted
from stagexec.delivery import addresses, numbers
from stagexec.delivery.errors import DeliveryFailed, cause_of
from stagexec.delivery.pending import MARK, part_name
from stagexec.record.safe import log

CHUNK = 1 << 20

EXTRAS = {"sftp": "paramiko", "ssh": "sshfs", "s3": "s3fs", "webdav": "webdav4"}
"""Protocol -> the package that it needs; `pip install stagexec[remote]` brings them."""

WEBDAV = {
    "webdav": "https", "davs": "https", "webdavs": "https", "webdav+https": "https",
    "dav": "http", "webdav+http": "http",
}  # fmt: skip
"""Scheme of a WebDAV address -> how it is spoken to."""


UNSAFE = ("http", "https")
"""Such a server can rename nothing, so no delivery could end; and what it redirects to would get the file."""


class Place(NamedTuple):
    """A folder on another machine: fsspec's protocol, its options, the folder, and how it may be shown.

    `hidden` are the texts that may never be shown: the address as it was given, and the password in it.
    `address` is what is compared with what is allowed.
    """

    protocol: str
    options: dict[str, Any]
    folder: str
    shown: str
    hidden: tuple[str, ...] = ()
    address: addresses.Address | None = None

    def without_secrets(self, text: str) -> str:
        """`text` with what is hidden left out of it."""
        for secret in self.hidden:
            text = text.replace(secret, HIDDEN)
        return redacted(text)


def parse(destination: str) -> Path | Place | None:
    """A local folder, a place elsewhere, or None for nothing. DeliveryFailed when it cannot be meant.

    Users and passwords are better kept in fsspec's own configuration or an SSH agent than in an address:
    a workflow is saved into the files that it makes.
    """
    text = destination.strip()
    if not text:
        return None
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _local(text)
    if scheme.lower() == "file":
        if not rest.startswith("/"):
            raise DeliveryFailed("open", "a file:// destination has three slashes: file:///folder")
        return _local(urllib.parse.unquote(rest))
    if scheme.lower() in UNSAFE:
        raise DeliveryFailed(
            "open", f"{scheme}:// takes no files: for a WebDAV server write webdav:// or dav://"
        )
    address = addresses.of(text)
    scheme, parts = address.scheme, address.parts
    # Only a host is given in small letters; the name of a bucket is one as it stands.
    where = f"{parts.hostname or ''}{address.port}" if scheme in addresses.PORTS else bare(parts.netloc)
    shown = f"{scheme}://{where}{parts.path}"
    hidden = _secrets(text, parts)
    if scheme in WEBDAV:
        # The name as it was allowed, so that no client reads it in another way.
        host = f"[{address.base[1]}]" if ":" in address.base[1] else address.base[1]
        options: dict[str, Any] = {"base_url": f"{WEBDAV[scheme]}://{host}{address.port}"}
        if parts.username:
            user, word = parts.username, parts.password or ""
            options["auth"] = (urllib.parse.unquote(user), urllib.parse.unquote(word))
        return Place("webdav", options, "/".join(address.segments).strip("/"), shown, hidden, address)
    return Place(scheme, {}, f"{scheme}://{rest}", shown, hidden, address)


def bare(netloc: str) -> str:
    """The name of a bucket, or whatever stands there, without a user and a password."""
    return netloc.rpartition("@")[2]


def _local(text: str) -> Path:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise DeliveryFailed("open", "the destination has characters that no file can be named by") from None
    if "\0" in text:
        raise DeliveryFailed("open", "the destination has a NUL character in it")
    return Path(os.path.abspath(os.path.expanduser(text)))


def _secrets(text: str, address: urllib.parse.SplitResult) -> tuple[str, ...]:
    """What of an address may not be shown; a user without a password is often a token."""
    word = address.password or address.username
    return () if not word else (text, word, urllib.parse.unquote(word))


def upload(file: Path, place: Place, sha256: str, timer: Any, overwrite: bool, numbered: bool = False) -> str:
    """Upload `file` into a place; the shown address of what is there. DeliveryFailed with nothing left.

    With `numbered` a name that is taken makes way for the next free one of its row.
    """
    if place.address is not None and addresses.unquoted(file.name) != file.name:
        raise DeliveryFailed(
            "upload", "the file's name has % signs that a server would undo: change its prefix"
        )
    system, folder = open_place(place, timer)

    def there(name: str) -> str:
        return str(PurePosixPath(folder) / name) if folder else name

    name, part = file.name, there(part_name(Path(file.name)).name)
    row = numbers.Row(lambda: names_in(system, folder))
    with timer.part("upload"), problems("upload", place, timer):
        while not overwrite and system.exists(there(name)):
            if not numbered:
                raise taken("upload", name, place)
            name = row.after(name)
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
            while not put_in_place(system, part, there(name), place, overwrite):
                if not numbered:
                    raise taken("rename", name, place)
                name = row.after(name)
            if not system.exists(there(name)):
                raise DeliveryFailed("rename", f"the file is not at {place.shown} after it was renamed")
        done = True
    finally:
        if not done:
            forget(system, part, place)
    return f"{place.shown.rstrip('/')}/{name}"


def names_in(system: Any, folder: str) -> list[str]:
    """The names of what lies in a folder now."""
    system.invalidate_cache()
    return [PurePosixPath(str(path)).name for path in system.ls(folder, detail=False)]


def put_in_place(system: Any, part: str, final: str, place: Place, overwrite: bool) -> bool:
    """Rename `part` to `final`; False where that name is taken and `overwrite` is off.

    A file that is to be replaced is put aside until that is done, and back if it fails: few of these
    protocols rename over a file.
    """
    if not system.exists(final):
        return put_new(system, part, final)
    if not overwrite:
        return False
    aside = str(PurePosixPath(final).with_name(part_name(PurePosixPath(final)).name))
    system.mv(final, aside)
    try:
        system.mv(part, final)
    except BaseException:
        system.mv(aside, final)
        raise
    forget(system, aside, place)
    return True


def put_new(system: Any, part: str, final: str) -> bool:
    """Rename `part` to `final`, which was free a moment ago; False where it is not any more.

    By what refuses a taken name in one step, where the protocol has it: several servers may want one name.
    """
    client: Any = getattr(system, "client", None)
    ftp: Any = getattr(system, "ftp", None)
    if hasattr(client, "move"):  # WebDAV
        rename = functools.partial(client.move, part, final, overwrite=False)
    elif hasattr(ftp, "posix_rename"):  # SFTP, whose own rename refuses, and whose other one does not
        rename = functools.partial(ftp.rename, part, final)
    else:
        return put_claimed(system, part, final)
    try:
        rename()
    except Exception:
        if system.exists(part) and system.exists(final):
            return False
        raise
    return True


def put_claimed(system: Any, part: str, final: str) -> bool:
    """The same where no step refuses: one that finds another's claim to the name beside its own lets it go.

    Two that claim at one moment see each other, and both go on to another name.
    """
    path = PurePosixPath(final)
    claims = str(path.with_name(f".{path.name}.{MARK}"))
    mine = f"{claims}/{uuid.uuid4().hex}"
    system.makedirs(claims, exist_ok=True)
    system.pipe_file(mine, b"claimed")
    try:
        if len(names_in(system, claims)) > 1 or system.exists(final):
            return False
        system.mv(part, final)
    finally:
        let_go(system, mine, claims)
    return True


def let_go(system: Any, mine: str, claims: str) -> None:
    """Take a claim back. One that stays makes the name count as taken, no more."""
    try:
        system.rm_file(mine)
        if not names_in(system, claims):
            system.rmdir(claims)
    except Exception as error:  # noqa: BLE001 (each library has its own; what was delivered is delivered)
        log.info("stagexec: a claim may be left at its destination (%s).", type(error).__name__)


def taken(phase: str, name: str, place: Place) -> DeliveryFailed:
    """Another's file has the name."""
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
                hooks = {"response": [refuse_redirect]}
                return fsspec.filesystem("webdav", event_hooks=hooks, **place.options), place.folder
            system, folder = fsspec.core.url_to_fs(place.folder)
        except (ImportError, ValueError) as error:
            text = place.without_secrets(f"{place.protocol}:// cannot be used: {error}{hint}")
            raise DeliveryFailed("upload", text) from shown_cause(place, error)
        except Exception as error:  # noqa: BLE001 (each library has its own; it goes on as ours)
            raise said_by(place, "upload", error) from shown_cause(place, error)
    return system, str(folder)


def refuse_redirect(response: Any) -> None:
    """A server may not send a file to another address than the one that was allowed."""
    if response.is_redirect:
        raise OSError("the server answers with a redirect to another address, which is not followed")


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
