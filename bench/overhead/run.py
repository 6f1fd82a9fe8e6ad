"""Our own cost on this machine: `make overhead`, or `python bench/overhead/run.py [--pairs N] [--starts N]`.

Every figure is printed with its n. The workflow and the start-up are compared with stock ComfyUI, both
servers of one machine, taking turns. Nothing else should run meanwhile: the load is printed first.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys

import graphs
import stage_cost
import workflow

from stagexec.bench import client, lab, setup


def main() -> int:
    """Measure and print; exit code 1 when a server did not do its part."""
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--pairs", type=int, default=10, help="pairs of the tiny workflow (10; 0: none)")
    own.add_argument("--starts", type=int, default=3, help="pairs of starts (3; 0: none)")
    own.add_argument("--comfyui", metavar="DIR", help="the ComfyUI folder; by default as for `stagexec demo`")
    own.add_argument("--graphs", action="store_true", help="also time per node as graphs grow (graphs.py)")
    asked = own.parse_args()
    load = f", load {os.getloadavg()[0]:.2f}" if hasattr(os, "getloadavg") else ""
    print(f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} cores{load}")
    stage_cost.stages()
    stage_cost.memory()
    if asked.graphs and graphs.main(["--comfyui", asked.comfyui] if asked.comfyui else []):
        return 1
    if not asked.pairs and not asked.starts:
        return 0
    try:
        workflow.main(asked.pairs, asked.starts, asked.comfyui)
    except (setup.SetupError, lab.ServerDied, client.Refused, client.Unreachable, TimeoutError) as problem:
        print(f"overhead: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
