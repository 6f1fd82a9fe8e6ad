"""The runner: units in order, arms in their turns, each run proved and written down as it ends.

It knows servers only through the `Lab` protocol, so that its logic runs on a scripted lab in the tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from stagexec.bench import arms, progress, schedule, units
from stagexec.bench.plan import AUTO, Arm, Plan, Unit
from stagexec.bench.results import Record, Results, complete
from stagexec.bench.room import Room

KEPT = (
    "run_id", "prompt_id", "condition_id", "outcome", "cause", "error_stage", "error_node", "startup_class",
    "executor", "timing", "accepted_wall", "total_ns", "device_ns", "device_reason", "stages",
    "device_stages", "wasted_ns", "wasted_kind", "host_version",
    "executed_nodes", "cached_nodes", "cached_in_run", "memory", "nvml", "until", "error",
)  # fmt: skip
"""What a raw run keeps of the object of `show`; the rest stays in the ledger."""

Watch = Callable[[str, Record], None]
"""Called with the name of what happened and its facts, for a display."""


class ArmFailed(Exception):
    """An arm cannot run here, or no further; one line says why."""


class SessionLost(Exception):
    """A server died or hung. `observed` is what the ledger has of the run that it took along, or None."""

    def __init__(self, text: str, observed: Observed | None = None) -> None:
        super().__init__(text)
        self.observed = observed


class BudgetUsed(Exception):
    """The plan's minutes are over."""


@dataclass
class Observed:
    """One closed run: the object of `show`, its condition's fields, and its delivered files on this disk."""

    detail: dict[str, Any]
    manifest: dict[str, Any] | None = None
    files: list[Path] = field(default_factory=list)
    around: dict[str, Any] = field(default_factory=dict)
    """What else the machine did meanwhile: see `load.Meter.around`."""


class Session(Protocol):
    """One running server."""

    def submit(self, prompt: arms.Prompt, until: str) -> str:
        """Queue a prompt; its prompt id. Raises ArmFailed when it is refused, SessionLost."""

    def result(self, prompt_id: str, seconds: float) -> Observed:
        """Wait for a prompt's run to be closed. Raises SessionLost."""

    def settle(self) -> None:
        """Ask the server to drop its caches. Raises SessionLost."""

    def room(self, more: int) -> Room:
        """Whether `more` servers like this one, which has run its warm-ups, may live beside it."""

    def log(self) -> str:
        """What the server has printed."""

    def close(self) -> Record | None:
        """Stop the server; what is to be kept of its life."""


class Lab(Protocol):
    """Where servers come from."""

    def why_not(self, arm: Arm, args: Sequence[str]) -> str | None:
        """Why an arm cannot run here; None when nothing speaks against it."""

    def open(self, arm: Arm, args: Sequence[str], cold: bool, page_cache: str) -> tuple[Session, Record]:
        """A ready server, and what is to be kept of it. A `cold` one has not run anything yet.

        Raises ArmFailed.
        """


@dataclass
class Seat:
    """An arm's server in a unit, and the arms that are warm on it."""

    session: Session
    number: int
    unit: str
    arm: str
    """The arm that it was started for."""
    warm: set[str] = field(default_factory=set)
    answers: dict[str, list[Record]] = field(default_factory=dict)
    """arm -> what its proofs have shown so far; a cached run alone can show little."""


class Bench:
    """One plan on one lab, into one result folder."""

    def __init__(self, plan: Plan, lab: Lab, results: Results, watch: Watch | None = None) -> None:
        self.plan, self.lab, self.results = plan, lab, results
        self.watch = watch or (lambda name, facts: None)
        self.seats: dict[Any, Seat] = {}
        self.out: dict[tuple[str, str], str] = {}
        """(unit, arm) -> why it takes no further part."""
        self.restarts: dict[tuple[str, str], int] = {}
        self.room = 1
        """How many servers may live at once now."""
        self.sessions = sum(note["kind"] == "session" for note in results.notes)
        self.end = time.monotonic() + plan.budget.minutes * 60 if plan.budget.minutes else None
        positions = {unit.name: len(units.steps(unit.state, unit.concurrency)) for unit in plan.unit}
        self.done = set(complete(results.runs, positions))

    # --- the whole ---

    def run(self) -> None:
        """Everything that is not done yet. Servers are stopped however this ends."""
        self._tell("start")
        try:
            for unit in self.plan.unit:
                self._unit(unit)
                self._close_all()
            self._note("finished")
        except BudgetUsed:
            self._note("budget", minutes=self.plan.budget.minutes)
        except KeyboardInterrupt:
            self._note("interrupted")
            raise
        finally:
            self._close_all()

    def _unit(self, unit: Unit) -> None:
        prompts = {arm.name: self._prepare(unit, arm) for arm in self.plan.arms_of(unit)}
        taking_part = [arm for arm in self.plan.arms_of(unit) if prompts[arm.name] is not None]
        keys = {arm.name: self.plan.server_of(unit, arm) for arm in taking_part}
        first_of = list(keys.values())
        taking_part.sort(key=lambda arm: first_of.index(keys[arm.name]))  # arms of one server side by side
        by_name = {arm.name: arm for arm in taking_part}

        def turn(name: str, pair: int) -> Turn | None:
            place, prompt = (unit.name, name, pair), prompts[name]
            if place in self.done or place[:2] in self.out or prompt is None:
                return None
            return Turn(unit, by_name[name], pair, prompt, keys[name])

        warm = not units.STATES[unit.state].launch_each
        several = len(set(keys.values())) > 1
        for number, block in enumerate(self._rounds(unit, keys, turn)):
            left = [found for pair, name in schedule.turns(block) if (found := turn(name, pair))]
            if warm and several and left and number:
                self._close_all()  # each round has launches of its own
            if warm and block.together:  # all are warm before one is measured
                for one in {found.arm.name: found for found in left}.values():
                    self._take_seat(one)
            for pair, name in schedule.turns(block):
                if (found := turn(name, pair)) is not None:
                    self._measure(found)

    def _rounds(
        self, unit: Unit, keys: dict[str, Any], turn: Callable[[str, int], Turn | None]
    ) -> list[schedule.Round]:
        """The unit's schedule: that of an earlier sitting, else a new one that fits the memory."""
        own = 1 if units.STATES[unit.state].launch_each else len(set(keys.values()))
        count = self.plan.measures_of(unit)
        for note in self.results.notes:
            if note["kind"] == "order" and note["unit"] == unit.name:
                recorded = [_round_of(told) for told in note["rounds"]]
                if sum(len(one.pairs) for one in recorded) >= count and set(keys) <= {*recorded[0].orders[0]}:
                    self.room = own if recorded[0].together else 1
                    return recorded
        self.room = own
        size = progress.round_size(self.plan, unit) if own > 1 else count
        common = (list(keys), count, self.plan.seed, unit.name, size)
        if own > 1:
            first = schedule.rounds(*common, False)[0].orders[
                0
            ]  # whose server is the first if none fits beside
            answer = self._ask_room(own, [one for name in first if (one := turn(name, 0))])
            self._note("room", unit=unit.name, fits=answer.fits, why=answer.why, figures=answer.figures)
            self.room = own if answer.fits else 1
        plan = schedule.rounds(*common, self.room == own)
        self._note("order", unit=unit.name, seed=self.plan.seed, rounds=[_told_round(one) for one in plan])
        return plan

    def _ask_room(self, own: int, first: list[Turn]) -> Room:
        """Whether all arms' servers may live at once, by what the first one takes after its warm-ups."""
        if self.plan.servers != AUTO and int(self.plan.servers) < own:
            return Room(False, f"the plan allows {self.plan.servers} of {own} servers at a time")
        for turn in first:
            self._take_seat(turn)
            seat = self.seats.get(turn.seat_key)
            if seat is not None:
                return seat.session.room(own - 1)
        return Room(False, "no server could be started")

    def _take_seat(self, turn: Turn) -> None:
        """Start and warm the arm's server before its turn; one that fails drops the arm, or is tried then."""
        try:
            self._seat(turn)
        except ArmFailed as error:
            self._drop(turn, "failed", str(error))
        except SessionLost as error:
            if not self._may_restart(turn, error, None):
                self._drop(turn, "failed", f"its servers die: {error}")

    def _prepare(self, unit: Unit, arm: Arm) -> tuple[arms.Prompt, arms.Prompt] | None:
        """The arm's workflow and its switched one; None, and a note, when it cannot take part."""
        args = [*arm.args, *units.STATES[unit.state].args, *unit.args]
        try:
            prompt = arms.edited(self.results.workflow, arm.edits)
            switched = arms.edited(prompt, unit.switch)
        except arms.CannotEdit as error:
            self._leave(unit, arm, "unavailable", str(error))
            return None
        if reason := self.lab.why_not(arm, args):
            self._leave(unit, arm, "unavailable", reason)
            return None
        return prompt, switched

    # --- one measure ---

    def _measure(self, turn: Turn) -> None:
        """All runs of one pair of one arm, again until they are in the right state or tries are used up."""
        why = "no try was made"
        attempt = self._tried(turn)
        last = attempt + self.plan.budget.attempts
        while attempt < last:
            if self.end is not None and time.monotonic() > self.end:
                raise BudgetUsed
            try:
                wrong = self._attempt(turn, attempt)
            except ArmFailed as error:
                return self._drop(turn, "failed", str(error))
            except SessionLost as error:
                if not self._may_restart(turn, error, attempt):
                    return self._drop(turn, "failed", f"its servers die: {error}")
                last += 1  # a death is counted by itself, not as a try for the right state
                attempt += 1
                continue
            if turn.key in self.out:
                return self._close_own(turn)
            if wrong is None:
                self.done.add((turn.unit.name, turn.arm.name, turn.pair))
                self._tell("measure")
                return None
            why, attempt = wrong, attempt + 1
            self._unsettle(turn)
        text = f"never in the state {turn.unit.state} in {self.plan.budget.attempts} tries: {why}"
        return self._drop(turn, "never in state", text)

    def _tried(self, turn: Turn) -> int:
        """How many attempts of this measure earlier sittings have written."""
        key = (turn.unit.name, turn.arm.name, turn.pair)
        runs = [r for r in self.results.runs if r["role"] != "warmup"]
        seen = [r["attempt"] for r in runs if (r["unit"], r["arm"], r["pair"]) == key]
        return max((number for number in seen if number is not None), default=-1) + 1

    def _attempt(self, turn: Turn, attempt: int) -> str | None:
        """One try; why it does not count, or None."""
        seat = self._seat(turn)
        if turn.key in self.out:
            return None
        unit = turn.unit
        ahead = [self._submit(turn, seat, units.Step("ahead", 50 + n)) for n in range(unit.preceding)]
        steps = units.steps(unit.state, unit.concurrency)
        wrong = None
        if unit.state == "queue":
            sent = [(step, *self._submit(turn, seat, step)) for step in steps]
            for prompt_id, prompt in ahead:
                self._collect(turn, seat, units.Step("ahead"), prompt_id, prompt, "preceding", attempt)
        else:
            sent = []
        for number, step in enumerate(steps):
            _, prompt_id, prompt = sent[number] if sent else (step, *self._submit(turn, seat, step))
            run, observed = self._collect(turn, seat, step, prompt_id, prompt, "counted", attempt)
            self._prove(turn, seat, observed)
            if turn.key in self.out:
                return None
            wrong = wrong or run["why"]
        return wrong

    def _submit(self, turn: Turn, seat: Seat, step: units.Step) -> tuple[str, arms.Prompt]:
        state = units.STATES[turn.unit.state]
        seed = self.plan.seed + (0 if state.same_seed else turn.pair * 100 + step.shift)
        return self._send(turn, seat, step, seed)

    def _send(self, turn: Turn, seat: Seat, step: units.Step, seed: int) -> tuple[str, arms.Prompt]:
        prompt = turn.prompts[1 if step.switched else 0]
        prompt = arms.seeded(prompt, units.seed_inputs(prompt), seed)
        return seat.session.submit(prompt, turn.unit.until), prompt

    def _collect(
        self, turn: Turn, seat: Seat, step: units.Step, prompt_id: str, prompt: arms.Prompt, role: str,
        attempt: int,
    ) -> tuple[Record, Observed]:  # fmt: skip
        observed = seat.session.result(prompt_id, self.plan.budget.run_seconds)
        return self._keep(turn, seat.number, step, observed, prompt, role, attempt), observed

    def _keep(
        self, turn: Turn, session: int, step: units.Step, observed: Observed, prompt: arms.Prompt, role: str,
        attempt: int | None,
    ) -> Record:  # fmt: skip
        """Write a run down, with what speaks against counting it."""
        detail, unit = observed.detail, turn.unit
        why = None
        if role == "counted":
            why = units.wrong_state(unit.state, step, detail, prompt) or units.beyond(unit.until, detail)
        place = (unit.name, turn.arm.name, str(turn.pair), step.position or "run")
        run = {
            "unit": unit.name,
            "arm": turn.arm.name,
            "pair": turn.pair,
            "position": step.position,
            "role": role,
            "attempt": attempt,
            "right_state": why is None,
            "why": why,
            "session": session,
            "seeds": [[n, i, prompt[n]["inputs"][i]] for n, i in units.seed_inputs(prompt)],
            "machine": self.results.header.get("machine"),
            "around": observed.around,
            **{name: detail.get(name) for name in KEPT},
            "marks": sorted({mark["name"] for mark in detail.get("marks", ())}),
            "artifacts": [
                {name: a.get(name) for name in ("path", "bytes", "sha256", "state", "media", "cached")}
                for a in detail.get("artifacts", ())
            ],
            "files": self.results.keep(place, observed.files) if role == "counted" and why is None else [],
        }
        self.results.add_run(run)
        self.watch("run", run)
        return run

    # --- servers ---

    def _seat(self, turn: Turn) -> Seat:
        """A server of the arm, warm where the unit wants it warm."""
        state = units.STATES[turn.unit.state]
        seat = None if state.launch_each else self.seats.get(turn.seat_key)
        if seat is None:
            if len(self.seats) >= (1 if state.launch_each else self.room):
                self._close_all()
            seat = self._open(turn, cold=state.launch_each)
        if turn.arm.name not in seat.warm:
            seat.warm.add(turn.arm.name)
            self._warm_up(turn, seat)
        return seat

    def _open(self, turn: Turn, cold: bool) -> Seat:
        unit, arm = turn.unit, turn.arm
        self.watch("open", {"unit": unit.name, "arm": arm.name})
        args = [*arm.args, *units.STATES[unit.state].args, *unit.args]
        session, facts = self.lab.open(arm, args, cold, unit.page_cache)
        self.sessions += 1
        seat = self.seats[turn.seat_key] = Seat(session, self.sessions, unit.name, arm.name)
        self._note("session", number=self.sessions, unit=unit.name, arm=arm.name, **facts)
        return seat

    def _warm_up(self, turn: Turn, seat: Seat) -> None:
        state = units.STATES[turn.unit.state]
        for number in range(turn.unit.warmups):
            for step in units.steps(turn.unit.state, 1):
                shift = 0 if state.same_seed else units.WARMUP_SEEDS + number * 10 + step.shift
                prompt_id, prompt = self._send(turn, seat, step, self.plan.seed + shift)
                _, observed = self._collect(turn, seat, step, prompt_id, prompt, "warmup", number)
                self._gather(turn, seat, observed)

    def _unsettle(self, turn: Turn) -> None:
        """After a run in the wrong state: drop the host's caches and bring it into the state again."""
        seat = self.seats.get(turn.seat_key)
        if seat is None or units.STATES[turn.unit.state].launch_each:
            return
        try:
            seat.session.settle()
            seat.warm.discard(turn.arm.name)
        except SessionLost:
            self._close(turn.seat_key)  # the next try starts another

    def _may_restart(self, turn: Turn, error: SessionLost, attempt: int | None) -> bool:
        """Note a death; whether one more server may be started."""
        self._note("died", unit=turn.unit.name, arm=turn.arm.name, pair=turn.pair, text=str(error))
        seat = self.seats.get(turn.seat_key)
        if error.observed is not None:
            number = seat.number if seat else None
            self._keep(
                turn, number or 0, units.Step("died"), error.observed, turn.prompts[0], "died", attempt
            )
        self._close(turn.seat_key)
        self.restarts[turn.key] = self.restarts.get(turn.key, 0) + 1
        return self.restarts[turn.key] <= self.plan.budget.restarts

    def _close(self, key: Any) -> None:
        """Stop a server. One whose stop is cut short by Ctrl-C keeps its seat, and is stopped at the end."""
        seat = self.seats.get(key)
        if seat is not None:
            facts = seat.session.close() or {}
            del self.seats[key]
            self._note("closed", number=seat.number, unit=seat.unit, arm=seat.arm, **facts)

    def _close_all(self) -> None:
        """Stop all servers, also when the disk is too full to keep the log of one."""
        problem: OSError | None = None
        for key in list(self.seats):
            try:
                self._close(key)
            except OSError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    # --- proofs and notes ---

    def _prove(self, turn: Turn, seat: Seat, observed: Observed) -> None:
        """Once a session and arm: was it active? An arm that was not takes no further part."""
        key = {"unit": turn.unit.name, "arm": turn.arm.name, "session": seat.number}
        if any(note["kind"] == "proof" and key.items() <= note.items() for note in self.results.notes):
            return
        if observed.detail["outcome"] in ("failed", "cancelled", "lost"):
            return
        answers = self._gather(turn, seat, observed)
        self._note("proof", **key, active=all(a["ok"] for a in answers), checks=answers)
        failed = [a for a in answers if not a["ok"]]
        if failed:
            texts = [f"{a['what']}: {_told(a)}" for a in failed]
            self._leave(turn.unit, turn.arm, "not active", "; ".join(texts))

    def _gather(self, turn: Turn, seat: Seat, observed: Observed) -> list[Record]:
        """The arm's proofs after one more run of this session: what was shown once stays shown."""
        log = seat.session.log()
        new = [arms.prove(proof, observed.manifest, observed.detail, log) for proof in turn.arm.active]
        old = seat.answers.get(turn.arm.name, new)
        best = [a if a["ok"] or b["ok"] is None else b for a, b in zip(old, new, strict=True)]
        seat.answers[turn.arm.name] = best
        return best

    def _drop(self, turn: Turn, status: str, reason: str) -> None:
        self._leave(turn.unit, turn.arm, status, reason)
        self._close_own(turn)

    def _leave(self, unit: Unit, arm: Arm, status: str, reason: str) -> None:
        """The arm takes no further part in the unit; one line says why."""
        self.out[unit.name, arm.name] = status
        self._note("arm", unit=unit.name, arm=arm.name, status=status, reason=" ".join(reason.split()))

    def _close_own(self, turn: Turn) -> None:
        """Stop a server that no other arm uses."""
        if turn.seat_key == turn.arm.name:
            self._close(turn.seat_key)

    def _note(self, kind: str, **facts: Any) -> None:
        self.watch(kind, self.results.note(kind, wall=time.time_ns(), **facts))

    def _tell(self, name: str) -> None:
        left = progress.launches(self.plan, self.out, self.done)
        facts = {"planned": progress.planned(self.plan, self.out), "done": len(self.done), "launches": left}
        self.watch(name, facts)


def _told_round(block: schedule.Round) -> Record:
    orders = [list(order) for order in block.orders]
    return {"pairs": list(block.pairs), "orders": orders, "interleaved": block.together}


def _round_of(told: Record) -> schedule.Round:
    orders = tuple(tuple(order) for order in told["orders"])
    return schedule.Round(tuple(told["pairs"]), orders, told["interleaved"])


def _told(answer: Record) -> str:
    if answer["ok"] is None:
        return "no evidence was there"
    found = f" ({answer['found']})" if answer["found"] not in (None, [], "") else ""
    return f"{answer['evidence']} says otherwise{found}" if found else f"not in {answer['evidence']}"


@dataclass(frozen=True)
class Turn:
    """Whose turn it is: one arm in one pair of one unit, with its workflow and its switched one."""

    unit: Unit
    arm: Arm
    pair: int
    prompts: tuple[arms.Prompt, arms.Prompt]
    seat_key: Any

    @property
    def key(self) -> tuple[str, str]:
        """The arm in the unit."""
        return self.unit.name, self.arm.name
