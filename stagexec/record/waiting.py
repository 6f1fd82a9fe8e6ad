"""The runs of accepted prompts that nothing executes yet."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from stagexec.record.run import Run


class Waiting:
    """By prompt id, in the order of acceptance: clients may give several prompts the same id."""

    def __init__(self) -> None:
        self._runs: dict[str, list[Run]] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._runs)

    def add(self, run: Run, first: bool = False) -> None:
        """`run` waits; before all others of its prompt id where it is `first`."""
        with self._lock:
            of_id = self._runs.setdefault(run.prompt_id, [])
            of_id.insert(0 if first else len(of_id), run)

    def take(self, prompt_id: str, item: Any = None) -> Run | None:
        """The run that waits for the queue's `item`, else the first of its id; it waits no more."""
        with self._lock:
            of_id = self._runs.get(prompt_id)
            if not of_id:
                return None
            found = next((one for one in of_id if one.item is item), of_id[0])
            self._keep(prompt_id, [one for one in of_id if one is not found])
            return found

    def take_missing(self, left: Iterable[tuple[str, Any]]) -> list[Run]:
        """Those whose (prompt id, item) is not in `left`, which is what the queue holds; they wait no more.

        A run whose item is being put there is not looked at. An item that a pack has replaced by another is
        known by its id.
        """
        there: dict[str, list[Any]] = {}
        for prompt_id, item in left:
            there.setdefault(prompt_id, []).append(item)
        gone: list[Run] = []
        with self._lock:
            for prompt_id, of_id in list(self._runs.items()):
                items = there.get(prompt_id, [])
                unseen = [one for one in of_id if not any(one.item is item for item in items)]
                replaced = len(items) - (len(of_id) - len(unseen))
                missing = [one for one in unseen[max(replaced, 0) :] if one.queued]
                self._keep(prompt_id, [one for one in of_id if one not in missing])
                gone += missing
        return gone

    def take_all(self) -> list[Run]:
        """All of them; none waits any more."""
        with self._lock:
            gone = [one for of_id in self._runs.values() for one in of_id]
            self._runs.clear()
        return gone

    def all(self) -> list[Run]:
        """All of them, which go on waiting."""
        with self._lock:
            return [one for of_id in self._runs.values() for one in of_id]

    def _keep(self, prompt_id: str, runs: list[Run]) -> None:
        if runs:
            self._runs[prompt_id] = runs
        else:
            self._runs.pop(prompt_id, None)
