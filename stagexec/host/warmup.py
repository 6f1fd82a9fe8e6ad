"""`--stagexec-warmup FILE`: run a workflow once when the server answers, and flag that run."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

from stagexec import files
from stagexec.executor.queue import WARMUP
from stagexec.record.safe import log

WAIT_SECONDS = 900.0
POLL_SECONDS = 0.25
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Addresses that stand for all, and where such a server is reached."""


class WarmupError(Exception):
    """The workflow to warm up with cannot be used; one line."""


def read(path: str | Path) -> dict[str, Any]:
    """The workflow in a file, in API format. Raises WarmupError."""
    try:
        prompt = files.json_of(files.text_of(path))
    except (files.BadPath, files.BadText) as error:
        raise WarmupError(f"--stagexec-warmup {path}: {error}") from None
    if not isinstance(prompt, dict) or not prompt or not all(map(_is_node, prompt.values())):
        raise WarmupError(f"--stagexec-warmup {path} is not a workflow in API format")
    return prompt


def _is_node(node: Any) -> bool:
    return isinstance(node, dict) and "class_type" in node and isinstance(node.get("inputs"), dict)


def start(prompt: dict[str, Any], address: Any = None) -> threading.Thread:
    """Submit `prompt` from a thread as soon as the server answers. `address` gives (scheme, host, port)
    or None while it is not known; by default it is read from the host's own arguments."""
    thread = threading.Thread(
        target=_run, args=(prompt, address or host_address), name="stagexec-warmup", daemon=True
    )
    thread.start()
    return thread


def host_address() -> tuple[str, str, int] | None:
    """Where this process's own server listens; None while it does not.

    Its arguments alone would not do: another ComfyUI may answer at that port, and ours is about to fail.
    """
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    listen, port = getattr(server, "address", None), getattr(server, "port", None)
    args = getattr(sys.modules.get("comfy.cli_args"), "args", None)
    if listen is None or port is None:
        return None
    scheme = "https" if getattr(args, "tls_keyfile", None) else "http"
    return scheme, ANYWHERE.get(str(listen), str(listen)), int(port)


def _run(prompt: dict[str, Any], address: Any) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        place = address()
        if place is None:
            continue
        try:
            if _ask(place, "GET", "/system_stats", None)[0] != 200:
                continue
            status, answer = _ask(place, "POST", "/prompt", {"prompt": prompt, "extra_data": {WARMUP: True}})
        except (OSError, http.client.HTTPException):
            continue  # it does not listen yet
        if status == 200:
            log.info("stagexec: the warm-up is queued.")
        else:
            log.warning("stagexec: the server refused the warm-up: %s", answer.decode(errors="replace")[:500])
        return
    log.warning("stagexec: no warm-up: the server has not answered in %.0f s.", WAIT_SECONDS)


def _ask(place: tuple[str, str, int], method: str, path: str, body: Any) -> tuple[int, bytes]:
    scheme, host, port = place
    if scheme == "https":
        # The server's own certificate names the site, not this address; it is this process that is asked.
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=30, context=ssl._create_unverified_context()
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=30)
    try:
        payload = None if body is None else json.dumps(body).encode()
        connection.request(method, path, payload, {"Content-Type": "application/json"} if payload else {})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
