"""What is done to a living server: each act posts prompts, does its harm, and says what went wrong."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

from stagexec.reading import store
from tests.chaos.pack import hostile
from tests.chaos.played import Posted
from tests.chaos.site import Site
from tests.host import graphs

RECOVER_S = 1.7
"""The writer tries a disk again each second, and a deed lasts one and a half."""

DISKS = ("full", "read_only", "slow", "broken", "stale")
PLACES = ("ledger", "output", "both")
FILES = ("gone", "ledger_gone", "replaced", "truncated", "moved")
CLOCKS = ("step", "suspend")
WIRES = ("upload_cut", "prompt_cut", "client_vanishes", "client_deaf")

RUINS = frozenset({"closed_streams"})
"""After these a stock host refuses prompts as well: what is asked is that nothing accepted is missing."""

ALL = (
    *(f"deed {name}" for name in hostile.SURVIVED),
    *(f"disk {how} {place}" for how in DISKS for place in PLACES),
    *(f"file {how}" for how in FILES),
    *(f"clock {how}" for how in CLOCKS),
    *(f"wire {how}" for how in WIRES),
    "stop",
)
"""Every act by name."""


def needs_shim(act: str) -> bool:
    """Whether the act is one of the fault layer."""
    return act.startswith(("disk", "clock"))


def do(act: str, site: Site, source: random.Random) -> list[str]:
    """Do it, wait until all is over; the troubles, in words."""
    kind, *more = act.split()
    return DOERS[kind](site, source, *more)


def deed(site: Site, source: random.Random, name: str) -> list[str]:
    """A node does it; a prompt that is accepted meanwhile must be in the ledger too."""
    before = list(site.posted)
    one = site.post(hostile_prompt(site, name), f"deed {name}")
    beside = site.post(site.small(), f"beside {name}")
    if name == "no_ledger":
        _taken(site, [*before, one, beside])
    time.sleep(RECOVER_S)
    troubles = site.wait_closed([one, beside])
    return troubles if name in RUINS else troubles + site.probe()


def hostile_prompt(site: Site, name: str) -> graphs.Prompt:
    """A prompt that does one of the deeds."""
    label = site.label()
    return graphs.line(
        graphs.empty(label), graphs.node("ChaosHostile", image=["1", 0], deed=name, label=label)
    )


def disk(site: Site, source: random.Random, how: str, place: str) -> list[str]:
    """The disk goes wrong under a prompt that saves, stays so for two more, and is well again."""
    assert site.layer is not None
    running = site.post(graphs.slow(source.uniform(0.2, 0.8), color=site.label()), f"{how} while it ran")
    time.sleep(source.uniform(0.0, 0.5))
    if place != "output":
        site.layer.injure(how, site.ledger)
    if place != "ledger":
        site.layer.injure(how, site.output, 1)
    within = [
        site.post(site.small(), f"{how} under {place}"),
        site.post(delivery(site), f"{how} under {place}"),
    ]
    time.sleep(source.uniform(0.2, 1.5))
    site.layer.heal()
    time.sleep(RECOVER_S)
    return site.wait_closed([running, *within]) + site.probe()


def file(site: Site, source: random.Random, how: str) -> list[str]:
    """Another program takes or changes the journal's file."""
    running = site.post(graphs.slow(source.uniform(0.3, 0.8), color=site.label()), f"{how} while it ran")
    waiting = site.post(site.small(), f"{how} while it waited")
    time.sleep(source.uniform(0.0, 0.4))
    pid = site.server.pid
    (journal,) = site.ledger.glob(f"journal/*/*-{pid}-*.jsonl")
    before = time.perf_counter_ns()
    with contextlib.suppress(FileNotFoundError):
        _FILES[how](site, journal)
    if how != "replaced":
        site.allowed |= {"torn_middle"}
        _taken(site, [one for one in site.posted if one.answered_ns is None or one.answered_ns < before])
    time.sleep(RECOVER_S)
    return site.wait_closed([running, waiting]) + site.probe()


def _replaced(site: Site, journal: Path) -> None:
    copy = journal.with_suffix(".copy")
    for _ in range(50):
        shutil.copyfile(journal, copy)
        if copy.stat().st_size == journal.stat().st_size:
            break
    os.replace(copy, journal)


_FILES: dict[str, Callable[[Site, Path], object]] = {
    "gone": lambda site, journal: journal.unlink(),
    "ledger_gone": lambda site, journal: shutil.rmtree(site.ledger),
    "moved": lambda site, journal: site.ledger.rename(site.ledger.with_name(f"ledger-{site.label()}")),
    "truncated": lambda site, journal: os.truncate(journal, journal.stat().st_size // 2),
    "replaced": _replaced,
}


def _taken(site: Site, ones: list[Posted]) -> None:
    """Lines of these prompts are gone: those that had ended need not be there, the others need not add up."""
    for one in ones:
        one.exact = False
        over = one.prompt_id in site.earlier or one.closed_ns is not None
        one.must = one.must and not over and not site.in_history(one)


def clock(site: Site, source: random.Random, how: str) -> list[str]:
    """The wall clock is moved under a run, or the machine slept; its reader is moved with it."""
    assert site.layer is not None
    away = 3600.0 if how == "suspend" else source.choice((-86400.0, -3600.0, 3600.0, 86400.0))
    first = site.post(graphs.slow(0.6, color=site.label()), how)
    time.sleep(0.2)
    site.layer.step(wall_s=away, boot_s=away if how == "suspend" else 0.0)
    troubles = site.wait_closed([first])
    long = site.post(graphs.slow(2.0, color=site.label()), f"after {how}")
    time.sleep(1.0)
    runs = store.load(site.ledger, time.time_ns() + round(away * 1e9)).runs
    told = {run.prompt_id: run.outcome for run in runs}
    if told.get(long.prompt_id, "nothing") is not None:
        troubles.append(
            f"a run that is under way is told as {told.get(long.prompt_id)} after the clock's {how}"
        )
    troubles += site.wait_closed([long]) + site.probe()
    site.layer.step()
    return troubles


def stop(site: Site, source: random.Random) -> list[str]:
    """The process stands still for a while, as in a paused container; nothing is dead."""
    one = site.post(graphs.slow(0.8, color=site.label()), "stopped")
    time.sleep(source.uniform(0.0, 0.5))
    os.kill(site.server.pid, signal.SIGSTOP)
    try:
        time.sleep(source.uniform(0.5, 2.0))
        runs = store.load(site.ledger, time.time_ns() + 12_000_000_000).runs
        lost = [run for run in runs if run.prompt_id == one.prompt_id and run.outcome == "lost"]
    finally:
        os.kill(site.server.pid, signal.SIGCONT)
    troubles = ["a run of a stopped process is told as lost"] if lost else []
    return troubles + site.wait_closed([one]) + site.probe()


def wire(site: Site, source: random.Random, how: str) -> list[str]:
    """A client ends in mid-sentence, or does not listen."""
    return {
        "upload_cut": _upload_cut,
        "prompt_cut": _prompt_cut,
        "client_vanishes": _client_vanishes,
        "client_deaf": _client_deaf,
    }[how](site, source) + site.probe()


def _upload_cut(site: Site, source: random.Random) -> list[str]:
    head = (
        b'--cut\r\nContent-Disposition: form-data; name="image"; filename="cut.png"\r\n'
        b"Content-Type: image/png\r\n\r\n"
    )
    body = head + bytes(2_000_000)
    _half(site, "/upload/image", b"multipart/form-data; boundary=cut", body, source)
    return []


def _prompt_cut(site: Site, source: random.Random) -> list[str]:
    body = json.dumps({"prompt": site.small(), "client_id": "cut"}).encode()
    _half(site, "/prompt", b"application/json", body, source)
    return []


def _half(site: Site, path: str, kind: bytes, body: bytes, source: random.Random) -> None:
    with socket.create_connection(("127.0.0.1", site.server.port), 10) as one:
        head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
        one.sendall(
            head % (path.encode(), kind, len(body)) + body[: int(len(body) * source.uniform(0.1, 0.9))]
        )
        _no_farewell(one)


def _no_farewell(one: socket.socket) -> None:
    """Closing it now sends a reset, as a pulled plug's first packet afterwards does."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _listener(site: Site) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", site.server.port), 10)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    key = base64.b64encode(os.urandom(16))
    one.sendall(
        b"GET /ws?clientId=chaos HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n"
    )
    one.recv(200)
    return one


def _client_vanishes(site: Site, source: random.Random) -> list[str]:
    one = _listener(site)
    posted = site.post(hostile_prompt(site, "huge_text"), "its client vanishes")
    one.sendall(b"\x81\xfe\x01\x00half a frame")
    time.sleep(source.uniform(0.0, 0.3))
    _no_farewell(one)
    one.close()
    return site.wait_closed([posted])


def _client_deaf(site: Site, source: random.Random) -> list[str]:
    with _listener(site) as one:
        posted = [site.post(hostile_prompt(site, "huge_text"), "its client is deaf") for _ in range(2)]
        troubles = site.wait_closed(posted)
        _no_farewell(one)
    return troubles


def delivery(site: Site, frames: int = 8, size: int = 64) -> graphs.Prompt:
    """Noise → our Encode Video → our Deliver."""
    settings = {
        "fps": 8.0, "codec": "libx264", "preset": "ultrafast", "quality": -1, "pixel_format": "yuv420p",
        "filters": "", "container": "mp4", "threads": 0, "hwaccel": "none",
    }  # fmt: skip
    return graphs.line(
        graphs.noise(size, batch=frames, seed=site.label()),
        graphs.node("StagexecEncodeVideo", images=["1", 0], **settings),
        graphs.node(
            "StagexecDeliver", artifact=["2", 0], filename_prefix="deliver", destination="", overwrite=False
        ),
    )


def post_beside(site: Site, prompt: graphs.Prompt, kind: str) -> threading.Thread:
    """Post on a thread: a server whose interpreter is held does not answer."""
    thread = threading.Thread(target=site.post, args=(prompt, kind, 6.0), daemon=True)
    thread.start()
    return thread


DOERS: dict[str, Callable[..., list[str]]] = {
    "deed": deed, "disk": disk, "file": file, "clock": clock, "wire": wire, "stop": stop,
}  # fmt: skip
