"""What else may have made a run slower: files that came from disk."""

from __future__ import annotations

from typing import NamedTuple

from stagexec.reading.runs import Run


class Read(NamedTuple):
    """Files of weights that were read: all bytes, those that came from disk (None: not known), and ns."""

    bytes: int
    disk_bytes: int | None
    ns: int


def read(run: Run) -> Read | None:
    """All reads of weights of a run together; None where none is told."""
    found = [
        mark.detail for mark in run.marks if mark.name == "weights_read" and isinstance(mark.detail, dict)
    ]
    found = [one for one in found if isinstance(one.get("bytes"), int)]
    if not found:
        return None
    disk = [_from_disk(one) for one in found]
    known = [one for one in disk if one is not None]
    lengths = [one["ns"] for one in found if isinstance(one.get("ns"), int)]
    return Read(
        sum(one["bytes"] for one in found), sum(known) if len(known) == len(disk) else None, sum(lengths)
    )


def _from_disk(detail: dict[str, int | None]) -> int | None:
    pages, cold, whole = detail.get("pages"), detail.get("cold_pages"), detail.get("bytes")
    if pages and cold is not None and whole is not None:
        return whole * cold // pages
    return detail.get("io_bytes")
