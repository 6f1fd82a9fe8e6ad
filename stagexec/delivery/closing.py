"""After execution, off the worker's path: check every promised file, decide the outcome, close the run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stagexec.delivery import artifacts, children
from stagexec.delivery.outcome import Delivered, decide
from stagexec.delivery.verify import Verifier
from stagexec.record import clock, live
from stagexec.record.guard import guarded, note
from stagexec.record.run import Run


class Closer:
    """One thread that verifies and closes runs, in the order in which they ended."""

    def __init__(self, directory_of: Callable[[str], str | None]) -> None:
        self.directory_of = directory_of
        self.verifier = Verifier()
        self._queue: queue.SimpleQueue[tuple[Run, dict[str, Any]]] = queue.SimpleQueue()
        self._named: dict[str, tuple[Any, ...]] = {}
        self._thread = threading.Thread(target=self._loop, name="stagexec-verify", daemon=True)

    def start(self) -> None:
        """Begin to take runs from `live`."""
        self._thread.start()
        live.after_execution = self.submit

    def submit(self, run: Run, history: dict[str, Any]) -> None:
        """Take an executed run. Never blocks."""
        self._queue.put((run, history))

    def _loop(self) -> None:
        while True:
            run, history = self._queue.get()
            try:
                self.close(run, history)
            except Exception as error:  # noqa: BLE001 (the fence of this thread; the run is closed)
                note("Closer.close", error)
                live.close(run, "success_unverified" if run.error is None else "failed", None, run.error)

    def close(self, run: Run, history: dict[str, Any]) -> None:
        """Check what `history` and the run's nodes promised, file it, and close the run."""
        settle(run)
        outputs = history.get("outputs") or {}
        delivered: dict[str, Delivered] = {}
        known: set[str] = set()
        bad = self._nonfinite(run) or {}
        for node_id, path, state, reason in self._promises(run, outputs):
            known.add(path)
            row = self._check(run, node_id, path, state, reason, bad)
            live.journal_event(run, "artifact", source="verifier", stage_id="delivery_commit", **row)
            delivered.setdefault(node_id or "", Delivered()).add(row["state"], row["first_bad"])
        for left in self._orphans(run, known) or ():
            row = self._check(run, None, str(left), None, None, {})
            row.update(orphan=True, ready_mono_ns=None)
            live.journal_event(run, "artifact", source="verifier", stage_id="delivery_commit", **row)
        values = artifacts.count_values(outputs, self.directory_of)
        outcome, cause, error = decide(run, delivered, values)
        live.close(run, outcome, cause, error)

    def _promises(self, run: Run, outputs: dict[str, Any]) -> Iterable[tuple[str | None, str, Any, Any]]:
        seen: set[tuple[str | None, str]] = set()
        for promise in artifacts.from_history(outputs, self.directory_of):
            for node_id in promise.node_ids:
                seen.add((node_id, promise.path))
                yield node_id, promise.path, promise.state, promise.reason
        for path, promiser, _ in run.promised:
            if (promiser, path) not in seen:
                yield promiser, path, None, None

    def _check(
        self,
        run: Run,
        node_id: str | None,
        path: str,
        state: str | None,
        reason: str | None,
        bad: dict[str, str],
    ) -> dict[str, Any]:
        """The `artifact` event of one file."""
        row: dict[str, Any] = {"bytes": None, "sha256": None, "media": "other"}
        if state is None:
            found = self.verifier.check(Path(path))
            state, reason = found.state, found.reason
            row.update(bytes=found.bytes, sha256=found.sha256, media=found.media)
        if state == "verified" and node_id in bad:
            state, reason = "nonfinite", "the tensor it was made from has NaN or infinite values"
        first_bad = bad.get(node_id or "") if state == "nonfinite" else None
        executed_now = node_id in run.executed_nodes
        if state == "nonfinite":
            self._remember(path, row["sha256"], first_bad)
        elif not executed_now and self._named.get(path, (None,))[0] == row["sha256"] is not None:
            state, first_bad = "nonfinite", self._named[path][1]
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

    def _remember(self, path: str, sha256: str | None, first_bad: str | None) -> None:
        """A file made from a non-finite tensor stays so when later runs only name it again."""
        if len(self._named) > 4096:
            self._named.clear()
        self._named[path] = (sha256, first_bad)

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


@guarded
def settle(run: Run) -> None:
    """File the encoder processes of a run that is over."""
    children.settle(run)


def promised_ns(run: Run, path: str) -> int | None:
    """When a node named this file through stagexec.artifact; None when none did."""
    return next((at for named, _, at in run.promised if named == path), None)
