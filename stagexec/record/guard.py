"""The fence round our own bookkeeping: a fault of ours is noted, never raised into a run."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from stagexec import addresses
from stagexec.record import safe
from stagexec.record.safe import log

GUARDED: dict[str, Any] = {}
"""Every guarded function by qualified name. Tests replace its `body` to inject a fault."""

faults: list[tuple[str, str]] = []
"""(function, error) of each fault since the process began, at most MAX_FAULTS of them."""

MAX_FAULTS = 200
on_fault: Callable[[str, BaseException], None] | None = None
"""Set by the recorder: files the fault in the journal."""

_seen: Counter[str] = Counter()
"""How often each place has faulted."""

FILED = 10
"""So many faults of one place are filed, and of more each that doubles their number: a ledger is no log."""

_filing = threading.local()

R = TypeVar("R")


def note(where: str, error: BaseException) -> None:
    """Keep a fault of ours: log it once per place, count it, file it in the journal if there is one.

    It stands in fences, so it cannot raise.
    """
    text = addresses.shown(safe.named(error))
    if len(faults) < MAX_FAULTS:
        faults.append((where, text))
    _seen[where] += 1
    if _seen[where] == 1:
        log.warning(
            "stagexec: a fault in our own bookkeeping (%s): %s. The run is not affected.", where, text
        )
    told = _seen[where] <= FILED or _seen[where].bit_count() == 1
    if told and on_fault is not None and not getattr(_filing, "busy", False):
        _filing.busy = True  # filing may fault too; that one is only counted
        try:
            on_fault(where, error)
        except BaseException as second:  # what is filed is of foreign make
            if len(faults) < MAX_FAULTS:
                faults.append(("guard.on_fault", safe.repr_of(second)))
        finally:
            _filing.busy = False


def guarded(function: Callable[..., R]) -> Callable[..., R | None]:
    """Wrap bookkeeping so that its errors are noted and None is returned in their place."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return call.body(*args, **kwargs)  # type: ignore[attr-defined]
        except Exception as error:
            note(function.__qualname__, error)
            return None

    call.body = function  # type: ignore[attr-defined]
    GUARDED[f"{function.__module__}.{function.__qualname__}"] = call
    return call
