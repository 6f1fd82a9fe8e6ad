"""What the timing mode `events` costs: one stage on a device that is free, and the tiny workflow.

`python bench/overhead/timing_modes.py [--pairs N]`. The workflow runs on two servers of ours that take
turns, one in `baseline`, one in `events`. On a CPU what is compared is the bookkeeping and the memory
readings; on a GPU the events themselves too.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time

import workflow
from stage_cost import per_call_us, show, stage_with_events

from stagexec.bench import lab
from stagexec.bench.stats import paired_ratio

MODES = ("baseline", "events")


def stage() -> None:
    """Print what one stage costs with an event at each of its ends."""
    print("One stage with device events, µs (P50, P90, min):")
    show("enter + leave, device free of charge", per_call_us(stage_with_events()))


def compare(pairs: int, comfyui: str | None) -> None:
    """Print each pair of the tiny workflow and the paired ratio events ÷ baseline."""
    with tempfile.TemporaryDirectory(prefix="stagexec-overhead-", ignore_cleanup_errors=True) as scratch:
        where = workflow.place(scratch, comfyui)
        servers = []
        for mode in MODES:
            launch = where.launch("ours", mode)
            args = (*launch.args, "--stagexec-timing", mode)
            servers.append(lab.Server(dataclasses.replace(launch, args=args)))
        times: dict[str, list[float]] = {mode: [] for mode in MODES}
        with servers[0] as one, servers[1] as two, one.client() as a, two.client() as b:
            browsers = dict(zip(MODES, (a, b), strict=True))
            seed = 5_000
            for _ in range(workflow.WARM_UP):
                for browser in browsers.values():
                    seed += 1
                    workflow.one_run(browser, seed)
            for pair in range(pairs):
                seed += 1
                for mode in MODES if pair % 2 == 0 else MODES[::-1]:
                    times[mode].append(workflow.one_run(browsers[mode], seed))
                print(f"  {pair:>3}: " + ", ".join(f"{m} {times[m][-1] * 1000:.1f} ms" for m in MODES))
        found = paired_ratio(times["events"], times["baseline"])
        assert found is not None
        interval = "too few pairs" if found.low is None else f"{found.low:.3f} to {found.high:.3f}"
        print(f"events ÷ baseline {found.ratio:.3f}, 95% interval {interval}, {found.shown}, n = {found.n}")


if __name__ == "__main__":
    own = argparse.ArgumentParser(description=__doc__)
    own.add_argument("--pairs", type=int, default=20)
    own.add_argument("--comfyui", metavar="DIR")
    asked = own.parse_args()
    start = time.perf_counter()
    stage()
    if asked.pairs:
        compare(asked.pairs, asked.comfyui)
    print(f"took {time.perf_counter() - start:.0f} s")
