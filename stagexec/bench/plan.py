"""A plan: the arms, the units, the order and the rules of one bench, read from TOML and checked."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import msgspec

from stagexec import files
from stagexec.bench.lines import line_of
from stagexec.bench.units import STATES, UNTIL
from stagexec.resources import bench_folder
from stagexec.stages import STAGES, TIMING_MODES

AUTO = "auto"

PAGE_CACHE = ("as it is", "drop")
"""What is done before a launch with the model files that the system keeps in memory."""


TAKEN = (
    "--listen",
    "--port",
    "--base-directory",
    "--database-url",
    "--stagexec-comfyui",
    "--stagexec-ledger",
)
"""Options that the bench gives to each server itself."""


class PlanError(Exception):
    """A plan that cannot be used; the text is one line that names the file and the line in it."""


class Edit(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """One change of the workflow: of one `node`, of all nodes of a `class`, or a node to `add`.

    `input` and `value` set one input, `set` several; `becomes` changes the class; `add` is a new node's id.
    A value may be a link, [node id, output number].
    """

    node: str | None = None
    class_name: str | None = msgspec.field(default=None, name="class")
    add: str | None = None
    input: str | None = None
    value: Any = None
    set: dict[str, Any] = {}
    becomes: str | None = None


class Needs(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """What an arm needs to run here: Python modules, a device, node classes, model files."""

    modules: list[str] = []
    device: str | None = None
    capability: str | None = None
    classes: list[str] = []
    files: list[str] = []


class Proof(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """How an arm proves that it was active. The first kind of evidence that is there decides:
    a `diagnosis` of the run (a regular expression of its name), a `field` of the condition's manifest, a
    `row` of the ledger, a class `executed`, whether nodes were `cached`, a line of the `log`.

    `value` is a regular expression that diagnosis, field or row must match; `log` is one for the log.
    """

    what: str
    diagnosis: str | None = None
    field: str | None = None
    row: str | None = None
    value: str = ""
    executed: str | None = None
    cached: bool | None = None
    log: str | None = None


class Arm(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """A variant: launch flags, environment, workflow edits, and the host tree or Python to use."""

    name: str
    about: str = ""
    args: list[str] = []
    env: dict[str, str] = {}
    edits: list[Edit] = []
    comfyui: str | None = None
    python: str | None = None
    needs: Needs = Needs()
    active: list[Proof] = []
    control: list[str] | None = None
    """Stages that this arm cannot touch; None: those of the plan."""
    levels: dict[str, str] = {}

    @property
    def launch_key(self) -> tuple[Any, ...]:
        """Arms with the same key can share a server."""
        return (tuple(self.args), tuple(sorted(self.env.items())), self.comfyui, self.python)


class Unit(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """An experiment cell: the state the server must be in, where the run ends, how many runs."""

    name: str
    state: str
    about: str = ""
    until: str = "delivery"
    warmup: int | None = None
    counted: int | None = None
    ranked: bool = True
    args: list[str] = []
    switch: list[Edit] = []
    concurrency: int = 1
    preceding: int = 0
    page_cache: str = "as it is"
    arms: list[str] = []
    """Only these arms take part; empty: all."""

    @property
    def warmups(self) -> int:
        """Runs before the first counted one, on each server: none of a cold one, one at least of others."""
        if STATES[self.state].launch_each:
            return 0
        return max(1, 3 if self.warmup is None else self.warmup)

    @property
    def pairs(self) -> int:
        """How many counted measures an arm gets."""
        default = 5 if STATES[self.state].few else 10
        return default if self.counted is None else self.counted


class Level(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """One setting of a factor."""

    name: str
    edits: list[Edit] = []
    args: list[str] = []
    needs: Needs = Needs()
    active: list[Proof] = []


class Factor(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Something that is varied together with other factors; the arms are the combinations of levels."""

    name: str
    level: list[Level]


class Quality(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """When an output counts as right. `compare`: with the reference arm's for the same seed, or not."""

    compare: bool = True
    psnr_min: float = 40.0
    ssim_min: float = 0.98
    question: str = ""


class Budget(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Limits: minutes in all (0: none), seconds a run, tries for a run in the right state, restarts."""

    minutes: float = 0
    run_seconds: float = 1800
    start_seconds: float = 240
    attempts: int = 3
    restarts: int = 2


class Plan(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """Everything a bench needs to know before it starts."""

    name: str
    about: str = ""
    workflow: str = "tiny_txt2img.json"
    reference: str | None = None
    seed: int = 20240607
    servers: int | str = AUTO
    """How many servers may live at once, at most; `auto`: one for each arm. Memory decides too."""
    chunk: int = 1
    """Pairs that the same servers measure."""
    repeats: int = 2
    """Runs of each arm in a pair, where arms have servers of their own."""
    control: list[str] = []
    """Stages that no arm can touch: the negative control."""
    timing: str = "baseline"
    fraction: int = 1
    arm: list[Arm] = []
    factor: list[Factor] = []
    unit: list[Unit] = []
    quality: Quality = Quality()
    budget: Budget = Budget()

    @property
    def reference_arm(self) -> str:
        """The arm that the others are compared with: the named one, else the first."""
        return self.reference or self.arm[0].name

    def arms_of(self, unit: Unit) -> list[Arm]:
        """The arms that take part in a unit."""
        return [arm for arm in self.arm if not unit.arms or arm.name in unit.arms]

    def server_of(self, unit: Unit, arm: Arm) -> Any:
        """What names the server that an arm runs on: arms with the same one share it."""
        return arm.launch_key if STATES[unit.state].shares_server else arm.name

    def repeats_of(self, unit: Unit) -> int:
        """Measures of each arm in a pair: more than one only where each pair has launches of its own."""
        several = len({self.server_of(unit, arm) for arm in self.arms_of(unit)}) > 1
        return self.repeats if several and not STATES[unit.state].launch_each else 1

    def measures_of(self, unit: Unit) -> int:
        """Counted measures of each arm in a unit."""
        return unit.pairs * self.repeats_of(unit)

    def control_of(self, arm: str) -> list[str]:
        """The stages that an arm cannot touch."""
        own = next((one.control for one in self.arm if one.name == arm), None)
        return self.control if own is None else own


def find(name: str) -> Path:
    """A plan's file: a path, or the name of a shipped plan. Raises PlanError."""
    folder = bench_folder() / "plans"
    try:
        given = files.place(name)
        for path in (given, folder / name, folder / f"{name}.toml"):
            if path.is_file():
                return path
        if given.exists() and (kind := files.kind_of(given)):
            raise PlanError(f"{name} is {kind}, no plan")
    except (files.BadPath, OSError) as error:
        raise PlanError(f"no plan {files.shortened(name)}: {error}") from None
    known = ", ".join(sorted(path.stem for path in folder.glob("*.toml")))
    raise PlanError(f"no plan {name}: neither a file nor one of {known}")


def shipped() -> list[Plan]:
    """The plans that come with the package, by name."""
    return [load(path) for path in sorted((bench_folder() / "plans").glob("*.toml"))]


def load(path: Path) -> Plan:
    """The plan in a file. Raises PlanError."""
    try:
        text = files.text_of(path)
    except files.BadPath as error:
        raise PlanError(str(error)) from None
    return parse(text, str(path))


def parse(text: str, name: str = "plan") -> Plan:
    """The plan in a TOML text; `name` stands in messages. Raises PlanError."""
    try:
        tree = files.toml_of(text)
    except files.BadText as error:
        at = re.search(r"\(at line (\d+)", str(error))
        line = at[1] if at else str(len(text.splitlines()))
        raise PlanError(f"{name}:{line}: not TOML: {error}") from None
    try:
        plan = msgspec.convert(tree, Plan)
    except msgspec.ValidationError as error:
        what, path = _where(str(error))
        raise PlanError(f"{name}:{line_of(text, path)}: {what}") from None
    for path, what in _complaints(plan):
        raise PlanError(f"{name}:{line_of(text, path)}: {what}")
    return expand(plan)


def _where(message: str) -> tuple[str, list[str | int]]:
    """msgspec's message without its path, and the path; an unknown key is the end of the path."""
    what, _, place = message.partition(" - at `$")
    path: list[str | int] = []
    for key, index in re.findall(r"\.([A-Za-z_]\w*)|\[(\d+)\]", place):
        path.append(key or int(index))
    unknown = re.search(r"unknown field `([^`]+)`", what)
    if unknown:
        return f"unknown key `{unknown[1]}`", [*path, unknown[1]]
    missing = re.search(r"missing required field `([^`]+)`", what)
    if missing:
        return f"the key `{missing[1]}` is missing", path
    return (f"`{path[-1]}`: {what}" if path else what), path


MOST = {"servers": 1000, "chunk": 100_000, "repeats": 1000, "fraction": 1_000_000}
"""No plan means more; a number of too many digits would be worked on for ever."""

MOST_RUNS = 100_000
MOST_ARMS = 10_000

Complaint = tuple["list[str | int]", str]


def _complaints(plan: Plan) -> list[Complaint]:
    found: list[Complaint] = []
    if not plan.unit:
        found.append(([], "a plan needs at least one [[unit]]"))
    if plan.timing not in TIMING_MODES:
        found.append((["timing"], f"timing {plan.timing!r}: one of {', '.join(TIMING_MODES)}"))
    if plan.arm and plan.factor:
        found.append((["factor", 0], "a plan has arms or factors, not both"))
    found += _number_complaints(plan)
    found += _control_complaints([], plan.control)
    if math.prod(len(factor.level) for factor in plan.factor) > MOST_ARMS:
        found.append((["factor", 0], f"the factors make more than {MOST_ARMS} arms"))
    for kind in ("arm", "unit", "factor"):
        found += _doubles(kind, [one.name for one in getattr(plan, kind)])
    for index, arm in enumerate(plan.arm):
        found += _arm_complaints(["arm", index], arm)
        found += _control_complaints(["arm", index], arm.control)
    for index, factor in enumerate(plan.factor):
        if not factor.level:
            found.append((["factor", index], f"factor {factor.name!r} has no level"))
        for place, level in enumerate(factor.level):
            found += _arm_complaints(["factor", index, "level", place], level)
    names = [arm.name for arm in plan.arm]
    if plan.reference is not None and names and plan.reference not in names:
        found.append((["reference"], f"reference {plan.reference!r} is no arm: {', '.join(names)}"))
    for index, unit in enumerate(plan.unit):
        found += _unit_complaints(index, unit)
        strange = [name for name in unit.arms if plan.arm and name not in names]
        found += [(["unit", index, "arms"], f"{name!r} is no arm: {', '.join(names)}") for name in strange]
    return found


def _number_complaints(plan: Plan) -> list[Complaint]:
    found: list[Complaint] = []
    for key, most in MOST.items():
        value = getattr(plan, key)
        if type(value) is not int:
            found += [] if value == AUTO else [([key], f'{key} is a number, or "{AUTO}"')]
        elif value < 1:
            found.append(([key], f"{key} must be 1 or more"))
        elif value > most:
            found.append(([key], f"{key} may be {most} at most"))
    limits = ("minutes", "run_seconds", "start_seconds", "attempts", "restarts")
    found += [
        (["budget", key], f"{key} is a number from 0 to 1e9")
        for key in limits
        if not 0 <= getattr(plan.budget, key) <= 1e9
    ]
    found += [
        (["quality", key], f"{key} is a number")
        for key in ("psnr_min", "ssim_min")
        if not math.isfinite(getattr(plan.quality, key))
    ]
    return found


def _control_complaints(place: list[str | int], names: list[str] | None) -> list[Complaint]:
    return [
        ([*place, "control"], f"{name!r} is no stage: {', '.join(STAGES)}")
        for name in names or ()
        if name not in STAGES
    ]


def _doubles(kind: str, names: list[str]) -> list[Complaint]:
    return [
        ([kind, index, "name"], f"two times {kind} {name!r}")
        for index, name in enumerate(names)
        if name in names[:index]
    ]


def _args_complaints(place: list[str | int], args: list[str]) -> list[Complaint]:
    named = [word.partition("=")[0] for word in args]
    return [
        ([*place, "args"], f"{name} is the bench's own: it gives each server one")
        for name in named
        if name in TAKEN
    ]


def _arm_complaints(place: list[str | int], arm: Arm | Level) -> list[Complaint]:
    found = _args_complaints(place, arm.args)
    for edit in arm.edits:
        found += [([*place, "edits"], what) for what in _edit_complaints(edit)]
    for proof in arm.active:
        named = (proof.diagnosis, proof.field, proof.row, proof.executed, proof.log)
        if not any(named) and proof.cached is None:
            found.append(([*place, "active"], f"proof {proof.what!r} names no evidence"))
        for pattern in filter(None, (proof.value, proof.log, proof.diagnosis)):
            try:
                re.compile(pattern)
            except re.error as error:
                found.append(([*place, "active"], f"proof {proof.what!r}: {pattern!r}: {error}"))
    return found


def _edit_complaints(edit: Edit) -> list[str]:
    found = []
    if edit.add is not None:
        if edit.class_name is None or edit.node is not None:
            found.append(f"the edit that adds node {edit.add!r} needs `class`, and no `node`")
    elif (edit.node is None) == (edit.class_name is None):
        found.append("an edit names either a `node` or a `class`")
    if (edit.input is None) != (edit.value is None):
        found.append("`input` and `value` go together")
    if edit.add is None and edit.input is None and not edit.set and edit.becomes is None:
        found.append("an edit changes nothing: give `input` and `value`, `set` or `becomes`")
    return found


def _unit_complaints(index: int, unit: Unit) -> list[Complaint]:
    place: list[str | int] = ["unit", index]
    found: list[Complaint] = []
    if unit.state not in STATES:
        return [([*place, "state"], f"unknown state {unit.state!r}: one of {', '.join(STATES)}")]
    if unit.until not in UNTIL:
        found.append(([*place, "until"], f"unknown end {unit.until!r}: one of {', '.join(UNTIL)}"))
    if unit.page_cache not in PAGE_CACHE:
        found.append(([*place, "page_cache"], f"page_cache is one of {', '.join(PAGE_CACHE)}"))
    if unit.warmup and STATES[unit.state].launch_each:
        found.append(([*place, "warmup"], f"the state {unit.state} knows no warm-up: it would not be cold"))
    if (unit.warmup or 0) < 0 or unit.pairs < 1:
        found.append(([*place, "counted"], "warmup must be 0 or more, counted 1 or more"))
    found += [
        ([*place, key], f"{key} is from 0 to {MOST_RUNS}")
        for key in ("warmup", "counted", "concurrency", "preceding")
        if not 0 <= (getattr(unit, key) or 0) <= MOST_RUNS
    ]
    if unit.state == "switch" and not unit.switch:
        found.append((place, f"unit {unit.name!r}: the state switch needs `switch` edits"))
    if unit.state == "queue" and unit.concurrency + unit.preceding < 2:
        found.append((place, f"unit {unit.name!r}: a queue needs `concurrency` or `preceding` of 2 in all"))
    found += _args_complaints(place, unit.args)
    for edit in unit.switch:
        found += [([*place, "switch"], what) for what in _edit_complaints(edit)]
    return found


def expand(plan: Plan) -> Plan:
    """The plan with its arms spelled out: combinations of factors, or one arm that changes nothing."""
    if plan.factor:
        return msgspec.structs.replace(plan, arm=combinations(plan), factor=[])
    return plan if plan.arm else msgspec.structs.replace(plan, arm=[Arm("as it is")])


def combinations(plan: Plan) -> list[Arm]:
    """One arm a combination of levels; with `fraction` k only those whose level numbers add up to a
    multiple of k: every level of a factor with a multiple of k levels then stays as frequent as before."""
    arms = []
    for picked in itertools.product(*(list(enumerate(factor.level)) for factor in plan.factor)):
        if sum(number for number, _ in picked) % plan.fraction:
            continue
        levels = [level for _, level in picked]
        arms.append(
            Arm(
                name=" + ".join(level.name for level in levels),
                edits=[edit for level in levels for edit in level.edits],
                args=[word for level in levels for word in level.args],
                needs=_needs(levels),
                active=[proof for level in levels for proof in level.active],
                levels={f.name: level.name for f, level in zip(plan.factor, levels, strict=True)},
            )
        )
    return arms


def _needs(levels: list[Level]) -> Needs:
    asked = [level.needs for level in levels]
    return Needs(
        modules=[name for need in asked for name in need.modules],
        device=next((need.device for need in asked if need.device), None),
        capability=max((need.capability for need in asked if need.capability), default=None),
        classes=[name for need in asked for name in need.classes],
        files=[name for need in asked for name in need.files],
    )
