"""What an address names, however it is spelled, so that what is allowed can be told from what is not.

An address is taken only where every reader of it, ours, fsspec's, a client's and the server's, must see the
same place in it. What some of them undo once more than others is refused, not repaired.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
import urllib.parse
from typing import NamedTuple

from stagexec.delivery.errors import DeliveryFailed

PORTS = {
    "sftp": 22, "ssh": 22, "ftp": 21, "ftps": 990, "smb": 445,
    "webdav": 443, "davs": 443, "webdavs": 443, "webdav+https": 443, "dav": 80, "webdav+http": 80,
}  # fmt: skip
"""Scheme -> port where none is given. In addresses of other schemes stands no host, but a bucket or so."""

UNDONE = frozenset(("webdav", "davs", "webdavs", "webdav+https", "dav", "webdav+http"))
"""Schemes whose paths we undo once before a client quotes them again. fsspec takes others as they stand."""

SAME = {"davs": "webdav", "webdavs": "webdav", "webdav+https": "webdav", "webdav+http": "dav", "ssh": "sftp"}
"""Scheme -> the one that means the same."""

NOT_TAKEN = {
    "http": "webdav+http", "https": "webdav", "file": "", "local": "",
}  # fmt: skip
"""Schemes that are not uploaded to -> what is meant. HTTP alone knows no rename; `file` is a folder."""

SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*")


class Address(NamedTuple):
    """`base` is the same for all spellings of one server or bucket; `segments` are those of the path."""

    scheme: str
    parts: urllib.parse.SplitResult
    port: str
    base: tuple[str, str, int]
    segments: tuple[str, ...]

    def lies_in(self, folder: Address) -> bool:
        """Is it that folder, or below it?"""
        inside = folder.segments if folder.segments[-1] else folder.segments[:-1]
        return self.base == folder.base and self.segments[: len(inside)] == inside


def unquoted(text: str) -> str:
    """`text` with its percent signs undone until none is left to undo."""
    before = None
    while before != text:
        before, text = text, urllib.parse.unquote(text, errors="surrogateescape")
    return text


def is_plain(text: str) -> bool:
    """Is each character a sign on paper: no control character, mark of direction or half of a character?"""
    return not any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for char in text)


def of(text: str) -> Address:
    """The address in a text. DeliveryFailed, which never shows the text, where it is none or ambiguous."""
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    if "::" in scheme or (scheme not in UNDONE and "::" in rest):
        raise DeliveryFailed("open", "addresses inside addresses (::) are not taken as a destination")
    if not SCHEME.fullmatch(scheme):
        raise DeliveryFailed("open", "what stands before :// in the destination is no name of a protocol")
    if scheme in NOT_TAKEN:
        meant = f"write {NOT_TAKEN[scheme]}://" if NOT_TAKEN[scheme] else "give the folder itself"
        raise DeliveryFailed("open", f"{scheme}:// is not uploaded to: {meant}")
    if not is_plain(unquoted(rest)):
        raise DeliveryFailed("open", f"the {scheme}:// destination has characters that cannot be seen")
    try:
        parts = urllib.parse.urlsplit(f"{scheme}://{rest}")
        port = parts.port
        host = parts.hostname or ""
    except ValueError:
        raise DeliveryFailed(
            "open", f"the {scheme}:// destination is no address: write what is special in it as %.."
        ) from None
    if odd := next((sign for sign in "?#\\" if sign in rest), None):
        raise DeliveryFailed("open", f"the {scheme}:// destination has {odd} in it, which is not taken")
    base = (scheme, parts.netloc, 0)
    if scheme in PORTS:
        if parts.netloc.count("@") > 1:
            raise DeliveryFailed("open", f"the {scheme}:// destination has more than one @: write %40")
        base = (SAME.get(scheme, scheme), host_of(scheme, host), port or PORTS[scheme])
    shown_port = f":{port}" if port else ""
    return Address(scheme, parts, shown_port, base, segments_of(scheme, parts.path))


def host_of(scheme: str, host: str) -> str:
    """A host in one spelling. Names of other scripts are taken as DNS has them (xn--…)."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        name = host.removesuffix(".")
    if not HOST.fullmatch(name):
        raise DeliveryFailed("open", f"the {scheme}:// destination names no host as DNS spells it")
    return name


def segments_of(scheme: str, path: str) -> tuple[str, ...]:
    """The parts of a path. DeliveryFailed for one that leads elsewhere in some reading of it."""
    once = urllib.parse.unquote(path, errors="surrogateescape")
    whole = unquoted(path)
    if whole != once:
        raise DeliveryFailed(
            "open", f"the {scheme}:// destination is quoted twice (%25..), which is not taken"
        )
    # What only looks like a dot or a slash is one to systems that fold characters.
    folded = unicodedata.normalize("NFKC", whole)
    for text in (whole, folded):
        parts = re.split(r"[/\\]", text)
        if any(part and not part.strip(". ") for part in parts):
            raise DeliveryFailed("open", f"the {scheme}:// destination has . or .. in it, which is not taken")
        if "\\" in text or text.count("/") != path.count("/"):
            raise DeliveryFailed("open", f"the {scheme}:// destination has a \\ or a quoted / in it")
    return tuple((whole if scheme in UNDONE else path).split("/"))
