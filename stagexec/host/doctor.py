"""What `stagexec doctor` says of a host: its facts, which loop would run its prompts, every seam's state.

The host's modules are imported in a process of their own, on CPU and without a server, so that nothing of
the asking process changes. The node packs are not loaded: seams in them show as absent here, and with their
real state in the journal of a server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from stagexec.host.locate import locate

TIMEOUT_S = 300


class DoctorFailed(Exception):
    """The host could not be looked at; the message says why."""


def report(comfyui: str | None, patches: tuple[str, ...] = ()) -> dict[str, Any]:
    """{host, facts, executor, seams, problems}. Raises HostNotFound, or DoctorFailed on a failed import."""
    tree = locate(comfyui)
    command = [sys.executable, "-m", "stagexec.host.doctor", str(tree), *patches]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [package_parent(), os.environ.get("PYTHONPATH")])),
    }
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=env, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise DoctorFailed(f"importing the host in {tree} took more than {TIMEOUT_S} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DoctorFailed(f"the host in {tree} cannot be imported here: {last}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def package_parent() -> str:
    """The folder that this package is imported from."""
    return str(Path(__file__).resolve().parents[2])


def look(tree: Path, patches: list[str]) -> dict[str, Any]:
    """Import the host's modules in this process, with our hooks on, and say what came of it."""
    from stagexec.host import leftovers, worker
    from stagexec.host.api import version
    from stagexec.host.hooks import Hooks, user_folder
    from stagexec.host.tables import load
    from stagexec.record import paths

    sys.path[0] = str(tree)
    sys.argv = [str(tree / "main.py"), "--cpu"]
    hooks = Hooks(load(patches), None, "baseline", False, {})
    hooks.journal = False
    hooks.install()
    import comfy.options

    comfy.options.enable_args_parsing()
    import execution  # noqa: F401 (what we came for happens on import)

    import_the_rest()
    api = hooks.api
    seams = hooks.seams.verify()
    for one in seams:
        if one["target"] == worker.TARGET:
            one["reason"] = worker.outlook(tree)
    problems = [
        f"seam {s['seam']} at {s['target']}: {s['state']}: {s['reason']}"
        for s in seams
        if s["state"] in ("refused", "lost")
    ]
    paths.host_folder = user_folder()
    problems += leftovers.problems(paths.ledger_folder())
    if api is None:
        problems.insert(0, f"{hooks.reason}; no run would be recorded")
    return {
        "host": {"path": str(tree), "version": version(), "fingerprint": api.fingerprint if api else None},
        "facts": api.facts if api else {},
        "executor": {"used": api.executor_used if api else "host", "reason": hooks.reason},
        "seams": seams,
        "problems": problems,
    }


def import_the_rest() -> None:
    """Modules that seams hang on and that only the server or the node packs import."""
    import importlib

    for name in ("comfy.controlnet", "comfy_api.latest._ui", "comfy_api.latest._input_impl.video_types"):
        try:
            importlib.import_module(name)
        except ImportError:  # that host has none: its seams stay absent
            continue


def main() -> int:
    """The inner process: JSON on the last line of stdout."""
    import contextlib

    with contextlib.redirect_stdout(sys.stderr):
        found = look(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
