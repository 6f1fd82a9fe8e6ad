"""The runs of this process: accepted, executed, verified, closed. Every entry is fenced by the guard.

Usually one run is in execution, on the host's worker; a pack may execute others on threads of its own.
Each belongs to the thread that began it. `run` is the foremost of them, or None: a seam compares its thread
first, which is all that it costs where only one executes, and asks `elsewhere` otherwise.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stagexec import addresses
from stagexec.record import (
    clock,
    guard,
    held,
    instruments,
    memory,
    paths,
    profile,
    safe,
    watching,
    words,
    worker,
)
from stagexec.record.device import DeviceClock
from stagexec.record.devices import clock_for
from stagexec.record.guard import guarded
from stagexec.record.journal import Journal, event
from stagexec.record.nvml import Sampler
from stagexec.record.run import UNDESCRIBED, VISIT, Run
from stagexec.record.waiting import Waiting

run: Run | None = None
"""The run in execution that began first, or None while none is."""

running: dict[int, Run] = {}
"""Every run in execution by the thread that executes it, in the order of their beginnings."""

journal: Journal | None = None
timing = "baseline"
"""The process's timing mode; a single run may be armed for `profile` besides."""

device_kind: Callable[[], str | None] | None = None
"""Set by host/: torch's type of the device that the host computes on."""

unseen: Callable[[], list[str]] | None = None
"""Set by host/: what device events cannot see in this process, in words."""

device_clock: DeviceClock | None = None
"""The device's clock, made at the first run that wants one."""

sampler: Sampler | None = None
"""The NVML thread, where it was asked for."""

attention_facts: dict[str, Any] = {}
"""Set by host/: which attention function is configured, and which was asked for on the command line."""

record_text = False
"""Whether exception messages and the like may be kept (`--stagexec-record-text`)."""

after_execution: Callable[[Run, dict[str, Any]], None] | None = None
"""Set by delivery: takes a run that has been executed and closes it after its artifacts are checked."""

finishing: dict[str, Run] = {}
"""Runs that have been executed and are not closed yet, by id."""

waiting = Waiting()
_running_lock = threading.Lock()
_started = 0
_cancel_asked_ns: int | None = None


@guarded
def begin_process(folder: Path, *, watched: bool = False, **fields: Any) -> None:
    """Open this process's journal in the ledger `folder`. `watched`: a tiny process notes its death."""
    global journal
    journal = Journal(folder)
    journal.put_header(
        event(
            "process_start",
            source="process",
            ts_mono_ns=clock.ANCHOR_MONO_NS,
            ts_wall=clock.ANCHOR_WALL_NS,
            **fields,
        )
    )
    journal.start(watched)
    guard.on_fault = _file_fault


@guarded
def sample_devices(period_s: float | None) -> None:
    """Sample NVIDIA devices every `period_s` seconds while runs execute; None: not asked for."""
    global sampler
    if period_s is None or journal is None:
        return
    filed = functools.partial(journal_event, None, "nvml_sample", source="process")
    made = Sampler(period_s, clock.now_ns, lambda fields: filed(**fields))
    reason = made.start()
    if reason is None:
        sampler = made
    else:
        safe.log.warning("stagexec: no NVML samples: %s.", reason)
    period_ns = None if reason else round(period_s * 1e9)
    facts = event("nvml_facts", source="process", period_ns=period_ns, reason=reason, devices=made.facts)
    journal.put_header(facts)


@guarded
def host_facts(**fields: Any) -> None:
    """File what the host turned out to be, and which loop runs its prompts."""
    if journal is not None:
        journal.put_header(event("host_facts", source="process", **fields))


@guarded
def seam_states(states: list[dict[str, Any]]) -> None:
    """File the state of every seam; called again when they changed."""
    if journal is not None:
        journal.put_header(event("seams", source="process", seams=states))


@guarded
def accept(
    prompt_id: str,
    fields: dict[str, Any],
    condition_id: str | None = None,
    direct: bool = False,
    *,
    item: Any = None,
    waits: bool = True,
    accepted_ns: int | None = None,
) -> Run:
    """A prompt is accepted: its time counts from now, or from `accepted_ns`. Fields: see `run_accepted`.
    `waits`: something will start it later. `item`: what the host's queue is about to hold."""
    new = Run(prompt_id, accepted_ns or clock.now_ns(), clock.now_ns)
    new.item, new.queued = item, item is None
    if waits and not direct:
        waiting.add(new)
    if journal is not None:
        journal.open_run(new)
    describe(new, fields, condition_id, direct)
    if (dead := worker.missing()) is not None:
        new.mark("worker_died", dead, source="queue")
    return new


def describe(new: Run, fields: dict[str, Any], condition_id: str | None, direct: bool = False) -> None:
    """Say what a run is of. Told a second time where what is executed is not what was accepted."""
    new.condition_id = condition_id
    new.outputs = list(fields.get("selected_outputs", ()))
    new.until = fields.get("until")
    new.describe_graph(fields)
    if journal is not None:
        accepted = event(
            "run_accepted",
            new,
            source="loop" if direct else "queue",
            ts_mono_ns=new.accepted_ns,
            # Not by the process's anchor: the machine may have slept since.
            ts_wall=time.time_ns() - (clock.now_ns() - new.accepted_ns),
            stage_id="queue_wait",
            prompt_id=new.prompt_id,
            direct=direct,
            **{**UNDESCRIBED, **fields},
        )
        journal.put_now(accepted)


@guarded
def start(
    prompt_id: str, item: Any = None, accept_late: Callable[[], Run | None] | None = None
) -> Run | None:
    """The worker took the prompt: it is the run of the calling thread. Accepts it now if no queue did.

    Of several that wait under one id it is that of the queue's `item`. `accept_late` knows what it is of.
    """
    here = threading.get_ident()
    for one in list(running.values()):
        # It was not filed: a pack replaced the queue's methods, or its thread ended under it.
        if one.thread == here or not one.worker.is_alive():
            finish(one, {"host_status": None}, {})
    taken = waiting.take(prompt_id, item) or (accept_late() if accept_late is not None else None)
    taken = taken or accept(prompt_id, {}, direct=True)
    return begin(taken, take_timing) if taken is not None else None


def begin(new: Run, timing_of: Callable[[], str] | None = None) -> Run:
    """Make `new` the run of the calling thread. It is that before anything else is done, which could fail.

    `timing_of` is asked for its timing mode; without it the run has one already.
    """
    new.thread, new.worker = threading.get_ident(), threading.current_thread()
    first, beside = _enter(new)
    _prepare(new, timing_of)
    new.ledger.switch("executor_prepare", "plan")
    new.started = True
    _file_start(new, first, beside)
    return new


@guarded
def _prepare(new: Run, timing_of: Callable[[], str] | None) -> None:
    if timing_of is not None:
        new.timing = timing_of()
    if new.timing != "baseline":
        instrument(new)
    new.compiled_before = profile.compile_counters()


@guarded
def _file_start(new: Run, first: bool, beside: list[Run]) -> None:
    device, device_reason = instruments.reason_of(new)
    started = event(
        "run_started",
        new,
        source="loop",
        stage_id="executor_prepare",
        startup_class="process_cold" if first else "warm",
        timing=new.timing,
        device=device,
        device_reason=device_reason,
        unseen=unseen() if unseen is not None and device is not None else [],
    )
    if journal is not None:
        journal.put_now(started)
    for one in beside:
        for told, other in ((one, new), (new, one)):
            told.alone = False
            told.mark("beside", {"run_id": other.run_id, "prompt_id": other.prompt_id}, source="loop")
    watching.begun(running)
    if sampler is not None:  # after the event: the sample is the first one since the run's start
        sampler.poke(busy=True)


def _enter(new: Run) -> tuple[bool, list[Run]]:
    """Put a run among those in execution: is it the process's first, and which execute already?"""
    global run, _started, _cancel_asked_ns
    with _running_lock:
        thread = threading.get_ident()
        beside = [one for one in running.values() if one.thread != thread]
        if not beside:
            _cancel_asked_ns = None
        _started += 1
        running[thread] = new
        run = next(iter(running.values()))
        return _started == 1, beside


def _take_out(done: Run) -> None:
    """Take a run out of those in execution."""
    global run
    with _running_lock:
        if done.thread is not None and running.get(done.thread) is done:
            del running[done.thread]
        run = next(iter(running.values()), None)
    done.thread = done.worker = None


def here() -> Run | None:
    """The run that the caller works for: that of its thread, else of its context, else the only one."""
    current = run
    return current if current is None or current.thread == threading.get_ident() else elsewhere()


def elsewhere() -> Run | None:
    """The same for a caller on another thread than that of `run`.

    A thread that belongs to no run, and was given no context, works for the one in execution. While
    several execute it cannot be told for which: then for none.
    """
    found = running.get(threading.get_ident())
    if found is not None:
        return found
    visit = VISIT.get()
    if visit is not None:
        return visit[0]
    return run if len(running) < 2 else None


@guarded
def instrument(new: Run) -> None:
    """Attach what the run's timing mode asks for."""
    global device_clock
    if device_clock is None:
        device_clock = clock_for(device_kind() if device_kind is not None else None)
    instruments.attach(new, device_clock, journal.folder if journal is not None else None)


def take_timing() -> str:
    """The timing mode of the run that begins now: the process's, or `profile` where it is armed; disarms.

    Looks at the disk only where that is of this machine; else at what the journal's writer saw there.
    """
    if timing == "profile" or journal is None:
        return timing
    armed = paths.take_profile_flag(journal.folder) if journal.is_local else journal.take_profile()
    return "profile" if armed else timing


@guarded
def put_back(current: Run) -> None:
    """The run of the calling thread waits again: its prompt went back into the queue with nothing done."""
    current.ledger.level(0)
    current.ledger.switch("queue_wait")
    current.started = current.queued = False
    if current.instruments is not None:
        current.instruments.detach()
        current.instruments = None
    _take_out(current)
    waiting.add(current, first=True)


@guarded
def forget(left: Iterable[tuple[str, Any]], by_code: bool = False) -> None:
    """Prompts left the queue unexecuted: close every waiting run whose (prompt id, item) is not in `left`."""
    ended = ("failed", "interrupted_by_node") if by_code else ("cancelled", "user_cancel")
    for one in waiting.take_missing(left):
        one.started, one.cancel_ns = True, None if by_code else clock.now_ns()
        close(one, *ended, {"stage": "queue_wait"})


@guarded
def lose_waiting(cause: str) -> None:
    """Nothing will execute what waits: close every waiting run as lost."""
    for one in waiting.take_all():
        one.started = True
        close(one, "lost", cause, {"stage": "queue_wait"})


@guarded
def cancel_requested() -> None:
    """A person asked to interrupt what runs now. Called on the server's thread.

    The host keeps one flag, which ends the first prompt that looks at it: while several execute,
    `interrupted` tells which of them was meant.
    """
    global _cancel_asked_ns
    current, asked_ns = run, clock.now_ns()
    if len(running) > 1:
        _cancel_asked_ns = _cancel_asked_ns or asked_ns
    elif current is not None:
        _cancel(current, asked_ns)


def interrupted(current: Run) -> None:
    """The host's interrupt has ended this run: a cancel asked while several executed was meant for it."""
    global _cancel_asked_ns
    asked_ns, _cancel_asked_ns = _cancel_asked_ns, None
    if asked_ns is not None:
        _cancel(current, asked_ns)


def _cancel(of: Run, asked_ns: int) -> None:
    if of.cancel_ns is None:
        of.cancel_ns = asked_ns
        journal_event(of, "mark", source="seam", name="cancel_requested", ts_mono_ns=asked_ns, detail={})


@guarded
def finish(current: Run, fields: dict[str, Any], history: dict[str, Any]) -> None:
    """Execution is over and the host has filed it: hand the run to delivery, which closes it."""
    current.ledger.level(0)
    current.end_visit()
    watching.ended(current)
    current.ledger.switch("delivery_commit", "verify")
    current.executed, current.task = True, None
    _take_out(current)
    held.begin(current)  # from here on nothing is entered any more
    if current.instruments is not None:
        held.aside(current, "profile", current.instruments.detach)
    profile.file_facts(current, attention_facts)
    known = {
        "host_status": None,
        "executed": current.error,
        "blocked": current.blocked,
        "outputs": {},
        "cancel_ns": current.cancel_ns,
        "stopped_ns": current.stopped_ns,
    }
    sizes = memory.at_end(device_kind() if device_kind is not None else None) or {}
    told = {**known, **fields, "memory": {**(fields.get("memory") or {}), **sizes}}
    journal_event(current, "run_executed", source="loop", stage_id="delivery_commit", **told)
    if sampler is not None:
        sampler.poke(busy=run is not None)
    finishing[current.run_id] = current
    if after_execution is not None:
        after_execution(current, history)
    else:
        close(current, "success_unverified", None, None)


@guarded
def close(
    done: Run,
    outcome: str,
    cause: str | None,
    error: dict[str, Any] | None,
    reason: str | None = None,
    *,
    settle: bool = True,
) -> None:
    """End a run: its last segment ends now. What came first of several ends is its end.

    `reason`: see `run_closed`. Without `settle` its instruments are given up: another thread is still filing
    them, on a disk that hangs.
    """
    filed = False
    try:
        with done.closing:
            if done.ended_ns is None:
                done.ended_ns, done.held_ns = held.end_of(done)
                done.ledger.close(done.ended_ns)
        done.tensors.clear()
        if settle and done.instruments is not None:
            done.instruments.settle(_file_before_end)  # after the end: not in the run's time
    finally:  # the journal keeps an eye on every run until it reads this
        filed = _file_end(done, outcome, cause, error, reason)
    for callback in closed_callbacks if filed else ():
        callback(done, outcome, cause)


def _file_before_end(of: Run, event_type: str, **fields: Any) -> None:
    with of.closing:
        if not of.filed:
            journal_event(of, event_type, **fields)


def _file_end(
    done: Run, outcome: str, cause: str | None, error: dict[str, Any] | None, reason: str | None
) -> bool:
    """File the end of a run; False when it has one."""
    with done.closing:
        if done.filed:
            return False
        done.filed = True
    end = done.ended_ns or clock.now_ns()
    finishing.pop(done.run_id, None)
    journal_event(
        done,
        "run_closed",
        source="verifier",
        outcome=outcome,
        cause=cause,
        error=error,
        segment_count=None,
        accepted_ns=done.accepted_ns,
        finished_ns=end,
        ts_mono_ns=end,
        cancel_ns=done.cancel_ns,
        stopped_ns=done.stopped_ns,
        reason=reason,
        held_ns=done.held_ns,
    )
    return True


closed_callbacks: list[Callable[[Run, str, str | None], None]] = []
"""Called with each closed run: (run, outcome, cause). The host's web event hangs here."""


def journal_event(of: Run | None, event_type: str, **fields: Any) -> None:
    """File an event of a run, if there is a journal."""
    if journal is not None:
        journal.put(event(event_type, of, **fields))


@guarded
def show_open(of: Run) -> None:
    """A node's own code is about to run: it may hold the interpreter's lock until the process is killed."""
    if journal is not None and journal.show_open is not None:
        journal.show_open(of)


def current_for_thread() -> Run | None:
    """The run in execution that the calling thread executes."""
    return running.get(threading.get_ident())


def message_of(error: BaseException) -> str | None:
    """An exception's text, where text may be kept; it can hold prompts and file contents."""
    return addresses.shown(safe.text_of(error)) if record_text else None


def _file_fault(where: str, error: BaseException) -> None:
    """File a fault of ours: kind and place; its text, which can quote a prompt, where text is kept."""
    detail = {
        "where": where,
        "type": safe.ask(safe.kind_of(error), words.short_name, type(error)),
        "at": safe.place_of(error),
        "error": addresses.shown(safe.named(error))[:300] if record_text else None,
    }
    journal_event(here(), "mark", source="process", name="fault", detail=detail)
