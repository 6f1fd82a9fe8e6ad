"""At the start: name what our nodes of a process that was killed have left, and remove it where asked."""

from __future__ import annotations

from pathlib import Path

from stagexec.delivery import pending
from stagexec.record import live, paths
from stagexec.record.guard import guarded
from stagexec.record.safe import log


@guarded
def report(ledger: Path, clean: bool) -> None:
    """Log every temporary file that is left, and file it as a mark; with `clean` remove them."""
    paths.used_folder = ledger
    if not clean:
        for one in pending.left(ledger):
            if one.bytes is not None:
                log.warning("stagexec: %s. --stagexec-clean removes it.", text(one))
                _file(one, removed=False)
        return
    removed, kept = pending.clean(ledger)
    for one in removed:
        if one.bytes is not None:
            log.info("stagexec: removed what an earlier process left: %s (%d bytes).", one.path, one.bytes)
        _file(one, removed=True)
    for one, why in kept:
        log.warning("stagexec: %s, and it could not be removed: %s.", text(one), why)


def problems(ledger: Path) -> list[str]:
    """What doctor says of it."""
    return [
        f"{text(one)}; --stagexec-clean removes it" for one in pending.left(ledger) if one.bytes is not None
    ]


def text(one: pending.Left) -> str:
    """One leftover in words."""
    return f"a process that ended left the temporary file {one.path} ({one.bytes} bytes)"


def _file(one: pending.Left, removed: bool) -> None:
    detail = {"bytes": one.bytes, "removed": removed}
    live.journal_event(None, "mark", source="process", name="left_over", detail=detail, artifact=one.path)
