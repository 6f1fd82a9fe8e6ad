"""Times, shares and counts as people say them."""

from __future__ import annotations

from typing import Any


def human(ns: int | None) -> str:
    """A duration in µs, ms, s, min or h, three digits or so; `-` for None."""
    if ns is None:
        return "-"
    if ns < 0:
        return "-" + human(-ns)
    if ns == 0:
        return "0 s"
    if ns < 100_000:
        return f"{ns / 1e3:.2f} µs"
    if ns < 999_500_000:
        ms = ns / 1e6
        return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 10 else f"{ms:.2f} ms"
    if ns < 59_995_000_000:
        return f"{ns / 1e9:.2f} s"
    seconds = round(ns / 1_000_000_000)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def sampler_steps(steps: dict[str, Any]) -> str:
    """`20 × 51 ms, first 310 ms`, of what reading.parts.steps gives."""
    first = human(steps["first_ns"])
    if steps["middle_ns"] is None:
        return f"1 × {first}"
    return f"{steps['count']} × {human(steps['middle_ns'])}, first {first}"


def part_lines(run: dict[str, Any], stage: str) -> list[tuple[str, int]]:
    """(name, ns) of a stage's parts as people read them, longest first; none where it is one part alone.

    `run`: {parts, steps} as `show --json` gives them.
    """
    parts = run.get("parts", {}).get(stage, {})
    if list(parts) == ["rest"]:
        return []
    found = []
    for name, ns in sorted(parts.items(), key=lambda one: -one[1]):
        is_steps = (stage, name) == ("sampling", "step") and run.get("steps")
        found.append((f"{name}: {sampler_steps(run['steps'])}" if is_steps else name, ns))
    return found


def share_named(share: float | None) -> str:
    """The share of a run that has a name, as a percentage: one that is not whole is never 100%."""
    return percent(share if share is None or share in (0.0, 1.0) else min(share, 0.99))


def percent(share: float | None) -> str:
    """A share of 1 as a percentage without decimals; `-` for None."""
    return "-" if share is None else f"{round(share * 100)}%"


def size(count: Any) -> str:
    """A number of bytes in B, kB, MB or GB; `-` for None, and a damaged one as it stands."""
    if count is None:
        return "-"
    if not isinstance(count, (int, float)):
        return str(count)
    amount = float(min(count, 10**300))  # more is damage, and no float holds it
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def many(count: int, what: str) -> str:
    """`1 pair`, `7 pairs`."""
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def nodes(count: int) -> str:
    """`1 node`, `7 nodes`."""
    return many(count, "node")
