"""Lives of a real ComfyUI: harm that it survives, then an end, then the next life on the same ledger."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import psutil

from stagexec.bench import lab
from stagexec.delivery.verify import verify
from tests.chaos import acts, checks, witness
from tests.chaos.mini import end_at_once
from tests.chaos.pack import hostile
from tests.chaos.played import Loss, Played
from tests.chaos.site import Site
from tests.host import graphs

if TYPE_CHECKING:
    from tests.chaos.__main__ import Chaos

ACTS = 3
"""So much is done to a server before it ends."""

MOMENTS = (
    "answered", "answered", "holding", "holding", "encoding", "saving", "starting", "waiting", "steps",
    "recreated", "steps",
)  # fmt: skip
WHOM = ("process", "group", "all")
SIGNALS = {
    "TERM": (signal.SIGTERM,),
    "HUP": (signal.SIGHUP,),
    "INT": (signal.SIGINT,),
    "INT twice": (signal.SIGINT, signal.SIGINT),
    "QUIT": (signal.SIGQUIT,),
}  # fmt: skip
PLANNED = ("TERM", "HUP", "INT", "INT twice")
"""Signals that ask a process to end."""

ENDED_S = 30.0


@dataclasses.dataclass(frozen=True)
class Life:
    """What one process goes through: acts, and an end `delay_s` after a moment."""

    number: int
    acts: tuple[str, ...]
    moment: str
    end: str
    delay_s: float

    def __str__(self) -> str:
        done = ", ".join(self.acts) or "no act"
        return f"life {self.number}: {done} | {self.end}, {self.delay_s * 1000:.0f} ms after: {self.moment}"


def draw(seed: int, number: int) -> Life:
    """The life of that number."""
    source = random.Random(f"{seed}:life:{number}")
    chosen = tuple(source.sample(acts.ALL, ACTS))
    # What a stock host does not get over comes last.
    chosen = tuple(sorted(chosen, key=lambda act: act.rpartition(" ")[2] in acts.RUINS))
    moment = source.choice(MOMENTS)
    delay = source.uniform(0.0, 0.05) if moment == "answered" else source.uniform(0.0, 1.2)
    roll = source.random()
    end = f"kill -9 of {source.choice(WHOM)}"
    if roll > 0.85:
        end, moment, delay = f"deed {source.choice(list(hostile.ENDS))}", "waiting", 0.0
    elif roll > 0.6:
        end = f"signal {source.choice(list(SIGNALS))}"
        if moment == "holding":  # Python's handlers wait for the lock: the host's own end is late as well
            moment = "steps"
    return Life(number, chosen, moment, end, delay)


def play_all(chaos: Chaos, count: int) -> None:
    """Play so many lives, one after the other, each on the ledger of those before."""
    site: Site | None = None
    for number in range(count):
        if time.monotonic() > chaos.end:
            chaos.left_out += count - number
            break
        life = draw(chaos.seed, number)
        if site is None or number % 6 == 0:  # a ledger of its own for some lives: a reading costs time
            site = Site(chaos.folder / f"site-{number}", chaos.library)
        play(life, site, chaos)


def play(life: Life, site: Site, chaos: Chaos) -> None:
    """One life; what is lost goes to the tally after each act, and after the end."""
    source = random.Random(f"{chaos.seed}:life:{life.number}:play")
    began = len(site.posted)
    try:
        site.start()
    except lab.ServerDied as problem:
        tell(
            chaos, life, site, Played(str(life), "start", site.ledger, site.output, []), began, [str(problem)]
        )
        return
    try:
        for act in life.acts:
            began = len(site.posted)
            one_act(act, life, site, chaos, source)
        began = len(site.posted)
        played = finish(life, site, source)
        tell(chaos, life, site, played, began, [])
    finally:
        if site.lives():
            site.server.kill()


def one_act(act: str, life: Life, site: Site, chaos: Chaos, source: random.Random) -> None:
    """Do an act and look what it cost."""
    began = len(site.posted)
    played = Played(f"{life} [{act}]", act, site.ledger, site.output, [])
    if acts.needs_shim(act) and site.layer is None:
        played.skipped = str(chaos.library)
        chaos.tally.add("in a ComfyUI", played, [])
        return
    troubles = acts.do(act, site, source)
    if site.lives() and act.rpartition(" ")[2] not in acts.RUINS:
        missing = {
            one.prompt_id for one in site.posted if one.must and one.answered_ns
        } - site.answered_by_http()
        troubles += [f"{len(missing)} accepted prompts are not told by /stagexec/runs"] if missing else []
    elif not site.lives():
        troubles.append("the process ended")
    tell(chaos, life, site, played, began, troubles)
    if troubles and not act.startswith("clock"):  # what comes next is to be judged by itself
        if site.lives():
            site.server.kill()
        site.start()


def tell(chaos: Chaos, life: Life, site: Site, played: Played, began: int, troubles: list[str]) -> None:
    """Check the whole ledger, count the prompts since `began`, keep each loss once."""
    played.posted, played.troubles = site.posted, played.troubles + troubles
    played.allowed |= site.allowed
    found = checks.losses(played) + list(partial_files(played))
    if played.killed_ns is not None:
        found += checks.command_losses(site.ledger, [played])
    # The whole ledger is read each time: what an earlier act cost is told once.
    known = {(loss.kind, loss.what) for loss in chaos.tally.losses if loss.kind != "stuck"}
    losses = [loss for loss in found if (loss.kind, loss.what) not in known]
    counted = dataclasses.replace(played, posted=site.posted[began:])
    chaos.tally.add("in a ComfyUI", counted, losses)
    if losses or chaos.loud:
        chaos.tell(played.name, losses)


def partial_files(played: Played) -> Iterator[Loss]:
    """Files that our Deliver named must be whole videos."""
    for path in sorted(played.output.glob("deliver*.mp4")):
        check = verify(path)
        if check.state != "verified":
            yield Loss(played.name, "partial_file", f"{path.name}: {check.state}, {check.reason}")


def finish(life: Life, site: Site, source: random.Random) -> Played:
    """Bring the server to the moment, and end it."""
    pid = site.server.pid
    played = Played(
        str(life), f"ended: {life.end.partition(' ')[0]} while {life.moment}", site.ledger, site.output, []
    )
    posts = to_moment(life.moment, site, source)
    time.sleep(life.delay_s)
    if life.end.startswith("kill"):
        assert site.server.process is not None
        played.killed_ns = end_at_once(site.server.process, life.end.rpartition(" ")[2])
    else:
        played.killed_ns = ended(life.end, site, played)
    for thread in posts:
        thread.join(10)
    account = witness.read(site.sheet)
    played.pid = pid
    played.events_ns = account.times(witness.EVENT)
    played.awake_ns = account.awake_ns()
    played.late_ns = account.lateness_ns(max(played.events_ns, default=0))
    played.planned = life.end.startswith("signal") and life.end.partition(" ")[2] in PLANNED
    return played


def ended(end: str, site: Site, played: Played) -> tuple[int, int]:
    """Ask the process to end, or let a node end it; between which moments it did."""
    kind, _, what = end.partition(" ")
    before = time.perf_counter_ns()
    if kind == "deed":
        acts.post_beside(site, acts.hostile_prompt(site, what), end).join(10)
    for number in SIGNALS.get(what, ()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(site.server.pid, number)
        time.sleep(0.05)
    try:
        site.server.wait_end(ENDED_S)
    except subprocess.TimeoutExpired:
        played.troubles.append(f"after {end} the process lives on")
        site.server.kill()
    played.times = False  # when it died between the two is not known
    return before, time.perf_counter_ns()


def to_moment(moment: str, site: Site, source: random.Random) -> list[object]:
    """Post what leads to the moment, and return when it is there; the threads that still post."""
    return MOMENT_OF[moment](site, source) or []


def _answered(site: Site, source: random.Random) -> None:
    site.post(graphs.slow(source.uniform(0.1, 3.0), color=site.label()), "runs at the end")
    for _ in range(source.randint(1, 3)):
        site.post(site.small(), "answered just before the end")


def _holding(site: Site, source: random.Random) -> list[object]:
    how, label = source.choice(("sleep", "pattern")), site.label()
    hold = graphs.node("ChaosHold", image=["1", 0], seconds=source.uniform(3.0, 5.0), label=label, how=how)
    site.post(
        graphs.line(graphs.empty(label), hold, graphs.save(["2", 0], "held")), f"holds the lock ({how})"
    )
    threads = [acts.post_beside(site, site.small(), "posted while the lock is held")]
    site.wait(lambda: bool(witness.read(site.sheet).times(witness.HOLD)), 20, 0.005)
    return [*threads, acts.post_beside(site, site.small(), "posted while the lock is held")]


def _encoding(site: Site, source: random.Random) -> None:
    site.post(acts.delivery(site, frames=60, size=384), "encodes at the end")
    host = psutil.Process(site.server.pid)
    site.wait(lambda: any("ffmpeg" in one.name() for one in _children(host)), 20, 0.01)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _saving(site: Site, source: random.Random) -> None:
    label = site.label()
    prompt = graphs.line(graphs.noise(384, batch=30, seed=label), graphs.save(["1", 0], f"many-{label}"))
    site.post(prompt, "saves at the end")
    site.wait(lambda: any(site.output.glob(f"many-{label}*")), 20, 0.01)


def _starting(site: Site, source: random.Random) -> None:
    site.post(graphs.chain(300, color=site.label()), "starts at the end")


def _waiting(site: Site, source: random.Random) -> None:
    site.post(graphs.slow(4.0, color=site.label()), "runs at the end")
    for _ in range(source.randint(2, 5)):
        site.post(site.small(), "waits at the end")


def _steps(site: Site, source: random.Random) -> None:
    label = site.label()
    steps = graphs.node("ChaosSteps", image=["1", 0], seconds=4.0, label=label)
    site.post(graphs.line(graphs.empty(label), steps, graphs.save(["2", 0], "steps")), "steps at the end")
    site.wait(lambda: bool(witness.read(site.sheet).times(witness.EVENT)), 20, 0.005)


def _recreated(site: Site, source: random.Random) -> None:
    running = site.post(graphs.slow(6.0, color=site.label()), "runs while its file is removed")
    waiting = site.post(site.small(), "waits while its file is removed")
    site.ledger.rename(site.ledger.with_name(f"ledger-{site.label()}"))
    for one in site.posted:
        one.must, one.exact = one in (running, waiting), False
    time.sleep(1.3)
    site.post(site.small(), "posted after the file was removed")


MOMENT_OF: dict[str, Callable[[Site, random.Random], list[object] | None]] = {
    "answered": _answered, "holding": _holding, "encoding": _encoding, "saving": _saving,
    "starting": _starting, "waiting": _waiting, "steps": _steps, "recreated": _recreated,
}  # fmt: skip
