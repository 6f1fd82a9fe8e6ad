"""Files of weights that a run read: how much of them came from disk, and how fast."""

from __future__ import annotations

from typing import Any

from stagexec.reading.runs import Run


def reads(run: Run) -> list[dict[str, Any]]:
    """Each read, in order: {file, bytes, disk_bytes, ns, visit}.

    `disk_bytes`: what the page cache did not hold as the read began, by a sample of its pages; else what the
    process had read from storage meanwhile; None where neither is known. A file that is only mapped is read
    later, as its tensors are used: `ns` is then short, and `disk_bytes` still right.
    """
    found = []
    for mark in run.marks:
        detail = mark.detail
        if mark.name != "weights_read" or not isinstance(detail, dict) or detail.get("bytes") is None:
            continue
        row = {name: detail.get(name) for name in ("file", "bytes", "ns")}
        found.append({**row, "disk_bytes": _from_disk(detail), "visit": mark.visit})
    return found


def _from_disk(detail: dict[str, Any]) -> int | None:
    pages, cold = detail.get("pages"), detail.get("cold_pages")
    if pages and cold is not None:
        return int(detail["bytes"] * cold // pages)
    io_bytes: int | None = detail.get("io_bytes")
    return io_bytes


def total(run: Run) -> dict[str, int | None] | None:
    """All reads of the run together: {bytes, disk_bytes, ns}; None where it read none.

    `disk_bytes` is None where one of them is not known.
    """
    found = reads(run)
    if not found:
        return None
    added: dict[str, int | None] = {}
    for name in ("bytes", "disk_bytes", "ns"):
        values = [one[name] for one in found]
        added[name] = None if None in values else sum(values)
    return added
