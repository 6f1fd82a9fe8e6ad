"""In which state a run found the process, from what the journal tells: five classes, and the evidence.

Two steps. What one run tells by itself (`facts`, `local`) is worked out with its row; what the runs before it
in the process add to that (`History`) afterwards, in order of their starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from stagexec.reading.runs import Run

COLD = "process_cold"
LOADED = "model_cold_process_warm"
SWITCHED = "model_switch_A_B_A"
RECOMPUTED = "model_warm_recompute"
CACHED = "cache_hit_rerun"

CLASSES = (COLD, LOADED, SWITCHED, RECOMPUTED, CACHED)

WORKED = ("executed", "failed", "pending")
"""Kinds of visits that were computed, or at least begun."""

STAGE = "model_load_residency"
PARTS = frozenset({"read", "build"})
"""Parts of that stage that mean a file was read or a model made; `upload` is also the mere asking."""

NO_MODELS = frozenset({"read_embedding"})
"""Seams of that stage that read a part of a text and no model."""

MARKS = frozenset({"model_load", "weights_read"})
"""Marks that tell of models."""

EVICTED_NS = 10_000_000
"""Giving memory back under pressure that took less gave nothing back: it was only looked whether to."""


class Facts(msgspec.Struct, omit_defaults=True):
    """What one run tells of models; the cell `models` of its row."""

    asked: list[str] = []
    """Each model asked onto the device, as class:bytes:identity."""
    loaded: list[str] = []
    """Those of them that were not there."""
    files: list[str] = []
    """What was read, by the digests of the files' names; else by the prompt and node that read."""
    read: int = 0
    built: int = 0
    """How many visits read a file, and how many built a model."""
    evicted: bool = False
    """The host gave memory back under pressure meanwhile."""

    @property
    def is_load(self) -> bool:
        """Was anything read, built or uploaded?"""
        return bool(self.loaded or self.read or self.built)


class Startup(NamedTuple):
    """The class of a run, and the run that came between a model's last use and its being loaded again."""

    name: str | None
    between: str | None = None


class Collected:
    """Gathers the facts of one run from its marks and segments."""

    def __init__(self, prompt_hash: str | None) -> None:
        self._prompt_hash = prompt_hash
        self._asked: dict[str, None] = {}
        self._loaded: dict[str, None] = {}
        self._files: dict[str, None] = {}
        self._visits: dict[str, set[int | None]] = {"read": set(), "build": set()}
        self._evicted_ns = 0

    def mark(self, name: str, detail: Any) -> None:
        """A mark of MARKS, its detail as details.checked gives it."""
        if not isinstance(detail, dict):
            return
        if name == "weights_read":
            if isinstance(detail.get("file"), str):
                self._files[detail["file"]] = None
            return
        for model in detail.get("models", ()):
            key = f"{model.get('class')}:{model.get('bytes')}:{model.get('id')}"
            self._asked[key] = None
            if model.get("resident") is False:
                self._loaded[key] = None

    def segments(
        self,
        stages: Sequence[str],
        parts: Sequence[str | None],
        starts: Sequence[int],
        ends: Sequence[int],
        visits: Sequence[int | None],
        seams: Sequence[str | None],
    ) -> None:
        """Closed segments, a column each. Most have no such part: that is seen at once."""
        if "read" not in parts and "build" not in parts and "eviction" not in parts:
            return
        for stage, part, start, end, visit, seam in zip(
            stages, parts, starts, ends, visits, seams, strict=True
        ):
            if part == "eviction":
                self._evicted_ns += end - start
            elif stage == STAGE and part in PARTS and seam not in NO_MODELS:
                self._visits[str(part)].add(visit)

    def facts(self) -> Facts | None:
        """All of it; None where the run tells nothing of models."""
        read, built = (len(self._visits[part]) for part in ("read", "build"))
        evicted = self._evicted_ns >= EVICTED_NS
        if not (self._asked or self._files or read or built or evicted):
            return None
        files = list(self._files)
        if not files and (read or built) and self._prompt_hash is not None:
            files = [f"prompt:{self._prompt_hash}"]
        return Facts(list(self._asked), list(self._loaded), files, read, built, evicted)


def facts_of(run: Run) -> Facts | None:
    """The facts of a folded run."""
    found = Collected(run.accepted.prompt_hash if run.accepted else None)
    for mark in run.marks:
        if mark.name in MARKS:
            found.mark(mark.name, mark.detail)
    rows = run.segments
    found.segments(rows.stage, rows.part, rows.start_ns, rows.end_ns, rows.visit, rows.seam)
    return found.facts()


def local(raw: str | None, worked: bool, cached: bool, facts: Facts | None) -> str | None:
    """The class as far as a run tells it by itself; `raw` is what its writer said, `process_cold` or not."""
    if not worked:
        return CACHED if cached else None
    if raw == COLD:
        return COLD
    return LOADED if facts is not None and facts.is_load else RECOMPUTED


def local_of(run: Run) -> str | None:
    """The same of a folded run."""
    if run.started is None:
        return None
    kinds = [visit.kind for visit in run.visits()]
    worked = any(kind in WORKED for kind in kinds)
    return local(run.started.startup_class, worked, bool(run.cached) or "cached" in kinds, facts_of(run))


class History:
    """The runs of one process so far, in order of their starts."""

    def __init__(self) -> None:
        self._count = 0
        """Runs that computed."""
        self._has_first = False
        self._last: dict[str, int] = {}
        """Model or file -> which of them used it last."""
        self._files_of: dict[str, list[str]] = {}
        """Model -> files that were read in the run that loaded it: who uses it, uses them."""
        self._before: str | None = None
        self._evicted = False

    def take(self, run_id: str, raw: str | None, name: str | None, facts: Facts | None) -> Startup:
        """The class of the next run; `name` is its class by itself, or after an earlier call."""
        self._has_first = self._has_first or raw == COLD
        if name is None or name == CACHED:
            return Startup(name)
        is_first = self._has_first and self._count == 0
        if facts is not None and facts.evicted:
            self._evicted = True
        found = Startup(COLD) if is_first or raw == COLD else self._warm(facts)
        self._use(facts or Facts())
        self._count += 1
        self._before = run_id
        return found

    def _warm(self, facts: Facts | None) -> Startup:
        if facts is None or not facts.is_load:
            return Startup(RECOMPUTED)
        had = [self._last[key] for key in self._keys(facts) if key in self._last]
        if had and min(had) < self._count - 1:
            return Startup(SWITCHED, self._before)
        return Startup(SWITCHED if had and self._evicted else LOADED)

    def _keys(self, facts: Facts) -> list[str]:
        """What says whether a model that was loaded is one that the process had.

        A model that was read again is another object, and may lie where the last one lay: the file tells.
        """
        known = [key for key in facts.files if key in self._last]
        if known or (facts.files and not facts.files[0].startswith("prompt:")):
            return known
        if facts.read or facts.built:
            return [_alike(key) for key in facts.loaded]
        return facts.loaded

    def _use(self, facts: Facts) -> None:
        for key in facts.files:
            self._last[key] = self._count
        for key in facts.asked:
            if key in facts.loaded and facts.files:
                self._files_of[key] = facts.files
            for one in (key, _alike(key), *self._files_of.get(key, ())):
                self._last[one] = self._count
        if facts.is_load:
            self._evicted = facts.evicted


def _alike(key: str) -> str:
    """Class and size of a model: all that is left of one that was read again, where no file is told."""
    return key.rpartition(":")[0]


def own_class(name: str | None, facts: Facts | None) -> str | None:
    """What a row's class is without its history."""
    if name is None or name == CACHED:
        return name
    return LOADED if facts is not None and facts.is_load else RECOMPUTED


def assign(runs: Iterable[Run]) -> None:
    """Give the runs of one process, all of them, their classes."""
    history = History()
    started = [run for run in runs if run.started is not None]
    for run in sorted(started, key=lambda one: one.started.ts_mono_ns if one.started else 0):
        raw = run.started.startup_class if run.started else None
        run.startup = history.take(run.run_id, raw, local_of(run), facts_of(run))


def evidence(name: str | None, between: str | None, facts: Facts | None) -> dict[str, Any] | None:
    """What the class is concluded from, as JSON; None where there is no class.

    `models`: how many were asked for; `uploaded`: of those, were not on the device; `read`, `built`: visits
    that read a file, or built a model; `between`: the run after which a model was loaded again.
    """
    if name is None:
        return None
    found = facts or Facts()
    return {
        "models": len(found.asked),
        "read": found.read,
        "built": found.built,
        "uploaded": len(found.loaded),
        "between": between,
        "reason": _reason(name, between, found),
    }


def _reason(name: str, between: str | None, facts: Facts) -> str:
    if name == COLD:
        return "the first run of the process that computed anything"
    if name == CACHED:
        return "no node was executed: what was asked for came from the cache"
    if name == RECOMPUTED:
        return "nodes were executed, and no model was read, built or uploaded"
    what = (
        f"{len(facts.loaded)} of {len(facts.asked)} models uploaded, {facts.read} read, {facts.built} built"
    )
    if name == SWITCHED and between is not None:
        return f"{what}: models that the process had before run {between[:8]} came between"
    if name == SWITCHED:
        return f"{what}: models that the process had, after memory was given back under pressure"
    return f"{what}, and no other work came between that and an earlier use"


_decode = msgspec.json.Decoder(Facts).decode


def cell(facts: Facts | None) -> str | None:
    """Facts as they stand in a row."""
    return None if facts is None else msgspec.json.encode(facts).decode()


def from_cell(text: str | None) -> Facts | None:
    """Facts from a row; None without, and of what is no such cell."""
    if text is None:
        return None
    try:
        return _decode(text)
    except (msgspec.DecodeError, ValueError):
        return None
