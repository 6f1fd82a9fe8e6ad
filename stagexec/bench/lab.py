"""A server under test: started with folders, port and ledger of its own, waited for, stopped, killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from stagexec.bench.client import Client, Unreachable, http_json
from stagexec.resources import checkout_root

OURS = ("-m", "stagexec.main")
"""Launcher: our loop in the host."""
STOCK = ("main.py",)
"""Launcher: the host alone, for comparison."""

START_SECONDS = 240.0
STOP_SECONDS = 20.0


class ServerDied(Exception):
    """The server's process ended, or never listened; the text holds its last log lines."""


@dataclass
class Launch:
    """How a server is started. `base` is a scratch folder: output, input, temp, user and models go there.

    Each of `custom_nodes` is a node pack (a folder with an __init__.py) or a folder of packs. Each folder in
    `models` is a kind of model of its own, as in the host's folder of that name.
    """

    comfyui: Path
    base: Path
    launcher: Sequence[str] = OURS
    python: str = sys.executable
    args: Sequence[str] = ("--cpu",)
    ledger: Path | None = None
    checkpoints: Path | None = None
    custom_nodes: Sequence[Path] = ()
    models: Path | None = None
    port: int | None = None
    hash_seed: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None

    @property
    def ours(self) -> bool:
        """Whether this is our launcher and not the host alone."""
        return tuple(self.launcher) == OURS


class Server:
    """The life of one server process. A context manager: started and ready inside, stopped after."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.port = launch.port or free_port()
        self.base = launch.base
        self.log_file = launch.base / "server.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address of the server, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> Path:
        """Where the server saves its outputs."""
        return self.base / "output"

    @property
    def pid(self) -> int:
        """Process id; ServerDied when it was never started."""
        return self._running().pid

    def start(self) -> Server:
        """Start the process and return at once."""
        prepare_folders(self.launch)
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command(self.launch, self.port),
                cwd=self.launch.cwd or (self.base if self.launch.ours else self.launch.comfyui),
                env=environment(self.launch),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                **_own_group(),
            )
        return self

    def wait_ready(self, seconds: float = START_SECONDS) -> Server:
        """Return when /system_stats answers; raise ServerDied if the process ends first or time is up."""
        end = time.monotonic() + seconds
        while True:
            self.check_alive()
            try:
                http_json(self.url, "GET", "/system_stats", seconds=5.0)
            except Unreachable:
                if time.monotonic() > end:
                    raise ServerDied(
                        f"no answer on port {self.port} after {seconds:.0f} s\n{self.tail()}"
                    ) from None
                time.sleep(0.1)
            else:
                return self

    def check_alive(self) -> None:
        """Raise ServerDied if the process has ended."""
        code = self._running().poll()
        if code is not None:
            raise ServerDied(f"the server ended with code {code}\n{self.tail()}")

    def wait_end(self, seconds: float = STOP_SECONDS) -> int:
        """The exit code of a server that ends by itself; subprocess.TimeoutExpired if it does not."""
        return self._running().wait(seconds)

    def interrupt(self) -> None:
        """Send what Ctrl-C sends."""
        process = self._running()
        if process.poll() is not None:
            return
        if sys.platform == "win32":
            process.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            process.send_signal(signal.SIGINT)

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Ctrl-C, then after `seconds` kill; the exit code. Harmless on a server that has ended."""
        self.interrupt()
        try:
            return self._running().wait(seconds)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """End the process, and on POSIX its children, without a word; the exit code."""
        process = self._running()
        if process.poll() is None:
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def log(self) -> str:
        """Everything the server has printed so far."""
        return self.log_file.read_text(encoding="utf-8", errors="replace") if self.log_file.exists() else ""

    def tail(self, lines: int = 25) -> str:
        """The last lines of the log."""
        return "\n".join(self.log().splitlines()[-lines:])

    def client(self, client_id: str | None = None, connect: bool = True) -> Client:
        """A client of this server, to be closed after use; with `connect` it listens on a websocket."""
        return Client(self.url, client_id=client_id, connect=connect)

    def __enter__(self) -> Server:
        try:
            return self.start().wait_ready()
        except BaseException:
            if self.process is not None:
                self.kill()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise ServerDied("the server was never started")
        return self.process


def free_port() -> int:
    """A TCP port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def prepare_folders(launch: Launch) -> None:
    """The folders that the host expects under its base directory, and the file that names further ones."""
    for name in ("custom_nodes", "input", "models", "output", "temp", "user"):
        (launch.base / name).mkdir(parents=True, exist_ok=True)
    section: dict[str, str] = {}
    if launch.models is not None and launch.models.is_dir():
        section |= {kind.name: str(kind) for kind in sorted(launch.models.iterdir()) if kind.is_dir()}
    if launch.checkpoints is not None:
        section["checkpoints"] = "\n".join(
            filter(None, (section.get("checkpoints"), str(launch.checkpoints)))
        )
    packs = [folder for folder in launch.custom_nodes if (folder / "__init__.py").is_file()]
    for pack in packs:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(pack, launch.base / "custom_nodes" / pack.name, ignore=ignore, dirs_exist_ok=True)
    if folders := [folder for folder in launch.custom_nodes if folder not in packs]:
        section["custom_nodes"] = "\n".join(str(folder) for folder in folders)
    # The host reads YAML; JSON is YAML, and escapes every path there is.
    _paths_file(launch).write_text(json.dumps({"stagexec": section}), encoding="utf-8")


def _paths_file(launch: Launch) -> Path:
    return launch.base / "extra_model_paths.yaml"


def command(launch: Launch, port: int) -> list[str]:
    """The command line of a server."""
    words = [launch.python]
    if launch.ours:
        words += [*launch.launcher, "--stagexec-comfyui", str(launch.comfyui)]
        if launch.ledger is not None:
            words += ["--stagexec-ledger", str(launch.ledger)]
    else:
        # A launcher that is a file of the host is given in full: the current folder need not be the host's.
        files = [launch.comfyui / word for word in launch.launcher]
        words += [str(file) if file.is_file() else file.name for file in files]
    words += ["--listen", "127.0.0.1", "--port", str(port), "--base-directory", str(launch.base)]
    words += ["--extra-model-paths-config", str(_paths_file(launch))]
    if host_has_option(launch.comfyui, "--database-url"):
        database = launch.base / "user" / "comfyui.db"  # the host's own default lies inside its tree
        words += ["--database-url", f"sqlite:///{database.as_posix()}"]
    return words + list(launch.args)


def host_has_option(comfyui: Path, option: str) -> bool:
    """Whether this host knows a command line option, by the text of the file that declares them."""
    declared = comfyui / "comfy" / "cli_args.py"
    return f'"{option}"' in declared.read_text(encoding="utf-8") if declared.is_file() else False


def environment(launch: Launch) -> dict[str, str]:
    """The server's environment: ours, without what would steer it from outside."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("STAGEXEC_")}
    env.pop("COMFYUI_PATH", None)
    if launch.ours and (root := checkout_root()) is not None:
        # The code under test is the code of this checkout, whatever else is installed.
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), env.get("PYTHONPATH"))))
    env["PYTHONUNBUFFERED"] = "1"
    env["PYTHONIOENCODING"] = "utf-8"
    if launch.hash_seed is not None:
        env["PYTHONHASHSEED"] = str(launch.hash_seed)
    return {**env, **launch.env}


def _own_group() -> dict[str, Any]:
    """A process group of its own: a Ctrl-C in our terminal is ours to pass on."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN and not blocked:
        return {"start_new_session": True}
    # Started by a shell in the background we ignore Ctrl-C, a worker of Ray blocks it; so would the server.
    return {"start_new_session": True, "preexec_fn": _heed_interrupts}


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
