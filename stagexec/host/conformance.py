"""Which loop runs this host's prompts: ours only where it passed the host's own test suite."""

from __future__ import annotations

from typing import Any

import msgspec

from stagexec.resources import patches_folder


def passed() -> dict[str, str]:
    """Fingerprints of the host's loop that our loop has passed the conformance suite with -> host version."""
    file = patches_folder() / "conformance.json"
    if not file.is_file():
        return {}
    listed: dict[str, str] = msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    return listed


def choose(api: Any, asked: str | None) -> tuple[str, str]:
    """(native or host, why). `asked` is what the person gave, or None."""
    known = passed().get(api.fingerprint)
    if asked == "host":
        return "host", "asked for with --stagexec-executor host"
    if not api.facts["async_loop"]:
        return "host", "this host's loop is not a coroutine, and ours needs that"
    if known is not None:
        return "native", f"conformance suite passed with this loop, as of ComfyUI {known}"
    if asked == "native":
        return "native", f"asked for; the host's loop {api.fingerprint} is not among those we passed with"
    return "host", (
        f"the host's loop {api.fingerprint} is not among those that ours passed the conformance suite with; "
        "--stagexec-executor native insists"
    )
