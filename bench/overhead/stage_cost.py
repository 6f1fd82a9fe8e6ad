"""What the recorder costs by itself: one stage, one seam, and the memory of a thousand runs."""

from __future__ import annotations

import gc
import itertools
import pathlib
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from stagexec.bench.stats import summarize
from stagexec.host.tables import SeamRow
from stagexec.host.wrap import wrap
from stagexec.record import live
from stagexec.record.devices.events import EventClock
from stagexec.record.instruments import Instruments
from stagexec.record.run import Run

BATCH = 1_000
BATCHES = 300
RUNS = 1_000
STAGES_PER_RUN = 60
VISITS_PER_RUN = 12


def per_call_us(work: Callable[[], Any], batches: int = BATCHES) -> list[float]:
    """Microseconds of one call of `work`, once a batch; the loop round it is taken off."""
    empty = itertools.repeat(None, BATCH)
    start = time.perf_counter_ns()
    for _ in empty:
        pass
    loop_ns = time.perf_counter_ns() - start
    found = []
    for _ in range(batches):
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, BATCH):
            work()
        found.append((time.perf_counter_ns() - start - loop_ns) / BATCH / 1_000)
    return found


def started_run() -> Run:
    """A run in execution on this thread, whose segments are not written."""
    run = Run("overhead", time.perf_counter_ns(), time.perf_counter_ns)
    run.thread = threading.get_ident()
    run.ledger.switch("executor_overhead")
    return run


class FreeBackend:
    """A device behind which there is nothing: what is left is our own cost."""

    kind = "cuda"

    class Event:
        """Records nothing, and is complete."""

        def record(self, stream: Any) -> None:
            """Nothing."""

    def current(self) -> tuple[Any, int, int]:
        """The only stream."""
        return None, 0, 0

    def capturing(self) -> bool:
        """Never."""
        return False

    def new_event(self) -> Any:
        """One more."""
        return self.Event()

    def record(self, event: Any, stream: Any) -> None:
        """As the real ones: a call through."""
        event.record(stream)


def stage_with_events() -> Callable[[], None]:
    """One stage entered and left in a run whose device events cost nothing themselves."""
    run = started_run()
    run.timing = "events"
    made = Instruments(run, EventClock(FreeBackend()), None)  # type: ignore[arg-type]
    made.attach()
    recording = made.recording
    assert recording is not None

    def once() -> None:
        run.leave(run.enter("sampling", "step", "seam"))
        run.ledger.pending.clear()
        made.clock.release(recording.points)
        recording.points.clear()
        recording.starts.clear()

    return once


def nothing() -> None:
    """What is wrapped: the cheapest host function there can be."""


def stages() -> None:
    """Print what one stage costs, entered directly and through a seam."""
    run = started_run()
    pending = run.ledger.pending

    def stage() -> None:
        run.leave(run.enter("sampling", "step", "seam"))
        pending.clear()  # as the writer's thread empties it, but here the time is ours

    row = SeamRow(
        id="nothing", target=("overhead:nothing",), kind="stage", stage="sampling", why="-", hosts="-"
    )
    seam: Any = wrap(nothing, nothing, row)[0]

    def through_seam() -> None:
        seam()
        pending.clear()

    bare = per_call_us(nothing)
    outside = per_call_us(seam)
    entered = per_call_us(stage)
    live.run = run
    try:
        inside = per_call_us(through_seam)
    finally:
        live.run = None
    print(f"One stage, µs ({BATCHES} batches of {BATCH:,}; P50, P90, min):")
    show("enter + leave", entered)
    show("a seam round a function that does nothing, in a run", inside)
    show("the same outside a run", outside)
    show("that function without a seam", bare)


def show(what: str, samples: list[float]) -> None:
    """One line of figures."""
    one = summarize(samples)
    assert one is not None
    print(f"  {what:<52} {one.p50:7.3f} {one.p90:7.3f} {one.min:7.3f}   n = {one.n}")


def one_run(number: int) -> None:
    """A run as the loop makes it: accepted, visited, closed, written."""
    prompt_id = f"prompt {number}"
    nodes = [str(node) for node in range(VISITS_PER_RUN)]
    live.accept(prompt_id, {"nodes": nodes, "classes": ["Node"] * len(nodes), "selected_outputs": nodes[-1:]})
    run = live.start(prompt_id)
    assert run is not None
    for node in nodes:
        start = run.clock()
        visit = run.next_visit(node, "Node")
        for _ in range(STAGES_PER_RUN // VISITS_PER_RUN):
            run.leave(run.enter("sampling", "step", "seam"))
        run.end_visit()
        columns = (visit, node, "Node", "executed", None, 1, None, start, run.clock())
        run.pending_visits.append((*columns, "sampling", "table", False, None))
    live.finish(run, {"host_status": "success"}, {})


def memory() -> None:
    """Print what the recorder holds after 100, 200 … runs, all written to a journal."""
    with tempfile.TemporaryDirectory(prefix="stagexec-overhead-") as folder:
        live.begin_process(pathlib.Path(folder), argv=[])
        journal = live.journal
        assert journal is not None
        held: list[tuple[int, int, int | None]] = []
        tracemalloc.start()
        for number in range(1, RUNS + 1):
            one_run(number)
            if number % 100 == 0:
                journal.flush()
                gc.collect()
                held.append((number, tracemalloc.get_traced_memory()[0], resident_bytes()))
        tracemalloc.stop()
        size = sum(file.stat().st_size for file in pathlib.Path(folder).glob("journal/*/*.jsonl"))
        journal.stop("overhead measured")
        live.journal = None
    print(f"Memory over {RUNS:,} runs of {STAGES_PER_RUN} stages and {VISITS_PER_RUN} visits:")
    for number, traced, resident in held:
        shown = "" if resident is None else f", process {resident / 2**20:7.1f} MiB"
        print(f"  after {number:>5} runs: recorder {traced / 1024:8.1f} KiB{shown}")
    half, last = held[len(held) // 2 - 1], held[-1]
    growth = (last[1] - half[1]) / (last[0] - half[0])
    print(f"  growth in the second half: {growth:.1f} bytes a run (n = {last[0] - half[0]})")
    print(f"  journal: {size / RUNS:,.0f} bytes a run")


def resident_bytes() -> int | None:
    """Memory of this process in RAM; None where the system does not tell by a file."""
    if not sys.platform.startswith("linux"):
        return None
    for line in pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return None


if __name__ == "__main__":
    stages()
    memory()
