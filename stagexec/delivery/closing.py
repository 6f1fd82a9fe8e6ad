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

from stagexec.delivery import artifacts, children
from stagexec.delivery.hands import Hands, Job, Steps, Task
from stagexec.delivery.media import frames_of
from stagexec.delivery.outcome import Delivered, decide
from stagexec.delivery.verify import Check, Verifier, media_of
from stagexec.record import clock, live
from stagexec.record.guard import guarded, note
from stagexec.record.run import Run

WAITING = "stagexec.waiting"
"""Seam of the segments in which a run waits for a thread of ours, and its files for nothing else."""

SETTLE_S = 600.0
"""Writing a profile says nothing meanwhile. It is after the run's end, and in no run's time."""

FILES_AT_ONCE = 16
"""So many files are checked, and then filed: what a process that is killed loses of a run with very many."""

EXIT_WAIT_S = 3.0
AT_EXIT = "the process ended before it was checked"

Promised = tuple["str | None", str, Any, Any]
"""(node id, path, state, reason); the state is null where the file is to be looked at."""

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
            self._hands.submit(
                Job(run, self._begin(run, history), partial(name_waiting, run), partial(self._failed, run))
            )
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
        if any(node_id not in run.executed_nodes for node_id, *_ in promised):
            # An earlier run may have made their files, and not know yet what of.
            yield [Task(partial(wait_for, run, earlier), lambda _: None)]
            name_waiting(run, False)
        delivered: dict[str, Delivered] = {}
        for some in _lots(promised):
            for row in (yield from self._rows(run, some, bad)):
                live.journal_event(run, "artifact", source="verifier", stage_id="delivery_commit", **row)
                delivered.setdefault(row["node_id"] or "", Delivered()).add(row["state"], row["first_bad"])
        if run.error is not None:
            known = {path for _, path, _, _ in promised}
            (left,) = yield [Task(partial(self._orphans, run, known), lambda _: [], folder=_folders(run))]
            for some in _lots([(None, str(path), None, None) for path in left or ()]):
                for row in (yield from self._rows(run, some, {})):
                    row.update(orphan=True, ready_mono_ns=None)
                    live.journal_event(run, "artifact", source="verifier", stage_id="delivery_commit", **row)
        ended = (run, *decide(run, delivered, artifacts.count_values(outputs, self.directory_of)))
        where = None if run.instruments is None else "the ledger"
        yield [Task(partial(live.close, *ended), lambda _: None, where, SETTLE_S)]
        live.close(*ended, settle=False)  # where its instruments could not be filed

    def _promised(
        self, run: Run, outputs: dict[str, Any]
    ) -> Generator[list[Task], list[Any], list[Promised]]:
        def lost(_: str) -> list[Promised]:
            return list(self._promises(run, outputs, lambda _: False))

        def look() -> list[Promised]:
            return list(self._promises(run, outputs, exists))

        (found,) = yield [Task(look, lost, folder="what history names")]
        if found is None:
            raise ValueError("what history names could not be read")
        rows: list[Promised] = found
        return rows

    def _rows(
        self, run: Run, promised: list[Promised], bad: dict[str, str]
    ) -> Generator[list[Task], list[Any], list[dict[str, Any]]]:
        """The `artifact` events of some files, in their order."""
        paths = list(dict.fromkeys(path for _, path, state, _ in promised if state is None))
        checks = yield [self._task(path) for path in paths]
        found = dict(zip(paths, checks, strict=True))
        return [
            self._row(run, node_id, path, found.get(path) if state is None else None, (state, reason), bad)
            for node_id, path, state, reason in promised
        ]

    def _task(self, path: str) -> Task:
        def lost(reason: str) -> Check:
            return Check("unverified", reason, media_of(Path(path)), None, None, {})

        return Task(partial(self.verifier.check, Path(path)), lost, dirname(path))

    def _promises(
        self, run: Run, outputs: dict[str, Any], exists: Callable[[str], bool]
    ) -> Iterable[Promised]:
        seen: set[tuple[str | None, str]] = set()
        for promise in artifacts.from_history(outputs, self.directory_of, exists):
            for node_id in promise.node_ids:
                seen.add((node_id, promise.path))
                yield node_id, promise.path, promise.state, promise.reason
        for path, promiser, _ in run.promised:
            if (promiser, path) not in seen:
                yield promiser, path, None, None

    def _row(
        self,
        run: Run,
        node_id: str | None,
        path: str,
        found: Check | None,
        told: tuple[str | None, str | None],
        bad: dict[str, str],
    ) -> dict[str, Any]:
        """The `artifact` event of one file: `found` on the disk, or of the state that is `told` unlooked."""
        row: dict[str, Any] = {"bytes": None, "sha256": None, "media": "other", "frames": None}
        state, reason = told
        if found is not None:
            state, reason = found.state, found.reason
            row.update(bytes=found.bytes, sha256=found.sha256, media=found.media)
            row["frames"] = frames_of(found.media, found.facts)
        if state == "verified" and node_id in bad:
            state, reason = "nonfinite", "the tensor it was made from has NaN or infinite values"
        first_bad = bad.get(node_id or "") if state == "nonfinite" else None
        executed_now = node_id in run.executed_nodes
        if state == "nonfinite":
            self._remember(path, row["sha256"], first_bad)
        elif node_id in bad:
            self._forget(path)  # there is no such file: nothing that is named so later came of that tensor
        elif not executed_now and row["sha256"] is not None:
            sha256, maker = self._named.get(path, (None, None))
            if sha256 in (row["sha256"], PENDING):
                state, first_bad = "nonfinite", maker
                reason = "an earlier run made it from a tensor with NaN or infinite values"
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
        }

    def _judge(self, run: Run, outputs: dict[str, Any]) -> dict[str, str]:
        """`_nonfinite`, and what later runs have to know of it."""
        try:
            bad = self._nonfinite(run) or {}
            if bad:
                for node_id, path, _, _ in self._promises(run, outputs, lambda _: False):
                    if node_id in bad:
                        self._remember(path, PENDING, bad[node_id])
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
        """Saver node -> the first node, in order of execution, whose output was not finite."""
        bad: dict[str, str] = {}
        first: str | None = None
        for node_id, tensors in run.tensors.saved.items():
            if artifacts.finite(tensors) is False:
                first = first or self._first_bad(run)
                bad[node_id] = first or node_id
        run.tensors.clear()
        return bad

    def _first_bad(self, run: Run) -> str | None:
        for node_id, refs in run.tensors.made:
            alive = [tensor for ref in refs if (tensor := ref()) is not None]
            if artifacts.finite(alive) is False:
                return node_id
        return None

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
    """From now on the run waits for a thread of ours, or does so no longer."""
    with run.closing:
        run.ledger.rebase("delivery_commit", "verify", WAITING if waiting else None)


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
