"""The result as a page and as JSON."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Sequence
from typing import Any

from tests.packs.play import Played, Together
from tests.packs.wanted import Pack, Wanted, plain

PLACE = re.compile(r"(?:/[\w.@+-]+)+(?=/(?:custom_nodes|site-packages|output|comfy)\b)")

HEAD = """# Real node packs, stock ComfyUI against ours

Made by `make packs`; do not edit. {day}, ComfyUI {version}, executors: {labels}.

Each pack is loaded alone and with all others, on stock ComfyUI and on ours. Both are shown the same prompts
(`tests/packs/graphs/`), each at least twice, and these are compared: what failed to load and why, the classes
and their inputs, history and jobs, every websocket message in order, every file byte for byte, how often and
by whom each hook of a node class was called. `INPUT_TYPES` may be asked less often; that stagexec asks each
class once itself, to know its stage, is not counted. The ledger must agree with itself.

**{packs} packs, {alone} graphs played alone, {together} with all packs, {differences} differences.**
"""


def markdown(
    version: str,
    labels: Sequence[str],
    packs: Sequence[Pack],
    alone: Sequence[Together],
    together: Together | None,
    absent: Sequence[Wanted],
) -> str:
    """The page."""
    everything = [*alone, *([together] if together else [])]
    head = HEAD.format(
        day=datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        version=version,
        labels=", ".join(labels),
        packs=len(packs),
        alone=sum(ran(each.played) for each in alone),
        together=ran(together.played) if together else 0,
        differences=sum(len(each.all_differences) for each in everything),
    )
    parts = [head, "## Packs\n", _packs(packs, alone, together)]
    if absent:
        parts += ["## Not at hand\n", "\n".join(f"* {each.name} ({each.repository})" for each in absent)]
    if gone := _not_played(everything):
        parts += ["## Not played, or ended otherwise than meant (on both sides)\n", gone]
    if found := [each for one in everything for each in one.all_differences]:
        parts += ["## Differences\n", "\n".join(f"```\n{each}\n```" for each in found)]
    parts += ["## The stage that each class was given\n", _stages(everything)]
    return "\n".join(f"{part}" for part in parts).rstrip() + "\n"


def as_json(alone: Sequence[Together], together: Together | None, absent: Sequence[Wanted]) -> dict[str, Any]:
    """The same, for programs."""
    return {
        "alone": [dataclasses.asdict(each) for each in alone],
        "together": dataclasses.asdict(together) if together else None,
        "not_at_hand": [each.name for each in absent],
        "differences": sum(len(each.all_differences) for each in (*alone, together) if each),
    }


def ran(played: Sequence[Played]) -> int:
    """How many of the graphs were played."""
    return sum(not each.not_played for each in played)


def _packs(packs: Sequence[Pack], alone: Sequence[Together], together: Together | None) -> str:
    rows = [
        "| pack | commit | classes | graphs alone | nodes run | graphs with all | differences | seams lost |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for pack in packs:
        ones = [each for each in alone if each.packs == [pack.name]]
        sets = [*ones, *([together] if together and pack.name in together.packs else [])]
        if not sets:
            rows.append(f"| {pack.name} | {pack.version()} | | not played yet | | | | |")
            continue
        own = [each for one in ones for each in one.played if plain(each.pack) == plain(pack.name)]
        mine = [each for each in together.played if plain(each.pack) == plain(pack.name)] if together else []
        bad = sum(len(one.all_differences) for one in ones) + sum(len(each.differences) for each in mine)
        loaded = all(pack.name not in each.failed for each in sets)
        classes = sets[0].classes.get(pack.name, 0) if loaded else "does not load"
        seams = "; ".join(f"{name} {cell(what)}" for one in ones for name, what in sorted(one.seams.items()))
        nodes = sum(each.executed for each in (*own, *mine))
        rows.append(
            f"| {pack.name} | {pack.version()} | {classes} | {ran(own)}/{len(own)} | {nodes} |"
            f" {ran(mine)}/{len(mine)} | {bad} | {seams or 'none'} |"
        )
    if together:
        names = "; ".join(f"{name} {cell(what)}" for name, what in sorted(together.seams.items())) or "none"
        nodes, classes = sum(each.executed for each in together.played), sum(together.classes.values())
        rows.append(
            f"| all together | | {classes} | | {nodes} | {ran(together.played)}/{len(together.played)} |"
            f" {len(together.all_differences)} | {names} |"
        )
    return "\n".join(rows) + "\n"


def _not_played(everything: Sequence[Together]) -> str:
    lines: dict[str, None] = {}
    for one in everything:
        for name, why in one.failed.items():
            lines[f"* {name} does not load: {cell(why)}"] = None
        for each in one.played:
            why = each.not_played or ("" if each.as_meant else each.error or each.ended)
            if why:
                lines[f"* {each.pack}, {each.graph}: {cell(why)}"] = None
    return "\n".join(lines) + "\n" if lines else ""


def _stages(everything: Sequence[Together]) -> str:
    rows = ["| pack | stage (where that is known from): classes |", "|---|---|"]
    found: dict[str, dict[str, str]] = {}
    for one in everything:
        for each in one.played:
            found.setdefault(each.pack, {}).update(each.stages)
    for pack, stages in sorted(found.items()):
        classes: dict[str, list[str]] = {}
        for name, stage in sorted(stages.items()):
            classes.setdefault(stage, []).append(name)
        text = "; ".join(f"{stage}: {', '.join(names)}" for stage, names in sorted(classes.items()))
        if text:
            rows.append(f"| {pack} | {cell(text)} |")
    return "\n".join(rows) + "\n"


def cell(text: str) -> str:
    """`text` in a cell of a table: one line, no bars, and no folder of this machine."""
    text = PLACE.sub("…", text)
    return " ".join(text.replace("|", "\\|").split())[:4000]
