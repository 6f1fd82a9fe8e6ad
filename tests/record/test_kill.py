"""`kill -9` costs at most 50 ms of events, and what is left of the journal can be read."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from stagexec.reading import store
from stagexec.reading.journal import sources

ROOT = Path(__file__).resolve().parents[2]
BOUND_NS = 50_000_000

CHILD = """
import sys, threading, time
from pathlib import Path
from stagexec.record import clock, live
from tests.record.conftest import mark

worst = 0

def witness():
    # A thread like the writer's: how late the machine wakes it is no doing of the writer.
    global worst
    while True:
        before = clock.now_ns()
        time.sleep(0.02)
        worst = max(worst, clock.now_ns() - before - 20_000_000)

threading.Thread(target=witness, daemon=True).start()
live.begin_process(Path(sys.argv[1]), pid=0, hostname="elsewhere", format_version=1)
live.accept("p", {})
run = live.start("p")
number = 0
while True:
    number += 1
    depth = run.enter("sampling", "step")
    one = mark(number)
    live.journal.put(one)
    print(number, one["ts_mono_ns"], worst, flush=True)
    time.sleep(0.001)
    run.leave(depth)
"""


def killed_after(seconds: float, ledger: Path) -> list[tuple[int, int, int]]:
    """(number, time, worst delay of the machine so far) of every event the child put before it was killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(ledger)], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert child.stdout is not None
    first = child.stdout.readline()
    time.sleep(seconds)
    child.kill()
    lines = [first, *child.stdout.read().splitlines(keepends=True)]
    child.wait()
    # The last line may be torn, like a journal's.
    return [tuple(map(int, line.split())) for line in lines if line.endswith("\n")]  # type: ignore[misc]


def marks(ledger: Path) -> list[int]:
    (source,) = sources(ledger)
    found = [one for _, _, one in source.read()]
    assert {problem.kind for problem in source.problems} <= {"torn_last"}
    return [one.detail["number"] for one in found if type(one).__name__ == "Mark"]


@pytest.mark.parametrize("seconds", [0.15, 0.31, 0.47, 0.63, 0.79])
def test_a_killed_process_loses_no_event_older_than_50_ms(tmp_path: Path, seconds: float) -> None:
    """The time of the kill is that of the last event that the child told: one each millisecond, told at once.

    A machine under load wakes every thread late, the writer's too. A second thread that sleeps as the writer
    does measures by how much, in the same process at the same time; that much, and no more, is forgiven.
    """
    put = killed_after(seconds, tmp_path)
    written = marks(tmp_path)
    assert written == list(range(1, len(written) + 1))
    lost = [at for number, at, _ in put if number > len(written)]
    _, killed, delay = put[-1]
    oldest = killed - lost[0] if lost else 0
    assert oldest <= BOUND_NS + delay, f"{len(lost)} events lost, the oldest {oldest / 1e6:.1f} ms old"
    assert len(written) > 20


def test_the_run_of_a_killed_process_is_lost_in_the_stage_it_was_in(tmp_path: Path) -> None:
    killed_after(0.3, tmp_path)
    (run,) = store.load(tmp_path).runs
    assert (run.outcome, run.cause) == ("lost", "process_died")
    assert run.segments.stage[-1] in {"sampling", "executor_prepare"}
    ends, starts = run.segments.end_ns, run.segments.start_ns
    assert list(ends[:-1]) == list(starts[1:])
    assert ends[-1] - starts[0] > 200_000_000
