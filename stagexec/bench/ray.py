"""A bench on a Ray cluster: each part of the plan is one task, so its pairs stay on one worker.

Workers send every raw run as it ends; it is written down where the bench was started. The ComfyUI tree, the
models and the Python of an arm must lie under the same paths on each worker.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from stagexec.bench import progress as counting
from stagexec.bench import units
from stagexec.bench.plan import Plan, Unit
from stagexec.bench.results import Record, Results, complete, create
from stagexec.bench.runner import Bench, Lab, Watch

POLL_SECONDS = 0.2


class NoRay(Exception):
    """Ray is not installed."""


class Opener(Protocol):
    """Makes a worker's lab; it travels to the worker."""

    def __call__(self, folder: Path) -> Lab:
        """The lab that writes into `folder`."""

    def machine(self) -> dict[str, Any]:
        """The machine it is called on."""


def require() -> Any:
    """The ray module. Raises NoRay."""
    try:
        import ray
    except ImportError:
        raise NoRay("--ray needs the package ray: pip install 'stagexec[ray]'") from None
    return ray


def split(plan: Plan) -> Plan:
    """The plan in parts that can run on different workers: by unit, or, with one unit, by arm.

    In the latter case the reference arm runs again beside each of the others: only runs of one worker
    are paired.
    """
    if len(plan.unit) != 1 or len(plan.arm) < 3:
        return plan
    unit, reference = plan.unit[0], plan.reference_arm
    others = [arm.name for arm in plan.arms_of(unit) if arm.name != reference]
    parts = [_part(unit, reference, name) for name in others]
    return msgspec.structs.replace(plan, unit=parts)


def _part(unit: Unit, reference: str, arm: str) -> Unit:
    return msgspec.structs.replace(unit, name=f"{unit.name} · {arm}", arms=[reference, arm])


def spread(plan: Plan, results: Results, opener: Opener, watch: Watch) -> None:
    """Run each unit as a Ray task, with a GPU of its own where the cluster has some; merge what comes back.

    A worker that fails is noted, and the other units go on. Raises NoRay.
    """
    ray = require()
    from ray.util.queue import Empty, Queue

    if not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing of a bench is told to anybody
        ends = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        ours = {end: signal.getsignal(end) for end in ends}
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        for end, handler in ours.items():  # Ray's own end the process at once, servers and all that is open
            signal.signal(end, handler)
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    queue = Queue()
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0, scheduling_strategy="SPREAD")(work)
    header = msgspec.to_builtins(plan)
    watch("start", progress(plan, results))
    left = {}
    for unit in plan.unit:
        before = {
            "runs": [run for run in results.runs if run["unit"] == unit.name],
            "notes": [note for note in results.notes if note.get("unit") == unit.name],
        }
        left[
            task.remote(header, unit.name, results.workflow, opener, before, queue, results.worker_prefix)
        ] = unit.name
    try:
        while left:
            ready, _ = ray.wait(list(left), timeout=POLL_SECONDS)
            _drain(queue, Empty, results, watch)
            for reference in ready:
                _finish(ray, reference, left.pop(reference), results, watch)
        _drain(queue, Empty, results, watch)
        watch("finished", results.note("finished", wall=time.time_ns()))
    except KeyboardInterrupt:
        for reference in left:
            ray.cancel(reference, force=False)
        ray.wait(list(left), num_returns=len(left), timeout=60)  # workers stop their servers first
        _drain(queue, Empty, results, watch)
        results.note("interrupted", wall=time.time_ns())
        raise


def _finish(ray: Any, reference: Any, unit: str, results: Results, watch: Watch) -> None:
    try:
        files = ray.get(reference)
    except ray.exceptions.RayError as problem:
        reason = " ".join(str(problem).split())[-300:]
        for arm in results.plan.arms_of(next(u for u in results.plan.unit if u.name == unit)):
            note = results.note(
                "arm", unit=unit, arm=arm.name, status="failed", reason=f"its worker: {reason}"
            )
            watch("arm", note)
        return
    for name, content in files.items():
        _write(results.folder / name, content)


def _drain(queue: Any, empty: type[Exception], results: Results, watch: Watch) -> None:
    while True:
        try:
            name, facts, files = queue.get(block=False)
        except empty:
            return
        for path, content in files.items():
            _write(results.folder / path, content)
        if name == "run":
            results.add_run(facts)
        elif "kind" in facts and name != "finished":
            results.note(**facts)
        if name == "measure":  # a worker counts only its own
            facts = progress(results.plan, results)
        if name not in ("start", "finished"):
            watch(name, facts)


def progress(plan: Plan, results: Results) -> Record:
    """Counted measures of all workers: how many are planned, how many are done, and launches to come."""
    positions = {unit.name: len(units.steps(unit.state, unit.concurrency)) for unit in plan.unit}
    out = {(note["unit"], note["arm"]) for note in results.notes if note["kind"] == "arm"}
    done = complete(results.runs, positions)
    return {
        "planned": counting.planned(plan, out),
        "done": len(done),
        "launches": counting.launches(plan, out, done),
    }


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def work(
    header: Mapping[str, Any],
    unit: str,
    workflow: Mapping[str, Any],
    opener: Opener,
    before: Mapping[str, list[Record]],
    queue: Any,
    prefix: str,
) -> dict[str, bytes]:
    """On a worker: one unit of the plan from what is already there; its ledger and logs, by path."""
    whole = msgspec.convert(header, Plan)
    plan = msgspec.structs.replace(whole, unit=[one for one in whole.unit if one.name == unit])
    folder = Path(tempfile.mkdtemp(prefix=prefix)) / "result"
    try:
        results = create(folder, plan, workflow, {"machine": opener.machine()})
        results.runs.extend(before["runs"])
        results.notes.extend(before["notes"])

        def send(name: str, facts: Record) -> None:
            kept = facts.get("files", ()) if name == "run" else ()
            queue.put((name, facts, {path: (folder / path).read_bytes() for path in kept}))

        Bench(plan, opener(folder), results, send).run()
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for kind in ("ledger", "logs")
            for path in (folder / kind).rglob("*")
            if path.is_file()
        }
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)
