"""What a reader must know before trusting a bench's figures: as data, with the figures and what to do."""

from __future__ import annotations

from typing import Any

import msgspec

from stagexec.answers.words import percent
from stagexec.bench import speech
from stagexec.bench.plan import Unit
from stagexec.bench.tables import Tables
from stagexec.bench.units import STATES

BUSY = 0.1
"""From this share of the processors' time on, other programs are named."""


class Caution(msgspec.Struct, frozen=True):
    """One warning: its kind, a sentence, the figures in it, and what would help (empty: nothing does)."""

    kind: str
    text: str
    unit: str | None = None
    arm: str | None = None
    figures: dict[str, Any] = {}
    advice: str = ""

    @property
    def line(self) -> str:
        """The sentence and the advice."""
        return f"{self.text}. {self.advice}" if self.advice else self.text


def find(tables: Tables) -> list[Caution]:
    """All of a bench's warnings, each once."""
    found = _samples(tables)
    for unit in tables.plan.unit:
        found += _order(tables, unit)
    found += [*_ends(tables), *_page_cache(tables), *_busy(tables), *_random(tables)]
    for note in tables.results.notes:
        if note["kind"] == "died":
            text = f"{note['unit']}, {note['arm']}: a server died: {note['text']}"
            found.append(Caution("server died", text, note["unit"], note["arm"], {"pair": note.get("pair")}))
        if note["kind"] == "session" and note.get("packs_not_imported"):
            text = f"not imported: {'; '.join(note['packs_not_imported'])}"
            found.append(Caution("not imported", text, advice="Their nodes are missing in every arm."))
    if (how := state(tables)) != "finished":
        text = f"the bench is {how}: `--resume` goes on with it"
        found.append(Caution("not finished", text, figures={"state": how}))
    return list({one.text: one for one in reversed(found)}.values())[::-1]


def state(tables: Tables) -> str:
    """`finished`, or how the last sitting ended."""
    for note in reversed(tables.results.notes):
        if note["kind"] in ("finished", "interrupted", "budget"):
            return str(note["kind"])
    return "not finished"


def rounds(tables: Tables, unit: Unit) -> list[dict[str, Any]]:
    """The rounds of a unit as they were recorded; empty before its turn."""
    order = [n for n in tables.results.notes if n["kind"] == "order" and n["unit"] == unit.name]
    return list(order[-1]["rounds"]) if order else []


def _samples(tables: Tables) -> list[Caution]:
    found = []
    for cell in tables.cells:
        spread = cell.total.mad if cell.total else None
        figures = {"n": cell.n, "mad_ns": spread, "wrong_state": cell.wrong_state}
        found += [
            Caution("samples", f"{speech.where(cell)}, {cell.arm}: {text}", cell.unit, cell.arm, figures)
            for text in cell.warnings
        ]
    return found


def _order(tables: Tables, unit: Unit) -> list[Caution]:
    """How near in time the runs of a pair were, and whether one launch stands for an arm."""
    measured = [one.arm for one in tables.comparisons if one.unit == unit.name and one.total is not None]
    arms = list(dict.fromkeys(measured))
    if not arms:
        return []
    found = []
    if any(not block["interleaved"] for block in rounds(tables, unit)):
        noted = [n for n in tables.results.notes if n["kind"] == "room" and n["unit"] == unit.name]
        why = noted[-1]["why"] if noted else "the servers of all arms did not live at once"
        found.append(
            Caution(
                "not interleaved",
                f"{unit.name}: {why}, so arms took turns in rounds, each on servers of its own: the "
                "runs of a pair lie as far apart as a launch takes",
                unit.name,
                figures={"rounds": len(rounds(tables, unit)), "room": noted[-1]["figures"] if noted else []},
                advice="Fewer arms (`--arm`), or a machine with more memory, let them alternate in seconds.",
            )
        )
    sessions = {
        name: {run["session"] for place, runs in tables.measures.items() if place[:2] == (unit.name, name)
               for run in runs}
        for name in [tables.plan.reference_arm, *arms]
    }  # fmt: skip
    apart = len(set.union(*sessions.values())) > 1  # else the arms shared one server, and are alike in that
    single = [name for name, numbers in sessions.items() if len(numbers) == 1]
    if apart and single and not STATES[unit.state].launch_each:
        found.append(
            Caution(
                "one launch",
                f"{unit.name}: each of {', '.join(single)} ran in one process, and what two launches of "
                "one arm differ in cannot be told from what the arms differ in",
                unit.name,
                figures={name: len(numbers) for name, numbers in sessions.items()},
                advice="More pairs (`counted`) or fewer in a round (`chunk`) give more launches.",
            )
        )
    return found


def _busy(tables: Tables) -> list[Caution]:
    """Servers beside which other programs kept the processors busy."""
    most: dict[tuple[str, str], float] = {}
    for note in tables.results.notes:
        if note["kind"] == "closed" and note.get("others_cpu", 0) >= BUSY:
            place = (note["unit"], note["arm"])
            most[place] = max(note["others_cpu"], most.get(place, 0))
    return [
        Caution(
            "busy machine",
            f"{unit}, {arm}: other programs took {percent(share)} of the processors' time meanwhile",
            unit,
            arm,
            {"others_cpu": share},
            "Run it again on a quiet machine; `--against` needs one that is as quiet both times.",
        )
        for (unit, arm), share in most.items()
    ]


def _random(tables: Tables) -> list[Caution]:
    names = tables.results.header.get("random_weights") or []
    if not names or len(tables.plan.arm) < 2 or not tables.plan.quality.compare:
        return []
    return [
        Caution(
            "random weights",
            f"{', '.join(names)} has random weights: pictures of it say nothing of quality",
            figures={"files": names},
            advice="Give a workflow with a trained model (`--workflow`, `--models`).",
        )
    ]


def _ends(tables: Tables) -> list[Caution]:
    """Ends that this workflow does not tell apart: without an encoder several are the same place."""
    seen = {stage for cell in tables.cells for stage in cell.stages}
    missing = [stage for stage in ("postprocess", "encode_mux") if stage not in seen]
    early = [u.name for u in tables.plan.unit if u.until in ("native", "postprocess", "encode")]
    if not early or not missing or not seen:
        return []
    stages = " or ".join(missing)
    text = f"{', '.join(early)}: no run has {stages}, so some of these ends are the same place"
    return [Caution("ends", text, figures={"units": early, "stages": missing})]


def _page_cache(tables: Tables) -> list[Caution]:
    """What the system kept of the model files before cold starts."""
    cold = {unit.name for unit in tables.plan.unit if STATES[unit.state].launch_each}
    found = []
    for note in tables.results.notes:
        if note["kind"] == "session" and note["unit"] in cold and "page_cache" in note:
            what = "model files in the system's memory before each launch"
            text = f"{note['unit']}: {what}: {note['page_cache']}"
            found.append(Caution("page cache", text, note["unit"]))
    return found
