"""The journal's writer: a thread of its own, so that a run never waits for a disk.

What a run begins with is written by the thread that begins it, where the ledger lies on a disk of this
machine: some microseconds, and a kill at the next instant still finds the run in the ledger.

What happens when the disk is full or the folder vanishes: one loud warning; what matters most is written into
room that was set aside; the rest waits in memory, a bounded amount of it, and is written when writing works
again. What did not fit is counted, and the count is written (`lost_events`).
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from stagexec.format import CPU_COLUMNS, SAMPLE_COLUMNS, SPAN_COLUMNS, VISIT_COLUMNS
from stagexec.record import clock, condition, disks, paths, turns
from stagexec.record.guard import note
from stagexec.record.journal_file import JournalFile
from stagexec.record.lines import CLOSING, VITAL, WRITTEN, Line
from stagexec.record.plain import plain
from stagexec.record.process import Watcher
from stagexec.record.run import Run, take_segments
from stagexec.record.safe import log

TICK_S = 0.02
"""The writer looks for new events this often while a run is open: well below the 50 ms that may be lost."""

HEARTBEAT_S = 0.5
"""A sign of life at least this often while a run is open; the contract says 1 s."""

RETRY_S = 1.0
"""After a failed write, try again this often."""

STOP_S = 5.0
"""At the end of the process, wait this long for a write that hangs."""

MAX_CONDITIONS = 1000
"""How many manifests may wait for a disk that cannot be written."""

WAITING_BYTES = 32 * 1024**2
"""How many bytes of lines may wait for a disk that cannot be written."""

KEPT_BYTES = 32 * 1024**2
"""How many bytes of the open runs' lines are kept, to be written again where the file was removed."""

BEGIN_S = 0.5
"""At its start the process waits this long for a look at the disk; without an answer it is no local one."""

DIRECT_WAIT_S = 0.005
"""A thread that begins a run waits this long for the writer to be out of its way."""

FLAG_S = 1.0
"""On a disk of a network, how often the writer looks whether the next run is armed for `profile` timing."""

SLOW_S = 0.5
"""Two direct writes that took longer, with no node that holds the interpreter's lock, show a slow disk: the
writer does it for the next PAUSE_S."""

ANSWER_S = 0.1
"""Where the writer has to do it, its caller waits this long until it is done; after a wait in vain, and until
PAUSE_S have gone by, nothing waits."""

PAUSE_S = 5.0


class Journal:
    """One file of one process. `put` and the open runs' queues are the only ways in; both never block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, Run] = {}
        self.lost = 0
        self.is_local = False
        """Whether the folder lies on a disk of this machine; known when the writer has begun."""
        self._file = JournalFile(folder)
        self._queue: deque[dict[str, Any]] = deque()
        self._conditions: deque[condition.Manifest] = deque(maxlen=MAX_CONDITIONS)
        self._wake = threading.Event()
        self._began = threading.Event()
        self._lock = threading.Lock()  # the writer's own: never taken by a run
        self._file_lock = threading.Lock()  # held while the file is written
        self._encode = msgspec.json.Encoder(enc_hook=repr).encode
        self._waiting: list[Line] = []  # what could not be written yet
        self._kept: dict[str, list[Line]] = {}  # of each open run, what the file has
        self._kept_bytes = 0
        self._last_write = 0
        self._retry_at = 0.0
        self._retry_conditions_at = 0.0
        self._direct_again_at = 0.0
        self._wait_again_at = 0.0
        self._short = False  # the disk has no room for a whole reserve
        self._warned = False
        self._stop = False
        self._reason = ""
        self._pid = os.getpid()
        self._shown: dict[str, Any] = {}
        self._header: list[dict[str, Any]] = []
        self._in_file: list[dict[str, Any]] = []  # the header events that the present file has
        self._armed = False
        self._look_for_flag_at = 0.0
        self._watcher: Watcher | None = None
        self.show_open: Callable[[Run], None] | None = None
        """What shows the watcher the segment that is open; None where there is no watcher."""
        self._thread = threading.Thread(target=self._loop, name="stagexec-journal", daemon=True)

    @property
    def path(self) -> Path | None:
        """The file; None before the first event."""
        return self._file.path

    def start(self, watched: bool = False) -> None:
        """Begin writing; the file is made at the first event. `watched`: a process notes our death."""
        self._watched = watched
        self._thread.start()
        self._began.wait(BEGIN_S)
        atexit.register(self.stop, "exit")

    _watched = False

    def put(self, event: dict[str, Any]) -> None:
        """Hand an event to the writer."""
        self._queue.append(event)
        if not self._wake.is_set():
            self._wake.set()

    def put_now(self, event: dict[str, Any]) -> None:
        """Write an event before this returns, where that takes microseconds; else hand it to the writer."""
        if self._watcher is not None:
            self._watcher.tell(bool(self.runs))
        if self._written_directly(event):
            self._wake.set()  # for the signs of life
            return
        if not self.is_local or self._stop or time.monotonic() < self._wait_again_at:
            self.put(event)
            return
        event[WRITTEN] = done = threading.Event()
        self.put(event)
        if not turns.patiently(done.wait, ANSWER_S):
            self._wait_again_at = time.monotonic() + PAUSE_S

    def take_profile(self) -> bool:
        """Whether the writer saw that the next run is armed for `profile` timing; disarms."""
        armed, self._armed = self._armed, False
        return armed

    def put_header(self, one: dict[str, Any]) -> None:
        """Hand over an event about the process: tried until it is written, and again in a file made again."""
        self._header = [h for h in self._header if h["event_type"] != one["event_type"]] + [one]
        self._wake.set()

    def put_condition(self, manifest: condition.Manifest) -> None:
        """Hand over a condition's manifest; it is written once, to a file of its own."""
        self._conditions.append(manifest)

    def open_run(self, run: Run) -> None:
        """Write this run's segments, visits and spans from now on."""
        self.runs[run.run_id] = run

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all that was put is written. For tests and for the end of the process."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            self.tick()
            if not self._queue and not self._waiting:
                return True
            time.sleep(TICK_S)
        return False

    def stop(self, reason: str, exception_type: str | None = None) -> None:
        """Write what is left and a `process_end`. Waits for a hanging disk, but not for ever."""
        if self._stop or os.getpid() != self._pid:  # a forked child has a copy of us, and no business here
            return
        self.put(event("process_end", source="process", reason=reason, exception_type=exception_type))
        self._stop = True
        self._retry_at = 0.0
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)  # the writer does it: its disk may hang
        else:
            self._last_round()

    def go_on(self) -> None:
        """The restart for which this journal was stopped did not come about: write on."""
        if self._stop and os.getpid() == self._pid:
            self._stop = False
            self.put(event("mark", source="process", name="restart_failed", detail={}))
            self._thread = threading.Thread(target=self._loop, name="stagexec-journal", daemon=True)
            self._thread.start()

    def _last_round(self) -> None:
        with self._lock:
            self._round()
            self._file.close()

    def tick(self) -> None:
        """One round of the writer."""
        with self._lock:
            self._round()

    def _loop(self) -> None:
        self.is_local = disks.is_local(self.folder)
        self._began.set()
        while not self._stop:
            try:
                self.tick()
                self._look_after_watcher()
                self._look_for_flag()
            except Exception as error:  # noqa: BLE001 (the fence of this thread)
                note("Journal.tick", error)
                time.sleep(HEARTBEAT_S)
            if any(run.started for run in list(self.runs.values())):
                time.sleep(TICK_S)
                continue
            idle_s = None if self.is_local else FLAG_S
            self._wake.wait(HEARTBEAT_S if self.runs or self.lost or self._waiting else idle_s)
            self._wake.clear()
        try:
            self._last_round()
        except Exception as error:  # noqa: BLE001 (as above)
            note("Journal.stop", error)

    def _look_for_flag(self) -> None:
        """On a disk that may hang, this thread and no run looks for what arms a run for `profile` timing."""
        if self.is_local or self._armed or time.monotonic() < self._look_for_flag_at:
            return
        self._look_for_flag_at = time.monotonic() + FLAG_S
        self._armed = paths.take_profile_flag(self.folder)

    def _look_after_watcher(self) -> None:
        if self._watched and self.is_local and self.path is not None:
            self._watched = False
            watcher = Watcher(self.path.with_suffix(".life"))
            problem = watcher.start()
            if problem is None:
                self._watcher = watcher
                self.show_open = self._show_open
            else:
                log.info("stagexec: nothing notes when this process is killed: %s.", problem)
        if self._watcher is not None:
            self._watcher.tell(bool(self.runs))

    def _show_open(self, run: Run) -> None:
        """Let the watcher see the segment that is open now, with its node."""
        if self._watcher is not None:
            self._watcher.show(self._encode((run.run_id, run.ledger.open, run.node)))

    def _round(self) -> None:
        # What is closing goes last: all that its run did before is in the run's own queues by now.
        ready = [self._queue.popleft() for _ in range(len(self._queue))]
        closing = [one for one in ready if one["event_type"] in CLOSING]
        lines = [self._line(one) for one in ready if one["event_type"] not in CLOSING]
        for run in list(self.runs.values()):
            self._drain(run, lines)
        for one in closing:
            if one["event_type"] == "run_closed":
                closed = self.runs.pop(one["run_id"], None)
                self._shown.pop(one["run_id"], None)
                one["segment_count"] = closed.segments_written if closed else None
            lines.append(self._line(one))
        if not lines and self._beat_is_due():
            lines.append(self._line(self._heartbeat()))
        if lines or self.lost or self._waiting or self._header_due():
            with self._file_lock:
                self._write(lines)
        if self._conditions and time.monotonic() >= self._retry_conditions_at:
            self._store_conditions()

    def _store_conditions(self) -> None:
        try:
            while self._conditions:
                condition.store(self.folder, self._conditions[0])
                self._conditions.popleft()
        except OSError as problem:  # kept, and tried again
            if self._retry_conditions_at == 0 and not self._warned:
                log.error("stagexec: conditions in %s cannot be written (%s).", self.folder, problem)
            self._retry_conditions_at = time.monotonic() + RETRY_S

    def _drain(self, run: Run, lines: list[Line]) -> None:
        if not run.started:
            return
        segments, open_ = take_segments(run)
        shown = self._shown.get(run.run_id)
        if segments or (open_ is not None and open_ != shown):
            self._shown[run.run_id] = open_
            run.segments_written += len(segments)
            fields = ("stage", "part", "start_ns", "visit", "seam")
            columns: dict[str, Any] = {name: [s[0][at] for s in segments] for at, name in enumerate(fields)}
            columns["end_ns"] = [s[1] for s in segments]
            columns["open"] = [*open_, *(run.node or (None, None))] if open_ else None
            lines.append(self._line(event("segments", run, source="loop", **columns)))
        for kind, names, pending in (
            ("visits", VISIT_COLUMNS, run.pending_visits),
            ("spans", SPAN_COLUMNS, run.pending_spans),
            ("samples", SAMPLE_COLUMNS, run.watched.samples),
            ("cpu", CPU_COLUMNS, run.watched.cpu),
        ):
            rows = [pending.popleft() for _ in range(len(pending))]
            if rows:
                columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
                lines.append(self._line(event(kind, run, source="loop", **columns)))

    def _beat_is_due(self) -> bool:
        quiet = clock.now_ns() - self._last_write >= HEARTBEAT_S * 1e9
        may_write = not self._waiting and time.monotonic() >= self._retry_at
        return bool(self.runs) and quiet and may_write

    def _heartbeat(self) -> dict[str, Any]:
        rows = []
        for run in list(self.runs.values()):
            open_ = run.ledger.open
            if run.started and open_ is not None:
                node = run.node or (None, None)
                names = ("stage", "part", "start_ns", "visit", "seam")
                row: dict[str, Any] = {"run_id": run.run_id, **dict(zip(names, open_, strict=True))}
                rows.append({**row, "node_id": node[0], "node_class": node[1]})
        return event(
            "heartbeat", source="journal", ts_wall=time.time_ns(), slept_ns=clock.slept_ns(), open=rows
        )

    def _line(self, one: dict[str, Any]) -> Line:
        kind, written = one["event_type"], one.pop(WRITTEN, None)
        return Line(self._encoded(one) + b"\n", one["run_id"], kind in VITAL, kind == "run_closed", written)

    def _encoded(self, one: dict[str, Any]) -> bytes:
        try:
            return self._encode(one)
        except UnicodeEncodeError:  # a file name or a prompt with half a character in it: not our fault
            return self._encode(plain(one))
        except Exception as error:  # noqa: BLE001 (what cannot be encoded is noted, what is plain of it kept)
            note("Journal.encode", error)
            return self._encode(plain(one))

    def _written_directly(self, one: dict[str, Any]) -> bool:
        """Write an event on the calling thread. False: the writer has to do it."""
        may = self.is_local and self._in_file and os.getpid() == self._pid and not self._stop
        if not may or time.monotonic() < self._direct_again_at:
            return False
        line = self._line(one)
        begin = time.monotonic()
        if not turns.patiently(self._file_lock_within, DIRECT_WAIT_S):
            return False
        try:
            # Nothing may come before what waits; a file that is not ours any more is the writer's to mend.
            if self._waiting or not self._file.is_same():
                return False
            whole, _ = self._file.write([line.data])  # a line that was torn is written again, by the writer
            if whole:
                self._keep([line])
                self._last_write = clock.now_ns()
            self._look_at_time(time.monotonic() - begin)
            return whole == 1
        finally:
            self._file_lock.release()

    def _look_at_time(self, took_s: float) -> None:
        """Once may be a node that held the lock until just now; twice on end is the disk."""
        slow = took_s > SLOW_S and not turns.is_held()
        self._slow = self._slow + 1 if slow else 0
        if self._slow > 1:
            self._direct_again_at = time.monotonic() + PAUSE_S

    _slow = 0

    def _file_lock_within(self, timeout_s: float) -> bool:
        return self._file_lock.acquire(timeout=timeout_s)

    def _header_due(self) -> list[dict[str, Any]]:
        """The events about the process that the present file does not have."""
        return [one for one in self._header if not any(one is there for there in self._in_file)]

    def _write(self, lines: list[Line]) -> None:
        """Write what is due of the header, what waits, the count of lost events, and `lines`."""
        self._waiting += lines
        now = time.monotonic()
        if now < self._retry_at:
            self._trim()
            return
        try:
            if not self._file.prepare():
                self._begin_again()
            problem = self._write_waiting()
        except OSError as error:  # there is no file to write to
            problem = error
        if problem is not None:
            self._failed(problem, now)
            self._trim()
            return
        if not self._waiting:
            if self._warned:
                log.warning("stagexec: the journal is written again%s.", self._told_lost())
            self._warned, self._told_count = False, 0
            self._short = not self._file.keep_reserve()

    def _begin_again(self) -> None:
        """The file is empty, or another one: the head is due, and all of the runs that are open."""
        self._in_file = []
        self._waiting[:0] = [line for kept in self._kept.values() for line in kept]
        self._kept, self._kept_bytes = {}, 0

    def _write_waiting(self) -> OSError | None:
        """Write what waits, what is vital first where the disk is short of room; what ended that."""
        due = self._header_due()
        head = [self._line(one) for one in due]
        if self.lost:
            head.append(
                self._line(event("lost_events", source="journal", count=self.lost, reason=self._reason))
            )
        size = sum(len(line.data) for line in self._waiting)
        in_order = not (self._short or self._warned) or self._file.has_room(size)
        batch = self._waiting if in_order else [line for line in self._waiting if line.vital]
        whole, problem = self._file.write([line.data for line in head + batch])
        self._in_file += due[:whole]
        if self.lost and whole >= len(head):  # told
            self._told_count += self.lost
            self.lost = 0
        written = batch[: max(0, whole - len(head))]
        self._keep(written)
        done = set(map(id, written))
        self._waiting = [line for line in self._waiting if id(line) not in done]
        if whole:
            self._last_write = clock.now_ns()
        if problem is None and self._waiting:  # only what is vital had room
            problem = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return problem

    _told_count = 0

    def _told_lost(self) -> str:
        return f"; {self._told_count} events were lost" if self._told_count else ""

    def _keep(self, written: list[Line]) -> None:
        """Keep the open runs' lines: a file that is removed under them is written again whole."""
        for line in written:
            if line.written is not None:
                line.written.set()
            run_id = line.run_id
            if line.ends_run and run_id in self._kept:
                self._kept_bytes -= sum(len(one.data) for one in self._kept.pop(run_id))
            elif run_id is not None and (run_id in self.runs or run_id in self._kept):
                self._kept.setdefault(run_id, []).append(line)
                self._kept_bytes += len(line.data)
        if self._kept_bytes > KEPT_BYTES:  # a run of very many visits: that it was there is kept
            self._kept = {run_id: [one for one in kept if one.vital] for run_id, kept in self._kept.items()}
            self._kept_bytes = sum(len(line.data) for kept in self._kept.values() for line in kept)

    def _trim(self) -> None:
        """Let go of what is too much to wait: the oldest of what is not vital, then the newest of what is."""
        size = sum(len(line.data) for line in self._waiting)
        if size <= WAITING_BYTES:
            return
        kept = []
        for line in self._waiting:
            if size > WAITING_BYTES and not line.vital:
                size -= len(line.data)
                self.lost += 1
            else:
                kept.append(line)
        while kept and size > WAITING_BYTES:
            size -= len(kept.pop().data)
            self.lost += 1
        self._waiting = kept

    def _failed(self, problem: OSError, now: float) -> None:
        self._reason = f"{type(problem).__name__}: {problem}"
        self._retry_at = now + RETRY_S
        if not self._warned:
            self._warned = True
            log.error(
                "stagexec: the journal in %s cannot be written (%s). Runs are not affected; their events are "
                "kept in memory until it can be written again, at most %d MiB of them.",
                self.folder,
                self._reason,
                WAITING_BYTES // 1024**2,
            )


def event(event_type: str, run: Run | None = None, *, source: str, **fields: Any) -> dict[str, Any]:
    """An event with the fields that every event carries."""
    return {
        "event_type": event_type,
        "run_id": run.run_id if run else None,
        "condition_id": run.condition_id if run else None,
        "stage_id": fields.pop("stage_id", None),
        "ts_mono_ns": fields.pop("ts_mono_ns", None) or clock.now_ns(),
        "source": source,
        **fields,
    }
