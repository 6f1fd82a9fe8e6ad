"""Plays a scene on a host in miniature: starts it, posts, injures, kills, and tells what it saw."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil

from stagexec.reading import store
from stagexec.resources import checkout_root
from tests.chaos import scenes, shim, witness
from tests.chaos.played import Played, Posted
from tests.chaos.scenes import Scene, Work

START_S = 20.0
END_S = 25.0
"""A prompt that has not ended so long after its time is stuck."""

SETTLED_NS = 50_000_000
"""A prompt that ended so shortly after a file was taken may have had its last line in it."""

RECOVER_S = 1.7
"""The writer tries a disk again each second."""


class Host:
    """One process of tests.chaos.mini_host."""

    def __init__(self, base: Path, env: dict[str, str], ledger: Path | None = None) -> None:
        self.ledger = ledger or base / "ledger"
        self.output, self.sheet = base / "output", base / "witness"
        self.output.mkdir(parents=True, exist_ok=True)
        witness.sheet(self.sheet)
        words = [sys.executable, "-m", "tests.chaos.mini_host", self.ledger, self.output, self.sheet]
        with (base / "host.log").open("ab") as log:
            self.process = subprocess.Popen(
                list(map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                cwd=checkout_root(), env={**os.environ, **env}, start_new_session=True,
            )  # fmt: skip
        self.ready = threading.Event()
        self.posted: dict[str, Posted] = {}
        self.numbers: dict[int, Posted] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.decode().split()
            if words == ["ready"]:
                self.ready.set()
            elif len(words) == 3 and words[0] == "200" and line.endswith(b"\n"):
                self.posted[words[1]].answered_ns = int(words[2])

    def post(self, work: Work) -> Posted:
        """Send a prompt; whether it is accepted is seen later."""
        one = Posted(str(uuid.uuid4()), work.kind)
        number = len(self.posted)
        self.posted[one.prompt_id] = self.numbers[number] = one
        order = {"id": one.prompt_id, "number": number, "kind": work.kind, "seconds": work.seconds}
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed meanwhile
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
        return one

    def account(self) -> witness.Account:
        """The witness's records so far."""
        return witness.read(self.sheet)

    def settle(self) -> None:
        """Take over what the witness knows of the ends of prompts."""
        account = self.account()
        for number, one in self.numbers.items():
            ends = account.times(witness.DONE, number)
            one.closed_ns = ends[0] if ends else None

    def wait(self, true: Callable[[], bool], seconds: float) -> bool:
        """Whether it came true in time, while the process lived."""
        end = time.monotonic() + seconds
        while not true():
            if time.monotonic() > end or self.process.poll() is not None:
                return true()
            time.sleep(0.001)
        return True

    def all_closed(self) -> bool:
        """Whether all that was posted has ended."""
        self.settle()
        return all(one.closed_ns is not None for one in self.numbers.values())

    def kill(self, whom: str) -> tuple[int, int]:
        """kill -9; the moments before and after."""
        before, after = end_at_once(self.process, whom)
        self._reader.join(5)
        self.settle()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                assert stream is not None
                stream.close()
        return before, after


def end_at_once(process: subprocess.Popen[bytes], whom: str) -> tuple[int, int]:
    """kill -9 of the process, of its group, or of all that it began, that first; before and after, ns."""
    helpers = helpers_of(process.pid) if whom == "all" else []
    before = time.perf_counter_ns()
    for one in helpers:
        with contextlib.suppress(psutil.Error):
            one.kill()
    if whom == "process":
        os.kill(process.pid, signal.SIGKILL)
    else:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return before, time.perf_counter_ns()


def helpers_of(pid: int) -> list[psutil.Process]:
    """The children of `pid`, and what watches it and is its child no more: its words have the number."""
    found = psutil.Process(pid).children(recursive=True)
    for one in psutil.process_iter(["cmdline"]):
        words = one.info["cmdline"] or []
        if str(pid) in words and any("stagexec" in word for word in words) and one not in found:
            found.append(one)
    return found


def play(scene: Scene, base: Path, library: Path | shim.Unavailable) -> Played:
    """The scene, in the folder `base`."""
    base.mkdir(parents=True)
    played = Played(str(scene), scene.kind, base / "ledger", base / "output", [])
    layer = None
    if scene.injury in scenes.NEED_SHIM:
        if isinstance(library, shim.Unavailable):
            played.skipped = str(library)
            return played
        layer = shim.Shim(library, base / "control")
    host = Host(base, layer.environment if layer else {})
    try:
        if scene.moment == "birth":
            time.sleep(scene.delay_s)
        elif not host.wait(host.ready.is_set, START_S):
            played.troubles.append("the host did not start")
        _Play(scene, host, played, layer).run()
    finally:
        if host.process.poll() is None:
            host.kill("all")
        if layer is not None:
            layer.heal()
    if scene.again:
        _again(base, played, layer)
    return played


class _Play:
    def __init__(self, scene: Scene, host: Host, played: Played, layer: shim.Shim | None) -> None:
        self.scene, self.host, self.played, self.layer = scene, host, played, layer

    def run(self) -> None:
        scene, host, played = self.scene, self.host, self.played
        began = time.monotonic()
        poster = threading.Thread(target=self._post, args=(began,), daemon=True)
        poster.start()
        if scene.injury is not None:
            self._injure(began, poster)
        else:
            self._await_moment(poster)
        if scene.moment != "birth":
            time.sleep(scene.delay_s)
        played.killed_ns = host.kill(scene.kill)
        poster.join(10)
        host.settle()
        account = host.account()
        played.pid = host.process.pid
        played.posted = list(host.posted.values())
        played.events_ns = account.times(witness.EVENT)
        played.awake_ns = account.awake_ns()
        played.late_ns = account.lateness_ns(max(played.events_ns, default=0))
        played.times = scene.injury in (None, "stop_kill")

    def _post(self, began: float) -> None:
        for work in sorted(self.scene.works, key=lambda one: one.at_s):
            time.sleep(max(0.0, began + work.at_s - time.monotonic()))
            if self.host.process.poll() is not None:
                return
            self.host.post(work)

    def _await_moment(self, poster: threading.Thread) -> None:
        host, moment = self.host, self.scene.moment
        if moment == "answered":
            poster.join()
            host.wait(lambda: all(one.answered_ns for one in host.posted.values()), 5)
        elif moment in ("holding", "delivering", "closed"):
            kind = {"holding": witness.HOLD, "delivering": witness.DELIVER, "closed": witness.DONE}[moment]
            host.wait(lambda: bool(host.account().times(kind)), 12)

    def _injure(self, began: float, poster: threading.Thread) -> None:
        scene, host, injury = self.scene, self.host, self.scene.injury
        assert injury is not None
        time.sleep(max(0.0, began + scene.injury_at_s - time.monotonic()))
        if injury in scenes.FILES:
            # There must be a file to injure, and a run that was open when it happened.
            host.post(Work("quick", 0.0, 0.0))
            host.wait(lambda: bool(list(host.ledger.glob("journal/*/*.jsonl"))), 5)
        getattr(self, f"_{injury}", self._by_shim)()
        time.sleep(scene.injury_s)
        if injury in scenes.NOT_HEALED:
            return
        if self.layer is not None and not injury.startswith(("wall", "suspend")):
            self.layer.heal()
        poster.join()
        time.sleep(RECOVER_S)
        host.post(Work("quick", 0.0, 0.0))
        host.post(Work("steps", 0.1, 0.0))
        seconds = END_S + sum(work.seconds for work in scene.works)
        if not host.wait(host.all_closed, seconds):
            stuck = [one.kind for one in host.posted.values() if one.closed_ns is None]
            self.played.troubles.append(f"after the injury these never ended: {', '.join(stuck)}")
        if injury in ("wall_step", "suspend"):
            self._told_alive()

    def _by_shim(self) -> None:
        assert self.layer is not None
        assert self.scene.injury is not None
        name = self.scene.injury.removesuffix("_kill")
        if self.scene.number % 2:  # both disks, or the ledger's alone
            self.layer.injure(name, self.host.output, 1)
        self.layer.injure(name, self.host.ledger)

    def _wall_step(self) -> None:
        assert self.layer is not None
        self.layer.step(wall_s=self._away_s)

    @property
    def _away_s(self) -> float:
        """How far the wall clock is moved."""
        steps = (-86400.0, -3600.0, 3600.0, 86400.0)
        return 3600.0 if self.scene.injury == "suspend" else steps[self.scene.number % len(steps)]

    def _suspend(self) -> None:
        assert self.layer is not None
        self.layer.step(wall_s=self._away_s, boot_s=self._away_s)

    def _told_alive(self) -> None:
        """A long run after the step is under way to a reader of the same machine, and not lost."""
        host = self.host
        long = host.post(Work("sleep", 1.0, 0.0))
        host.wait(lambda: bool(host.account().times(witness.STARTED, len(host.posted) - 1)), 5)
        time.sleep(0.1)
        now = time.time_ns() + round(self._away_s * 1e9)
        found = [run for run in store.load(host.ledger, now).runs if run.prompt_id == long.prompt_id]
        if not found or found[0].outcome is not None:
            told = found[0].outcome if found else "nothing"
            self.played.troubles.append(f"a run that is under way is told as {told} after the clock's step")

    def _stop(self) -> None:
        host, pid = self.host, self.host.process.pid
        host.post(Work("sleep", 0.3, 0.0))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.scene.injury_s)
        # Twelve seconds later, as far as the reader knows: what only stands still is not dead.
        for run in store.load(host.ledger, time.time_ns() + 12_000_000_000).runs:
            if run.outcome == "lost":
                self.played.troubles.append("a run of a stopped process is told as lost")
        os.kill(pid, signal.SIGCONT)

    def _stop_kill(self) -> None:
        os.kill(self.host.process.pid, signal.SIGSTOP)

    def _close_ours(self) -> None:
        self.host.post(Work("close_ours", 0.0, 0.0))

    def _close_all(self) -> None:
        self.host.post(Work("close_all", 0.0, 0.0))

    def _gone(self) -> None:
        self._taken(lambda file: file.unlink())

    def _ledger_gone(self) -> None:
        self._taken(lambda file: shutil.rmtree(self.host.ledger))

    def _moved(self) -> None:
        self._taken(lambda file: self.host.ledger.rename(self.host.ledger.with_name("ledger-before")))

    def _truncated(self) -> None:
        share = (0.0, 0.5)[self.scene.number % 2]
        self._taken(lambda file: os.truncate(file, int(file.stat().st_size * share)))
        self.played.allowed |= {"torn_middle"}

    def _taken(self, take: Callable[[Path], object]) -> None:
        """Another program takes lines away: what ended before is gone, what is open has lost some."""
        host = self.host
        (file,) = host.ledger.glob("journal/*/*.jsonl")
        with contextlib.suppress(FileNotFoundError):
            take(file)
        after = time.perf_counter_ns()
        host.settle()
        for one in host.posted.values():
            one.exact = one.answered_ns is not None and one.answered_ns > after
            one.must = one.closed_ns is None or one.closed_ns > after + SETTLED_NS

    def _replaced(self) -> None:
        """By a copy of the same content, as a sync or an editor does; as little as possible comes between."""
        host = self.host
        (file,) = host.ledger.glob("journal/*/*.jsonl")
        copy = file.with_suffix(".copy")
        for _ in range(50):
            shutil.copyfile(file, copy)
            if copy.stat().st_size == file.stat().st_size:
                break
        os.replace(copy, file)


def _again(base: Path, played: Played, layer: shim.Shim | None) -> None:
    """The next prompt runs: a new host on the same ledger."""
    host = Host(base / "again", layer.environment if layer else {}, base / "ledger")
    try:
        host.wait(host.ready.is_set, START_S)
        host.post(Work("steps", 0.1, 0.0))
        if not host.wait(host.all_closed, END_S):
            played.troubles.append("started again, it runs no prompt")
        time.sleep(0.1)
    finally:
        host.kill("process")
    played.posted += host.posted.values()
