"""The real lab: ComfyUI servers under our launcher, each with folders of its own, all in one ledger."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from stagexec.answers import diagnose
from stagexec.bench import arms, checkpoint, lab, load
from stagexec.bench import room as memory
from stagexec.bench.client import Client, Refused, Unreachable
from stagexec.bench.plan import Arm
from stagexec.bench.results import slug
from stagexec.bench.runner import ArmFailed, Observed, SessionLost
from stagexec.reading import conditions, journal, rows
from stagexec.reading.alive import is_alive
from stagexec.reading.fold import fold
from stagexec.reading.runs import Run

NO_OP = {
    "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}},
    "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
}
"""What a server must have run before it counts as ready."""

CLOSE_SECONDS = 60.0
CONDITION_SECONDS = 5.0
NO_OP_SECONDS = 120.0
SECOND_CHECKPOINT = "-b"
"""The tiny checkpoint lies in a server's folder a second time under this suffix: a model to switch to."""

ANSI = re.compile(r"\x1b\[[0-9;]*m")

TELLING = (
    re.compile(r"^\s*(?:\w+\.)*(?:ModuleNotFoundError|ImportError)\b.*"),
    re.compile(r".*\bmust be installed\b.*"),
    re.compile(r".*\berror: .*"),
    re.compile(r"^stagexec: .*"),
    re.compile(r"^\s*(?:\w+\.)*\w*(?:Error|Exception)\b.*"),
)
"""Lines of a log that say why a server ended, the most telling kind first."""

PORT_TAKEN = re.compile(r"(?i)address already in use|Errno 10048")
PORT_TRIES = 3
"""Between our finding a free port and the server's taking it, somebody else may."""

IMPORT_FAILED = re.compile(r"^Cannot import (.*?) module for custom nodes: (.*)$", re.MULTILINE)


@dataclass
class Place:
    """What all servers of a bench have in common."""

    comfyui: Path
    folder: Path
    ledger: Path
    checkpoint: Path | None = None
    models: Path | None = None
    custom_nodes: Sequence[Path] = ()
    python: str = sys.executable
    args: Sequence[str] = ()
    timing: str = "baseline"
    start_seconds: float = lab.START_SECONDS
    workflow: Mapping[str, Any] = field(default_factory=dict)


def machine() -> dict[str, Any]:
    """What names this machine in a result: runs of two machines are never pooled."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    system = f"{platform.system()} {platform.machine()}"
    return {"name": platform.node(), "system": system, "cores": os.cpu_count(), "gpu": gpu}


def random_weights(place: Place) -> list[str]:
    """The workflow's model files whose weights are random, by their own mark."""
    roots = [place.models, place.checkpoint.parent if place.checkpoint else None]
    named = {v for n in place.workflow.values() for v in n["inputs"].values() if isinstance(v, str)}
    names = {Path(name).name for name in named if name.endswith(".safetensors")}
    there = (path for root in filter(None, roots) for path in root.rglob("*.safetensors"))
    return sorted({path.name for path in there if path.name in names and checkpoint.has_random_weights(path)})


@dataclass(frozen=True)
class Opener:
    """Makes the lab of a worker, which has folders of its own."""

    place: Place

    def __call__(self, folder: Path) -> Servers:
        """The lab whose servers write into `folder`."""
        return Servers(replace(self.place, folder=folder, ledger=folder / "ledger"))

    def machine(self) -> dict[str, Any]:
        """The machine it is called on."""
        return machine()


class Servers:
    """A Lab of real servers."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._asked: dict[str, str | None] = {}

    def why_not(self, arm: Arm, args: Sequence[str]) -> str | None:
        """Why an arm cannot run here: tree, option, package, device or model file that is missing."""
        tree = Path(arm.comfyui) if arm.comfyui else self.place.comfyui
        if not (tree / "main.py").is_file():
            return f"{tree} is no ComfyUI tree"
        python = arm.python or self.place.python
        if shutil.which(python) is None:
            return f"there is no Python at {python}"
        option = arms.unknown_option(args, lambda name: lab.host_has_option(tree, name))
        if option is not None:
            return f"this ComfyUI has no option {option}"
        key = repr((arm.needs, python))
        if key not in self._asked:
            roots = [root for root in (self.place.models, tree / "models") if root is not None]
            self._asked[key] = arms.missing_needs(arm.needs, python, roots)
        return self._asked[key]

    def open(
        self, arm: Arm, args: Sequence[str], cold: bool, page_cache: str
    ) -> tuple[RealSession, dict[str, Any]]:
        """A server that answers and, unless it is to be cold, has run a no-op."""
        facts: dict[str, Any] = {
            "page_cache": self._drop_page_cache() if page_cache == "drop" else "as it was"
        }
        devices = memory.device_bytes()
        for tries_left in reversed(range(PORT_TRIES)):
            began = time.perf_counter_ns()
            session = self._session(arm, args)
            session.devices_before = devices
            server = session.server
            try:
                server.start().wait_ready(self.place.start_seconds)
                facts["ready_ns"] = time.perf_counter_ns() - began
                session.connect()
                session.check_classes(arm.needs.classes)
                if not cold:
                    session.no_op()
                break
            except (lab.ServerDied, Unreachable, Refused, TimeoutError) as problem:
                text = clear_line(server.log()) or str(problem).splitlines()[0]
                session.close()
                if not (tries_left and PORT_TAKEN.search(text)):
                    raise ArmFailed(text) from None
            except BaseException:
                session.close()
                raise
        failed = IMPORT_FAILED.findall(server.log())
        facts["packs_not_imported"] = [f"{Path(name).name}: {why}" for name, why in failed]
        return session, {**facts, "pid": server.pid, "log": f"logs/{session.log_name}"}

    def _session(self, arm: Arm, args: Sequence[str]) -> RealSession:
        base = Path(tempfile.mkdtemp(prefix=f"server-{slug(arm.name)}-", dir=self._servers_folder()))
        return RealSession(lab.Server(self._launch(arm, args, base)), self.place, arm)

    def _servers_folder(self) -> Path:
        folder = self.place.folder / "servers"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _launch(self, arm: Arm, args: Sequence[str], base: Path) -> lab.Launch:
        place = self.place
        if place.checkpoint is not None:
            _second_name(place.checkpoint, base)
        timing = () if place.timing == "baseline" else ("--stagexec-timing", place.timing)
        return lab.Launch(
            comfyui=Path(arm.comfyui) if arm.comfyui else place.comfyui,
            base=base,
            python=arm.python or place.python,
            args=(*place.args, *timing, *args),
            ledger=place.ledger,
            checkpoints=place.checkpoint.parent if place.checkpoint else None,
            custom_nodes=place.custom_nodes,
            models=place.models,
            env=arm.env,
        )

    def _drop_page_cache(self) -> str:
        """Ask the system to forget the workflow's model files; what became of it, in words."""
        if not hasattr(os, "posix_fadvise"):
            return "could not be dropped: this system has no call for it"
        roots = [self.place.models, self.place.checkpoint.parent if self.place.checkpoint else None]
        named = {v for n in self.place.workflow.values() for v in n["inputs"].values() if isinstance(v, str)}
        count = size = 0
        for root in filter(None, roots):
            for path in root.rglob("*"):
                if path.name in named and path.is_file():
                    with path.open("rb") as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    count, size = count + 1, size + path.stat().st_size
        return f"asked to drop {count} model files, {size} bytes"


def _second_name(checkpoint: Path, base: Path) -> None:
    target = base / "models" / "checkpoints" / f"{checkpoint.stem}{SECOND_CHECKPOINT}{checkpoint.suffix}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # without it only the model switch is refused, in its own words
        os.symlink(checkpoint.resolve(), target)


def clear_line(log: str) -> str | None:
    """The line of a log that says best why the server ended; None of an empty log."""
    lines = [line.strip() for line in ANSI.sub("", log).splitlines() if line.strip()]
    for pattern in TELLING:
        for line in reversed(lines):
            if pattern.match(line):
                return line
    return lines[-1] if lines else None


def refusal(problem: Refused) -> str:
    """What the server says against a workflow, in one line."""
    body = problem.body if isinstance(problem.body, dict) else {}
    for node_id, node in (body.get("node_errors") or {}).items():
        for error in node.get("errors", ()):
            text = (
                f"node {node_id} ({node.get('class_type')}): {error.get('message')}: {error.get('details')}"
            )
            return f"the server refused the workflow: {text}"
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else error or problem.body
    return f"the server refused the workflow: {' '.join(str(message).split())}"


class RealSession:
    """One real server and our connection to it."""

    def __init__(self, server: lab.Server, place: Place, arm: Arm) -> None:
        self.server, self.place, self.arm = server, place, arm
        self.log_name = f"{server.base.name}.log"
        self._load = load.Meter()
        self._meters: dict[str, load.Meter] = {}
        """Prompt id -> what counts the machine's other work since it was queued."""
        self.devices_before: dict[str, int] = {}
        self._client: Client | None = None
        self._condition_seconds = CONDITION_SECONDS

    def connect(self) -> None:
        """Open the websocket."""
        self._client = self.server.client()

    @property
    def client(self) -> Client:
        """The connection; SessionLost before `connect`."""
        if self._client is None:
            raise SessionLost("there is no connection to the server")
        return self._client

    def check_classes(self, names: Sequence[str]) -> None:
        """Raise ArmFailed when the server has no node of one of these classes."""
        for name in names:
            if not self.client.get(f"/object_info/{name}"):
                raise ArmFailed(f"this server has no node class {name}")

    def no_op(self) -> None:
        """Run a picture of eight by eight pixels through the executor."""
        entry = self.client.run(NO_OP, NO_OP_SECONDS)
        if entry.get("status", {}).get("status_str") != "success":
            raise ArmFailed(f"the server's executor failed at a no-op: {clear_line(self.server.log())}")

    def submit(self, prompt: arms.Prompt, until: str) -> str:
        """Queue a prompt; its prompt id."""
        extra = {} if until == "delivery" else {"stagexec.until": until}
        meter = load.Meter()
        try:
            prompt_id = self.client.submit(prompt, extra_data=extra)
            self._meters[prompt_id] = meter
            return prompt_id
        except Refused as problem:
            raise ArmFailed(refusal(problem)) from None
        except Unreachable as problem:
            raise self._lost(problem, None) from None

    def result(self, prompt_id: str, seconds: float) -> Observed:
        """Wait for the end of the run and read it from the ledger."""
        try:
            self.client.wait(prompt_id, seconds)
        except TimeoutError:
            self.server.kill()
            text = f"the run had not ended after {seconds:.0f} s"
            raise SessionLost(text, self._last_sight(prompt_id)) from None
        except Unreachable as problem:
            raise self._lost(problem, prompt_id) from None
        meter = self._meters.pop(prompt_id, None)
        around = meter.around() if meter is not None else {}
        return replace(self._observed(self._closed(prompt_id)), around=around)

    def room(self, more: int) -> memory.Room:
        """Whether `more` servers like this one may live beside it, by what it takes after its warm-ups."""
        import psutil  # type: ignore[import-untyped]

        on_device = "--cpu" not in self.place.args and machine()["gpu"] is not None
        try:
            found = memory.measure(self.server.pid, self.devices_before, on_device)
        except (psutil.Error, lab.ServerDied) as problem:
            return memory.Room(False, f"what a server takes could not be read: {problem}")
        if found is None:
            return memory.Room(False, "what a server takes of the device's memory cannot be read (no NVML)")
        return memory.judge(found, more)

    def settle(self) -> None:
        """Ask for models and caches to be dropped; the host does it before its next prompt."""
        try:
            self.client.free()
        except (Unreachable, Refused) as problem:
            raise self._lost(problem, None) from None

    def log(self) -> str:
        """What the server has printed, without its colours."""
        return ANSI.sub("", self.server.log())

    def close(self) -> dict[str, Any]:
        """Stop the server, keep its log, remove its folder; what is to be kept of its life."""
        facts = {"others_cpu": round(self._load.others(), 3)}
        if self._client is not None:
            self._client.close()
        if self.server.process is not None:
            self.server.stop()
        logs = self.place.folder / "logs"
        try:
            logs.mkdir(exist_ok=True)
            if self.server.log_file.exists():
                shutil.copyfile(self.server.log_file, logs / self.log_name)
        finally:  # a full disk is no reason to leave more on it
            shutil.rmtree(self.server.base, ignore_errors=True)
        return facts

    # --- reading ---

    def _lost(self, problem: Exception, prompt_id: str | None) -> SessionLost:
        try:
            self.server.check_alive()
        except lab.ServerDied:
            code = self.server.process.returncode if self.server.process else None
            text = f"the server ended with code {code}: {clear_line(self.server.log())}"
            return SessionLost(text, self._last_sight(prompt_id) if prompt_id else None)
        return SessionLost(" ".join(str(problem).split()))

    def _last_sight(self, prompt_id: str) -> Observed | None:
        run = self._find(prompt_id)
        return self._observed(run) if run is not None and run.outcome is not None else None

    def _closed(self, prompt_id: str) -> Run:
        """The run once its last delivery check and, where it comes, its condition are in the journal."""
        end = time.monotonic() + CLOSE_SECONDS
        condition_end: float | None = None
        while True:
            run = self._find(prompt_id)
            now = time.monotonic()
            if run is not None and run.outcome is not None:
                condition_end = condition_end or now + self._condition_seconds
                if run.missing is not None:
                    return run
                if now >= condition_end:
                    # A host that closes its runs without a condition event is not waited for again.
                    self._condition_seconds = 0.0
                    return run
            if now > end:
                raise SessionLost(f"prompt {prompt_id} was never closed in the ledger")
            time.sleep(0.02)

    def _find(self, prompt_id: str) -> Run | None:
        """The run in this server's own journal: other servers' journals need not be read."""
        mark = f"-{self.server.pid}-"
        for source in journal.sources(self.place.ledger):
            if mark in source.name:
                for run in fold(source, time.time_ns(), is_alive):
                    if run.prompt_id == prompt_id:
                        return run
        return None

    def _observed(self, run: Run) -> Observed:
        detail = rows.detail(run)
        start = run.process.start
        detail["argv"] = start.argv if start else None
        detail["until"] = run.accepted.until if run.accepted else None
        detail["diagnoses"] = msgspec.to_builtins(diagnose.diagnose(run))
        known = conditions.manifest(self.place.ledger, run.condition_id)
        media = [a for a in detail["artifacts"] if a["path"] and a["media"] in ("image", "video")]
        files = [Path(a["path"]) for a in media if Path(a["path"]).is_file()]
        return Observed(detail, known.fields if known else None, files)
