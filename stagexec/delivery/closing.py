"""After execution, off the worker's path: check every promised file, decide the outcome, close the run.

Runs are checked side by side, each as soon as it has been executed, by threads that a dead disk may hold
without holding up anything else (`hands`). All that looks at a disk is a task there; what a task leaves
unanswered is `unverified`, with the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from os.path import dirname, exists
from pathlib import Path
from typing import Any

from stagexec.delivery import artifacts, blame, children, expected, identity, late
from stagexec.delivery.expected import Promised
from stagexec.delivery.hands import Hands, Job, Steps, Task
from stagexec.delivery.media import frames_of
from stagexec.delivery.outcome import Delivered, decide, unreached
from stagexec.delivery.verify import Check, Verifier, media_of
from stagexec.record import clock, held, live
from stagexec.record.guard import guarded, note
from stagexec.record.run import Run

SETTLE_S = 600.0
"""Writing a profile says nothing meanwhile. It is after the run's end, and in no run's time."""

FILES_AT_ONCE = 16
"""So many files are checked, and then filed: what a process that is killed loses of a run with very many."""

EXIT_WAIT_S = 3.0
AT_EXIT = "the process ended before it was checked"

LATE = "stagexec.late"
"""Seam of the segments in which a run waits for a file that its node's thread, or a program, still writes."""

current: Closer | None = None
"""The one that closes this process's runs."""


def at_exit(timeout_s: float = EXIT_WAIT_S) -> list[Run]:
    """The process ends: wait a moment for the checks under way, then close what is left unverified."""
    closer = current
    if closer is None:
        return []
    left = closer.drain(timeout_s)
    for run in left:
        closer.close_unverified(run, AT_EXIT)
    return left


class Closer:
    """Verifies and closes runs."""

    def __init__(self, directory_of: Callable[[str], str | None]) -> None:
        self.directory_of = directory_of
        self.verifier = Verifier()
        self._lock = threading.Lock()
        self._named: dict[str, tuple[Any, ...]] = {}
        self._judging: dict[Run, threading.Event] = {}  # runs whose tensors are not looked at yet, by age
        self._hands = Hands("stagexec-verify", busy=_computes)

    def start(self) -> None:
        """Begin to take runs from `live`."""
        global current
        self._hands.start()
        current = self
        live.after_execution = self.submit

    def submit(self, run: Run, history: dict[str, Any]) -> None:
        """Take an executed run. Never waits for its check."""
        try:
            job = Job(run, self._begin(run, history), partial(name_waiting, run), partial(self._failed, run))
            job.name_waiting(True)
            self._hands.submit(job)
        except Exception as error:  # noqa: BLE001 (the worker's thread: the run is closed, and it goes on)
            self._failed(run, error)

    def close(self, run: Run, history: dict[str, Any]) -> None:
        """Check and close on the calling thread, for as long as the disk takes."""
        steps = self._begin(run, history)
        results: list[Any] | None = None
        try:
            while True:
                tasks = next(steps) if results is None else steps.send(results)
                results = [task.work() for task in tasks]
        except StopIteration:
            return

    def drain(self, timeout_s: float) -> list[Run]:
        """Wait until all runs are closed, but not longer; those that are left, oldest first."""
        return self._hands.drain(timeout_s)

    def close_unverified(self, run: Run, reason: str) -> bool:
        """Close a run whose check is under way, from what is known: the files it has not come to are
        unverified, for this `reason`. False if it was closed already."""
        return self._hands.stop(run, reason)

    def _failed(self, run: Run, error: Exception) -> None:
        note("Closer.close", error)
        live.close(run, "success_unverified" if run.error is None else "failed", None, run.error)

    # ---- one run; nothing here touches a disk outside of a task --------------------------------------

    def _begin(self, run: Run, history: dict[str, Any]) -> Steps:
        with self._lock:
            earlier = list(self._judging.values())
            self._judging[run] = threading.Event()
        return self._steps(run, history.get("outputs") or {}, earlier)

    def _steps(self, run: Run, outputs: dict[str, Any], earlier: list[threading.Event]) -> Steps:
        """Check what `outputs` and the run's nodes promised, file it, and close the run."""
        (bad,) = yield [Task(partial(self._judge, run, outputs), lambda _: self._judged(run))]
        bad = bad or {}
        yield [Task(partial(settle, run), lambda _: None, folder="what encoders wrote")]
        promised = yield from self._promised(run, outputs)
        if any(one.node_id not in run.executed_nodes for one in promised):
            # An earlier run may have made their files, and not know yet what of.
            yield [Task(partial(wait_for, run, earlier), lambda _: None)]
            name_waiting(run, False)
        patience = late.Patience(partial(name_late, run))
        delivered: dict[str, Delivered] = {}
        for some in _lots(promised):
            for row in (yield from self._rows(run, some, bad, patience)):
                live.journal_event(run, "artifact", source="verifier", stage_id="delivery_commit", **row)
                delivered.setdefault(row["node_id"] or "", Delivered()).add(row)
        file_messages(run)
        left: list[Path] | None = None
        if run.error is not None:
            known = {one.path for one in promised}
            (left,) = yield [Task(partial(self._orphans, run, known), lambda _: [], folder=_folders(run))]
            for some in _lots([Promised(None, str(path)) for path in left or ()]):
                for row in (yield from self._rows(run, some, {}, patience)):
                    row.update(orphan=True, ready_mono_ns=None)
                    live.journal_event(run, "artifact", source="verifier", stage_id="delivery_commit", **row)
        held.over(run, bool(delivered) or bool(left))
        values = artifacts.count_values(outputs, self.directory_of)
        ended = (run, *decide(run, delivered, values), unreached(run))
        where = None if run.instruments is None else "the ledger"
        yield [Task(partial(live.close, *ended), lambda _: None, where, SETTLE_S)]
        live.close(*ended, settle=False)  # where its instruments could not be filed

    def _promised(
        self, run: Run, outputs: dict[str, Any]
    ) -> Generator[list[Task], list[Any], list[Promised]]:
        def lost(_: str) -> list[Promised]:
            return list(self._promises(run, outputs, lambda _: False))

        def look() -> list[Promised]:
            named = list(self._promises(run, outputs, exists))
            return expected.complete(run, outputs, named, self.directory_of)

        (found,) = yield [Task(look, lost, folder="what history names")]
        if found is None:
            raise ValueError("what history names could not be read")
        rows: list[Promised] = found
        return rows

    def _rows(
        self, run: Run, promised: list[Promised], bad: dict[str, str], patience: late.Patience
    ) -> Generator[list[Task], list[Any], list[dict[str, Any]]]:
        """The `artifact` events of some files, in their order."""
        looked: dict[str, Promised] = {}
        for one in promised:
            if one.state is None and (one.path not in looked or one.node_id in run.executed_nodes):
                looked[one.path] = one
        checks = yield [self._task(run, one, patience) for one in looked.values()]
        found = dict(zip(looked, checks, strict=True))
        return [
            self._row(run, one, found.get(one.path) if one.state is None else None, bad) for one in promised
        ]

    def _task(self, run: Run, one: Promised, patience: late.Patience) -> Task:
        path = Path(one.path)

        def lost(reason: str) -> Check:
            return Check("unverified", reason, media_of(path), None, None, {})

        work = partial(self.verifier.check, path)
        if one.node_id in run.executed_nodes:
            ended = clock.wall_ns(run.trail.last_end(one.node_id, run.stopped_ns or clock.now_ns()))
            work = partial(late.check, self.verifier.check, path, ended, patience)
        return Task(work, lost, dirname(one.path))

    def _promises(
        self, run: Run, outputs: dict[str, Any], exists: Callable[[str], bool]
    ) -> Iterable[Promised]:
        seen: set[tuple[str | None, str]] = set()
        for promise in artifacts.from_history(outputs, self.directory_of, exists):
            for node_id in promise.node_ids:
                seen.add((node_id, promise.path))
                yield Promised(node_id, promise.path, promise.state, promise.reason)
        for path, promiser, _ in run.promised:
            if (promiser, path) not in seen:
                yield Promised(promiser, path, via="node")

    def _row(self, run: Run, one: Promised, found: Check | None, bad: dict[str, str]) -> dict[str, Any]:
        """The `artifact` event of one file: `found` on the disk, or of the state that it is said to have."""
        row: dict[str, Any] = {"bytes": None, "sha256": None, "media": "other", "frames": None}
        node_id, path, state, reason = one.node_id, one.path, one.state, one.reason
        if found is not None:
            state, reason = found.state, found.reason
            row.update(bytes=found.bytes, sha256=found.sha256, media=found.media)
            row["frames"] = frames_of(found.media, found.facts)
        executed_now = node_id in run.executed_nodes
        if found is not None and node_id is not None and state in ("verified", "unverified"):
            other = identity.replaced(run, one, row["sha256"])
            if other is not None:
                state, reason = "overwritten", other
        if state == "verified" and node_id in bad:
            state, reason = "nonfinite", "the tensor it was made from has NaN or infinite values"
        first_bad = bad.get(node_id or "") if state == "nonfinite" else None
        if state == "nonfinite":
            self._remember(path, row["sha256"], first_bad)
        elif node_id in bad:
            self._forget(path)  # there is no such file: nothing that is named so later came of that tensor
        elif not executed_now and state != "overwritten" and row["sha256"] is not None:
            sha256, maker = self._named.get(path, (None, None))
            if sha256 in (row["sha256"], PENDING):
                state, first_bad = "nonfinite", maker
                reason = "an earlier run made it from a tensor with NaN or infinite values"
        identity.keep(run, one, state, row["sha256"])
        return {
            **row,
            "artifact": path,
            "state": state,
            "reason": reason,
            "node_id": node_id,
            "orphan": False,
            "cached": node_id is not None and not executed_now,
            "ready_mono_ns": run.ready_ns.get(node_id or "", promised_ns(run, path)),
            "first_bad": first_bad,
            "via": one.via,
        }

    def _judge(self, run: Run, outputs: dict[str, Any]) -> dict[str, str]:
        """`_nonfinite`, and what later runs have to know of it."""
        try:
            bad = self._nonfinite(run) or {}
            if bad:
                for one in self._promises(run, outputs, lambda _: False):
                    if one.node_id in bad:
                        self._remember(one.path, PENDING, bad[one.node_id])
            return bad
        finally:
            self._judged(run)

    def _judged(self, run: Run) -> None:
        with self._lock:
            judging = self._judging.pop(run, None)
        if judging is not None:
            judging.set()

    def _remember(self, path: str, sha256: str | None, first_bad: str | None) -> None:
        """A file made from a non-finite tensor stays so when later runs only name it again."""
        with self._lock:
            if len(self._named) > 4096:
                self._named.clear()
            self._named[path] = (sha256, first_bad)

    def _forget(self, path: str) -> None:
        with self._lock:
            self._named.pop(path, None)

    @guarded
    def _nonfinite(self, run: Run) -> dict[str, str]:
        """Saver node -> the node that first made what was not finite, in this run or an earlier one."""
        bad: dict[str, str] = {}
        for node_id, tensors in run.tensors.saved.items():
            if artifacts.finite(tensors) is False:
                bad[node_id] = blame.first_bad(run, tensors) or node_id
        run.tensors.clear()
        return bad

    @guarded
    def _orphans(self, run: Run, known: set[str]) -> list[Path]:
        """Files that savers of this run left and no history names; looked for only when a run went wrong."""
        if run.error is None:
            return []
        found: dict[str, Path] = {}
        for folder, prefix, since in run.save_folders:
            for path in artifacts.orphans(folder, prefix, clock.wall_ns(since), known):
                found[str(path)] = path
        return list(found.values())


PENDING = "pending"
"""Stands for the hash of a file in memory while the run that made it has not come to it yet."""


def _computes() -> bool:
    """Does a prompt execute now?"""
    return live.run is not None


def _lots(promised: list[Promised]) -> Iterator[list[Promised]]:
    files = iter(promised)
    while some := list(islice(files, FILES_AT_ONCE)):
        yield some


def _folders(run: Run) -> str:
    """Where a run's savers wrote, as one place."""
    return run.save_folders[0][0] if run.save_folders else "where savers write"


def name_waiting(run: Run, waiting: bool) -> None:
    """From now on the run waits for a thread of ours, or does so no longer: that is none of its time."""
    held.waits(run, waiting)


def name_late(run: Run, waiting: bool, counted: bool = True) -> None:
    """From now on the run waits for a file that is still being written, or does so no longer.

    That is the run's time if a file came of it (`counted`).
    """
    with run.closing:
        now = held.begin(run).waits(waiting, counted)
        run.ledger.rebase("delivery_commit", "verify", LATE if waiting else None, now)


def file_messages(run: Run) -> None:
    """Say what the run's nodes sent to their clients by socket."""
    for node_id, sent in run.trail.sent.items():
        visit, node_class = run.visit_no_of.get(node_id), run.class_of.get(node_id)
        detail = {"messages": sent.messages, "reached": sent.reached, "sockets": sent.sockets}
        detail["whole"] = node_id in run.executed_nodes
        run.mark("messages", detail, visit=visit, node_id=node_id, node_class=node_class)


def wait_for(run: Run, earlier: list[threading.Event]) -> None:
    """Wait until the tensors of the runs that came before have been looked at: no disk can hold that up."""
    for event in earlier:
        if not event.is_set():
            name_waiting(run, True)
            event.wait()
    name_waiting(run, False)


@guarded
def settle(run: Run) -> None:
    """File the encoder processes of a run that is over."""
    children.settle(run)


def promised_ns(run: Run, path: str) -> int | None:
    """When a node named this file through stagexec.artifact; None when none did."""
    return next((at for named, _, at in run.promised if named == path), None)
