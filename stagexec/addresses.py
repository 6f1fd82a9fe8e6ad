"""Addresses and texts as they may be shown or kept: no user, password, token or key in them.

Everything of ours that prints, raises or files an address or another library's words about one goes through
here: the log, messages, the journal, JSON.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Sequence

HIDDEN = "***"

_USER = re.compile(r"(?<=://)\S*@")
"""Up to the last @: a password that was not escaped may hold any other sign."""

_QUERY = re.compile(r"((?:://|/)[^\s?#\"'<>]*)[?#][^\s\"'<>)\]]+")

_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-[\w-]*(?:key|token|auth)[\w-]*)"
    r"([\"']?\s*[:=]\s*[\"']?)(?:(?:basic|bearer|digest|negotiate|token)\s+)?[^\s,\"'}&]+"
)

_SCHEME = re.compile(r"(?i)\b(basic|bearer)\s+[\w+/=.~-]{8,}")

_SECRET = r"(?:token|secret|passw(?:or)?d|passwd|pwd|api[-_]?key|access[-_]?key|auth|credentials?|signature)"
_VALUE = re.compile(rf"(?i)\b([\w.-]*{_SECRET})([\"']?\s*[=:]\s*[\"']?)[^\s&;,\"'}}]+")

_OPTION = re.compile(rf"(?i)--?[\w-]*{_SECRET}")


def shown(text: str) -> str:
    """`text`, an address or a sentence with addresses in it, without what opens a door.

    Of an address: user and password, and all after a question mark. Of other words: the values of what is
    named like a password, a token or a key.
    """
    text = _QUERY.sub(rf"\1?{HIDDEN}", _USER.sub(f"{HIDDEN}@", text))
    text = _SCHEME.sub(rf"\1 {HIDDEN}", _HEADER.sub(rf"\1\2{HIDDEN}", text))
    return _VALUE.sub(rf"\1\2{HIDDEN}", text)


def shown_words(words: Sequence[str]) -> list[str]:
    """A command line's words as they may be kept; what follows an option of a secret's name is one."""
    found: list[str] = []
    hide = False
    for word in words:
        found.append(HIDDEN if hide and not word.startswith("-") else shown(word))
        hide = _OPTION.fullmatch(word) is not None
    return found


def origin(address: str) -> str:
    """Only who is spoken to, as scheme://host:port: the path of a hook is often its key."""
    try:
        parts = urllib.parse.urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "an address that cannot be read"
    if not parts.scheme or not host:
        return "an address that cannot be read"
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}:{port}" if port is not None else f"{parts.scheme}://{host}"


def is_http(address: str) -> bool:
    """Whether it is an http or https address with a host. Python's own words about others quote them."""
    try:
        parts = urllib.parse.urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def parted(address: str) -> tuple[str, tuple[str, str] | None]:
    """(the address without user and password, those two or None). Raises ValueError where it is none."""
    parts = urllib.parse.urlsplit(address)
    _ = parts.port  # ValueError where it is no number
    users, found, host = parts.netloc.rpartition("@")
    if not found:
        return address, None
    user, _, word = users.partition(":")
    plain = urllib.parse.urlunsplit(parts._replace(netloc=host))
    return plain, (urllib.parse.unquote(user), urllib.parse.unquote(word))


def reason(error: BaseException) -> str:
    """Another library's exception in words of ours: what it says itself may quote an address or a header."""
    inner = getattr(error, "reason", None)
    if isinstance(inner, BaseException):
        error = inner
    told = getattr(error, "strerror", None)
    return f"{type(error).__name__}: {told}" if isinstance(told, str) and told else type(error).__name__
