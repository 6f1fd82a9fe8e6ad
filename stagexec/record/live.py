"""The runs of this process: accepted, executed, verified, closed. Every entry is fenced by the guard.

Usually one run is in execution, on the host's worker; a pack may execute others on threads of its own.
Each belongs to the thread that began it. `run` is the foremost of them, or None: a seam compares its thread
first, which is all that it costs where only one executes, and asks `elsewhere` otherwise.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from stagexec.record import clock, guard, instruments, memory, paths, profile, safe, worker
from stagexec.record.device import DeviceClock
from stagexec.record.devices import clock_for
from stagexec.record.guard import guarded
from stagexec.record.journal import Journal, event
from stagexec.record.nvml import Sampler
from stagexec.record.run import VISIT, Run

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

UNDESCRIBED: dict[str, Any] = {
    "number": None,
    "validate_ns": None,
    "selected_outputs": [],
    "nodes": [],
    "classes": [],
    "links": [],
    "output_nodes": [],
    "seeds": [],
    "prompt_hash": None,
    "number_of_nodes": None,
    "until": None,
    "left_out": [],
}
"""`run_accepted` of a prompt that no queue of ours saw."""

finishing: dict[str, Run] = {}
"""Runs that have been executed and are not closed yet, by id."""

_waiting: dict[str, list[Run]] = {}
_waiting_lock = threading.Lock()
_running_lock = threading.Lock()
_started = 0
_cancel_asked_ns: int | None = None


@guarded
def begin_process(folder: Path, **fields: Any) -> None:
    """Open the journal of this process in the ledger `folder`. Fields: see `process_start`."""
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
    journal.start()
    guard.on_fault = _file_fault


@guarded
def sample_devices(period_s: float | None) -> None:
    """Sample NVIDIA devices every `period_s` seconds while runs execute; None: nobody asked."""
    global sampler
    if period_s is None or journal is None:
        return
    made = Sampler(period_s, clock.now_ns, _file_sample)
    reason = made.start()
    if reason is None:
        sampler = made
    else:
        safe.log.warning("stagexec: no NVML samples: %s.", reason)
    period_ns = None if reason else round(period_s * 1e9)
    facts = event("nvml_facts", source="process", period_ns=period_ns, reason=reason, devices=made.facts)
    journal.put_header(facts)


def _file_sample(fields: dict[str, Any]) -> None:
    journal_event(None, "nvml_sample", source="process", **fields)


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
    prompt_id: str, fields: dict[str, Any], condition_id: str | None = None, direct: bool = False
) -> Run:
    """A prompt is accepted: from now on its time is counted. Fields: see `run_accepted`."""
    new = Run(prompt_id, clock.now_ns(), clock.now_ns)
    new.condition_id = condition_id
    new.outputs = list(fields.get("selected_outputs", ()))
    new.until = fields.get("until")
    new.class_of = dict(zip(fields.get("nodes", ()), fields.get("classes", ()), strict=False))
    if not direct:
        with _waiting_lock:
            _waiting.setdefault(prompt_id, []).append(new)
    if journal is not None:
        journal.open_run(new)
        accepted = event(
            "run_accepted",
            new,
            source="loop" if direct else "queue",
            ts_mono_ns=new.accepted_ns,
            ts_wall=clock.wall_ns(new.accepted_ns),
            stage_id="queue_wait",
            prompt_id=prompt_id,
            direct=direct,
            **{**UNDESCRIBED, **fields},
        )
        journal.put(accepted)
    dead = worker.missing()
    if dead is not None:
        new.mark("worker_died", dead, source="queue")
    return new


@guarded
def start(prompt_id: str) -> Run | None:
    """The worker took the prompt: it is the run of the calling thread. Accepts it now if no queue did."""
    here = threading.get_ident()
    for one in list(running.values()):
        # Nobody filed it: a pack replaced the queue's methods, or its thread ended under it.
        if one.thread == here or not one.worker.is_alive():
            finish(one, {"host_status": None}, {})
    with _waiting_lock:
        waiting = _waiting.get(prompt_id)
        found = waiting.pop(0) if waiting else None
        if waiting is not None and not waiting:
            _waiting.pop(prompt_id, None)
    taken = found or accept(prompt_id, {}, direct=True)
    if taken is None:
        return None
    taken.timing = take_timing()  # a look at a file: on this thread, not on the server's that accepts
    return begin(taken)


def begin(new: Run) -> Run:
    """Make `new` the run of the calling thread."""
    new.thread, new.worker = threading.get_ident(), threading.current_thread()
    if new.timing != "baseline":
        instrument(new)
    new.compiled_before = profile.compile_counters()
    new.ledger.switch("executor_prepare", "plan")
    new.started = True
    first, beside = _enter(new)
    device, device_reason = instruments.reason_of(new)
    journal_event(
        new,
        "run_started",
        source="loop",
        stage_id="executor_prepare",
        startup_class="process_cold" if first else "warm",
        timing=new.timing,
        device=device,
        device_reason=device_reason,
        unseen=unseen() if unseen is not None and device is not None else [],
    )
    for one in beside:
        for told, other in ((one, new), (new, one)):
            told.alone = False
            told.mark("beside", {"run_id": other.run_id, "prompt_id": other.prompt_id}, source="loop")
    if sampler is not None:  # after the event: the sample is the first one since the run's start
        sampler.poke(busy=True)
    return new


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
    several execute nobody can tell for which: then for none.
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
    """The timing mode of the run that begins now: the process's, or `profile` where it is armed; disarms."""
    if timing == "profile" or journal is None:
        return timing
    flag = paths.profile_flag(journal.folder)
    if not flag.exists():
        return timing
    try:
        flag.unlink()
    except OSError:  # another process was first, or it cannot be removed: then it is not ours
        return timing
    return "profile"


@guarded
def forget(prompt_ids_left: Iterable[str]) -> None:
    """Prompts left the queue unexecuted: close every waiting run that is not among `prompt_ids_left`."""
    left = Counter(prompt_ids_left)
    gone: list[Run] = []
    with _waiting_lock:
        for prompt_id in list(_waiting):
            keep = left[prompt_id]
            runs = _waiting[prompt_id]
            gone += runs[keep:]
            del runs[keep:]
            if not runs:
                del _waiting[prompt_id]
    for one in gone:
        one.cancel_ns = clock.now_ns()
        one.started = True
        close(one, "cancelled", "user_cancel", {"stage": "queue_wait"})


@guarded
def lose_waiting(cause: str) -> None:
    """Nothing will execute what waits: close every waiting run as lost."""
    with _waiting_lock:
        gone = [one for runs in _waiting.values() for one in runs]
        _waiting.clear()
    for one in gone:
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
    current.ledger.switch("delivery_commit", "verify")
    current.executed = True
    current.task = None
    _take_out(current)
    if current.instruments is not None:
        current.instruments.detach()
    file_facts(current)
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
def file_facts(of: Run) -> None:
    """Marks for what was counted during the run: attention calls, and graphs compiled."""
    if of.attention:
        of.mark("attention", {"calls": of.attention, **attention_facts})
    now = profile.compile_counters()
    grown = {name: count - of.compiled_before.get(name, 0) for name, count in now.items()}
    if any(grown.values()) and of.alone:  # the counters are the process's
        of.mark("compiled", grown, source="loop")


@guarded
def close(done: Run, outcome: str, cause: str | None, error: dict[str, Any] | None) -> None:
    """End a run: its last segment ends now."""
    end = clock.now_ns()
    try:
        with done.closing:
            end = clock.now_ns()
            done.ledger.close(end)
        done.tensors.clear()
        if done.instruments is not None:
            done.instruments.settle(journal_event)  # after the end: not in the run's time
    finally:  # the journal keeps an eye on every run until it reads this
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
        )
    for callback in closed_callbacks:
        callback(done, outcome, cause)


closed_callbacks: list[Callable[[Run, str, str | None], None]] = []
"""Told of each closed run: (run, outcome, cause). The host's web event hangs here."""


def journal_event(of: Run | None, event_type: str, **fields: Any) -> None:
    """File an event of a run, if there is a journal."""
    if journal is not None:
        journal.put(event(event_type, of, **fields))


def current_for_thread() -> Run | None:
    """The run in execution that the calling thread executes."""
    return running.get(threading.get_ident())


def message_of(error: BaseException) -> str | None:
    """An exception's text, where text may be kept; it can hold prompts and file contents."""
    return safe.text_of(error) if record_text else None


def _file_fault(where: str, error: BaseException) -> None:
    """File a fault of ours: kind and place; its text, which can quote a prompt, where text is kept."""
    detail = {
        "where": where,
        "type": safe.kind_of(error),
        "at": safe.place_of(error),
        "error": safe.named(error)[:300] if record_text else None,
    }
    journal_event(here(), "mark", source="process", name="fault", detail=detail)
