"""How often a shipped plan tells arms apart that are alike, and how often it finds 5%: at full size.

`python bench/simulate/aa.py [--benches N] [--out FILE]`, without servers. The timetable is the real runner's,
the drift an Ornstein-Uhlenbeck process, launches and runs have noise of their own (`tests/bench/drift.py`).
Shares with 95% Wilson intervals go to FILE as JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from stagexec.bench import plan  # noqa: E402
from tests.bench import drift  # noqa: E402

PACES = (drift.Pace(8, 1), drift.Pace(15, 4), drift.Pace(30, 20), drift.Pace(40, 60))
"""Seconds of a launch and of a run: a tiny picture, a small one, a large one, a short video."""
EFFECT = 1.05


def wilson(hits: int, count: int) -> list[float]:
    """A share with its 95% interval: share, low, high."""
    z, share = 1.96, hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return [round(share, 4), round(middle - reach, 4), round(middle + reach, 4)]


def alike(wanted: plan.Plan, benches: int) -> list[dict[str, Any]]:
    """The share of benches that show any difference between arms that are alike."""
    rows = []
    for pace in PACES:
        for fits in (True, False):
            table = drift.timetable(wanted, fits, pace)
            for number, (name, wander) in enumerate(drift.DRIFTS.items()):
                rng = np.random.default_rng([number, fits, int(pace.run)])
                hits = int(drift.loud(table, drift.logs(table, wander, benches, rng)).sum())
                rows.append(
                    {"plan": wanted.name, "side_by_side": fits, "launch_s": pace.launch, "run_s": pace.run,
                     "drift": name, "comparisons": table.family, "benches": benches,
                     "shown": wilson(hits, benches)}
                )  # fmt: skip
    return rows


def planted(benches: int) -> list[dict[str, Any]]:
    """How often two arms that are 5% apart are shown to be, by the bench's own statistics, at ten pairs."""
    two = plan.parse(
        'name = "two"\n[[arm]]\nname = "a"\n[[arm]]\nname = "b"\nargs = ["--b"]\n'
        '[[unit]]\nname = "M03"\nstate = "recompute"\n'
    )
    rows = []
    for pace in PACES:
        for fits in (True, False):
            table = drift.timetable(two, fits, pace)
            rng = np.random.default_rng([7, fits, int(pace.run)])
            times = drift.logs(table, drift.DRIFTS["3%/600 s"], benches, rng, {"b": math.log(EFFECT)})
            ratios = drift.measures(table.contrasts[0], times)
            verdicts = [drift.exact(row, number, table.family) for number, row in enumerate(ratios)]
            rows.append(
                {"planted": EFFECT, "side_by_side": fits, "launch_s": pace.launch, "run_s": pace.run,
                 "drift": "3%/600 s", "pairs": ratios.shape[1], "benches": benches,
                 "found": wilson(verdicts.count("slower"), benches), "wrong_way": verdicts.count("faster")}
            )  # fmt: skip
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benches", type=int, default=10_000)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "results" / "simulated.json")
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for wanted in plan.shipped():
        if len(wanted.arm) > 1:
            rows += alike(wanted, chosen.benches)
            worst = max(row["shown"][0] for row in rows if row["plan"] == wanted.name)
            print(f"{wanted.name}: alike arms told apart in at most {worst:.2%} of benches", flush=True)
    found = planted(max(400, chosen.benches // 5))
    for row in found:
        how = "side by side" if row["side_by_side"] else "by launches"
        print(f"5% found in {row['found'][0]:.1%} ({how}, runs of {row['run_s']:.0f} s)", flush=True)
    noise = {"launch_sd": drift.LAUNCH_SD, "run_sd": drift.RUN_SD}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    lines = {"noise": noise, "alike": rows, "planted": found}
    text = (
        json.dumps(lines, indent=None).replace('{"plan"', '\n{"plan"').replace('{"planted"', '\n{"planted"')
    )
    chosen.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
