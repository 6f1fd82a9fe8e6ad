"""A pytest plugin: where ComfyUI's own suite starts `python main.py`, our launcher starts instead.

The suite's clients give a server twenty seconds, which a busy machine does not; so a start returns only
when the port accepts. Nothing else of the suite is touched.

STAGEXEC_CONFORMANCE_LAUNCHER=stock runs the host's own main.py instead, for comparison.
STAGEXEC_CONFORMANCE_ARGS holds more arguments for our launcher, separated by spaces.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

START_SECONDS = 240.0
FREE_SECONDS = 60.0


def launch_command(args: list[str]) -> list[str]:
    """`python main.py …` as the command that this run of the suite tests; the current folder is the tree."""
    if os.environ.get("STAGEXEC_CONFORMANCE_LAUNCHER") == "stock":
        return [sys.executable, "main.py", *args[2:]]
    ours = os.environ.get("STAGEXEC_CONFORMANCE_ARGS", "").split()
    return [sys.executable, "-m", "stagexec.main", "--stagexec-comfyui", os.getcwd(), *ours, *args[2:]]


def accepts(port: int) -> bool:
    """Whether something listens on `port` of this machine."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class WaitingPopen(subprocess.Popen):  # type: ignore[type-arg]
    """Popen that turns the suite's `python main.py` into a start that has finished when it returns."""

    def __init__(self, args: Any, *rest: Any, **named: Any) -> None:
        is_server = isinstance(args, list) and args[:2] == ["python", "main.py"]
        if not is_server:
            super().__init__(args, *rest, **named)
            return
        port = int(args[args.index("--port") + 1])
        wait_until(
            lambda: not accepts(port), FREE_SECONDS, f"port {port} is still taken by the server before"
        )
        super().__init__(launch_command(args), *rest, **named)
        wait_until(
            lambda: self.poll() is not None or accepts(port), START_SECONDS, "the server does not listen"
        )
        if self.poll() is not None:
            raise RuntimeError(f"the server ended with code {self.returncode} before it listened")


def wait_until(done: Any, seconds: float, complaint: str) -> None:
    """Return when `done()` is true; raise TimeoutError with `complaint` after `seconds`."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"{complaint} after {seconds:.0f} s")
        time.sleep(0.2)


subprocess.Popen = WaitingPopen  # type: ignore[misc]
