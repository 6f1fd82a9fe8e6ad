"""Shares and rates of a run: how much of it made nothing, and how many pictures a second it made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stagexec import stages as sets

KEPT = ("verified", "unverified")
PICTURES = ("image", "video")


def pictures(artifacts: Iterable[Any]) -> int | None:
    """How many pictures a run made and delivered: frames of its images and videos, those of a cached node
    apart. None where a video's are not known; an image of an older journal counts as one."""
    count = 0
    for one in artifacts:
        made = one.state in KEPT and one.media in PICTURES and not one.orphan and not one.cached
        if not made:
            continue
        if one.frames is None and one.media == "video":
            return None
        count += 1 if one.frames is None else one.frames
    return count


def of(stages: dict[str, int], total_ns: int | None, count: int | None) -> dict[str, Any]:
    """`pictures`, `pictures_per_s` and `non_compute_share` of a run of so many ns in `stages`.

    The share is of the whole, 0 to 1: what lies outside of COMPUTE_STAGES. Null for a run without time, or,
    for the rate, without pictures.
    """
    if not total_ns or total_ns < 0:
        return {"pictures": count, "pictures_per_s": None, "non_compute_share": None}
    compute = sum(ns for stage, ns in stages.items() if stage in sets.COMPUTE_STAGES)
    rate = count * 1e9 / total_ns if count else None
    return {"pictures": count, "pictures_per_s": rate, "non_compute_share": (total_ns - compute) / total_ns}
