"""Who asks: a request must name this server by a name that no stranger's page can have, and be no stranger's.

A page of any site can ask a server in its visitor's network under the site's own name, once its DNS has been
changed to that server's address (DNS rebinding). To the browser all is one origin; only `Host` tells.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

VARIABLE = "STAGEXEC_HOSTS"
"""Environment variable with further names of this server, as behind a proxy, separated by `;`. `*` is all,
`.example.org` all below example.org."""

PRIVATE = ("localhost", "local", "internal", "lan", "home.arpa", "localdomain", "svc", "intranet", "corp")
"""Below these no name can be registered, so that only one's own network answers for it."""

NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?)*\.?")


HEADER = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([^:\[\]@/\s]+))(?::(\d{1,5}))?", re.ASCII)
"""An address of version 6 in brackets, or a name or address; and a port."""


def refusal(request: Any, told: Iterable[str], referer_counts: bool = True) -> str | None:
    """Why a request is not answered, for the person who reads it; None where it is.

    `told`: names and addresses that the host was told to listen at.
    """
    hosts = request.headers.getall("Host", [])
    if len(hosts) > 1:
        return "the request names two hosts"
    host = hosts[0] if hosts else None
    if is_foreign(request, host, referer_counts):
        return "only pages of this very server may read this"
    # With TLS the browser has compared the name with the certificate; without a Host it is no browser.
    if host is None or request.secure or is_ours(host, told):
        return None
    name = split(host)[0]
    shown = name if name is not None and NAME.fullmatch(name) else "in this request"
    return (
        f"the host name {shown} is not known to be this server's: the person who starts it lists the names "
        f"that it is reached by in ${VARIABLE}, with ; between them; by its IP address it always answers"
    )


def is_foreign(request: Any, host: str | None, referer_counts: bool = True) -> bool:
    """Whether a page of another origin asks: such a page must not read what a person's runs were."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return True
    sources = [*request.headers.getall("Origin", [])]
    if referer_counts:
        sources += request.headers.getall("Referer", [])
    return any(not is_same(source, host) for source in sources)


def is_same(source: str, host: str | None) -> bool:
    """Is an Origin or Referer of the host that was asked?"""
    try:
        parts = urlsplit(source)
    except ValueError:
        return False
    port = {"http": 80, "https": 443}.get(parts.scheme)
    theirs, asked = split(parts.netloc), split(host or "")
    return theirs[0] is not None and (theirs[0], theirs[1] or port) == (asked[0], asked[1] or port)


def split(host: str) -> tuple[str | None, int | None]:
    """(name in small letters, port) of a Host header; (None, None) for what is none."""
    found = HEADER.fullmatch(host)
    if found is None:
        return None, None
    return (found[1] or found[2]).lower(), int(found[3]) if found[3] else None


def is_ours(host: str, told: Iterable[str]) -> bool:
    """Is a Host header an address, a name in one's own network, or one that this server was told?"""
    name = split(host)[0]
    if name is None:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if not NAME.fullmatch(name):
            return False
    else:
        return True
    name = name.removesuffix(".")
    if "." not in name or any(name.endswith(f".{end}") for end in PRIVATE):
        return True
    listed = [word.strip().lower() for word in os.environ.get(VARIABLE, "").split(";")]
    known = {socket.gethostname().lower(), *(word.lower() for word in told), *listed}
    return "*" in listed or name in known or any(w.startswith(".") and name.endswith(w) for w in listed)
