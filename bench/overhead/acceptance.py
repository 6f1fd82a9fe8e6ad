"""How long a POST of a prompt takes under us and under stock ComfyUI: each acceptance is on the disk first.

`python bench/overhead/acceptance.py [--posts N] [--out FILE]`. Two servers of one machine take turns, one
POST each, while their workers execute. Every sample is kept in FILE.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import statistics
import sys
import tempfile
import time
from typing import Any

import workflow

from stagexec.bench import client, lab, setup

PAUSE_S = 0.03
"""Between two POSTs, so that one worker's prompt is over before the other server is asked."""


def prompt(number: int) -> dict[str, Any]:
    """A small prompt that no cache holds."""
    size = {"width": 64, "height": 64, "batch_size": 1, "color": number}
    return {
        "1": {"class_type": "EmptyImage", "inputs": size},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
    }


def post(server: lab.Server, number: int) -> float:
    """Milliseconds from the request to its answer."""
    start = time.perf_counter()
    client.http_json(server.url, "POST", "/prompt", {"prompt": prompt(number)})
    return (time.perf_counter() - start) * 1e3


def measure(where: workflow.Place, posts: int) -> dict[str, list[float]]:
    """Milliseconds of each POST by arm; the first twenty of each are not counted."""
    times: dict[str, list[float]] = {arm: [] for arm in workflow.ARMS}
    with (
        lab.Server(where.launch("stock", "accept-stock")) as stock,
        lab.Server(where.launch("ours", "accept-ours")) as ours,
    ):
        servers = {"stock": stock, "ours": ours}
        for number in range(posts + 20):
            order = list(servers) if number % 2 else list(reversed(servers))
            for arm in order:
                times[arm].append(post(servers[arm], number))
                time.sleep(PAUSE_S)
    return {arm: found[20:] for arm, found in times.items()}


def main() -> int:
    """Measure, print, keep the samples."""
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--posts", type=int, default=500, help="POSTs counted on each server (500)")
    own.add_argument("--out", type=pathlib.Path, help="file for the samples, JSON")
    own.add_argument("--comfyui", metavar="DIR", help="the ComfyUI folder; by default as for `stagexec demo`")
    asked = own.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            times = measure(workflow.place(scratch, asked.comfyui), asked.posts)
        except (setup.SetupError, lab.ServerDied, client.Refused, client.Unreachable) as problem:
            print(f"acceptance: {problem}", file=sys.stderr)
            return 1
    print(f"POST /prompt, ms ({asked.posts} on each server, in turn):")
    cuts = {arm: statistics.quantiles(found, n=100, method="inclusive") for arm, found in times.items()}
    for percent in (50, 90, 99):
        a, b = (cuts[arm][percent - 1] for arm in ("stock", "ours"))
        print(f"  P{percent}: stock {a:.2f}, ours {b:.2f}, difference {b - a:+.2f}")
    if asked.out is not None:
        kept = {"python": platform.python_version(), "unit": "ms", "posts": times}
        asked.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
