"""The tiny workflow under us and under stock ComfyUI, interleaved, and the start-up of both."""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import time

from stagexec.bench import lab
from stagexec.bench.client import Client, Unreachable, http_json
from stagexec.bench.stats import paired_ratio, summarize
from stagexec.cli import demo

WARM_UP = 2
"""Runs of each server that are not counted: the first ones load the model."""

PAUSE_S = 0.2
"""Between two runs, so that what one server does after its run is no load on the other's."""

POLL_S = 0.01
ARMS = {"stock": lab.STOCK, "ours": lab.OURS}


@dataclasses.dataclass
class Place:
    """What the servers have in common. `checkpoints` is the folder of the tiny checkpoint."""

    host: pathlib.Path
    checkpoints: pathlib.Path
    scratch: pathlib.Path

    def launch(self, arm: str, name: str) -> lab.Launch:
        """How a server of this arm starts, in folders of its own."""
        base = self.scratch / name
        return lab.Launch(
            self.host,
            base,
            launcher=ARMS[arm],
            args=demo.device_args(),
            ledger=base / "ledger",
            checkpoints=self.checkpoints,
            hash_seed=0,
        )


def place(scratch: str, comfyui: str | None) -> Place:
    """The host and the checkpoint, made if they are missing."""
    host, checkpoints = demo.prepare(comfyui)
    return Place(host, checkpoints, pathlib.Path(scratch))


def one_run(browser: Client, seed: int) -> float:
    """Seconds from the submission to `executing {node: null}`, on this side of the wire."""
    prompt = demo.workflow(seed)
    start = time.perf_counter()
    browser.wait(browser.submit(prompt))
    took = time.perf_counter() - start
    time.sleep(PAUSE_S)
    return took


def runs(where: Place, pairs: int) -> None:
    """Print every pair and what they come to. Order: A B, B A, A B …; each run has a new seed."""
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    servers = {arm: lab.Server(where.launch(arm, f"run-{arm}")) for arm in ARMS}
    with servers["stock"] as stock, servers["ours"] as ours, stock.client() as a, ours.client() as b:
        browsers = {"stock": a, "ours": b}
        seed = 1_000
        for _ in range(WARM_UP):
            for browser in browsers.values():
                seed += 1
                one_run(browser, seed)
        print(f"Tiny workflow, submission to `executing {{node: null}}`, s ({pairs} interleaved pairs):")
        for pair in range(pairs):
            order = list(ARMS) if pair % 2 == 0 else list(ARMS)[::-1]
            seed += 1  # the same for both: the same work
            for arm in order:
                times[arm].append(one_run(browsers[arm], seed))
            show_pair(pair, order, times)
    show(times)


def startups(where: Place, starts: int) -> None:
    """Print how long each server takes from its start to its first answer. One of each is not counted."""
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    print(f"Start-up, process start to /system_stats, s ({starts} interleaved pairs):")
    for pair in range(-1, starts):
        order = list(ARMS) if pair % 2 == 0 else list(ARMS)[::-1]
        for arm in order:
            took = one_start(lab.Server(where.launch(arm, f"start-{arm}")))
            if pair >= 0:
                times[arm].append(took)
        if pair >= 0:
            show_pair(pair, order, times)
    show(times)


def one_start(server: lab.Server) -> float:
    """Seconds until the server answers; it is stopped again."""
    start = time.perf_counter()
    server.start()
    try:
        while True:
            server.check_alive()
            try:
                http_json(server.url, "GET", "/system_stats", seconds=5.0)
            except Unreachable:
                if time.perf_counter() - start > lab.START_SECONDS:
                    raise lab.ServerDied(f"no answer in time\n{server.tail()}") from None
                time.sleep(POLL_S)
            else:
                return time.perf_counter() - start
    finally:
        server.stop()


def show_pair(pair: int, order: list[str], times: dict[str, list[float]]) -> None:
    """One line of raw figures."""
    stock, ours = times["stock"][-1], times["ours"][-1]
    ratio = f"ratio {ours / stock:.3f}"
    print(f"  pair {pair + 1:>2}  stock {stock:.4f}  ours {ours:.4f}  {ratio}  {order[0]} first", flush=True)


def show(times: dict[str, list[float]]) -> None:
    """What the pairs come to."""
    stock, ours = summarize(times["stock"]), summarize(times["ours"])
    ratio = paired_ratio(times["ours"], times["stock"])
    if stock is None or ours is None or ratio is None:
        return
    print(f"  P50: stock {stock.p50:.4f}, ours {ours.p50:.4f}, ratio of medians {ours.p50 / stock.p50:.3f}")
    interval = "too few pairs for an interval"
    if ratio.low is not None:
        interval = f"95% interval {ratio.low:.3f} to {ratio.high:.3f}"
    print(f"  paired ratio ours ÷ stock {ratio.ratio:.3f}, {interval}, {ratio.shown}   n = {ratio.n} pairs")


def main(pairs: int, starts: int, comfyui: str | None) -> None:
    """Both measurements, in scratch folders that go away."""
    with tempfile.TemporaryDirectory(prefix="stagexec-overhead-", ignore_cleanup_errors=True) as scratch:
        where = place(scratch, comfyui)
        if starts:
            startups(where, starts)
        if pairs:
            runs(where, pairs)
