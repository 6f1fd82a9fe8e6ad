"""The journal's writer: a thread of its own, so that a run never waits for a disk.

What happens when the disk is full or the folder vanishes: one loud warning, events are counted and
dropped, and the count is written (`lost_events`) when writing works again.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from stagexec.format import SPAN_COLUMNS, VISIT_COLUMNS
from stagexec.record import clock, condition
from stagexec.record.guard import note
from stagexec.record.run import Run
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

CLOSING = ("run_closed", "process_end")
"""Events after which nothing more is written of what they close."""

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class Journal:
    """One file of one process. `put` and the open runs' queues are the only ways in; both never block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, Run] = {}
        self.path: Path | None = None
        self.lost = 0
        self._queue: deque[dict[str, Any]] = deque()
        self._conditions: deque[condition.Manifest] = deque(maxlen=MAX_CONDITIONS)
        self._wake = threading.Event()
        self._lock = threading.Lock()  # the writer's own: never taken by a run
        self._encode = msgspec.json.Encoder(enc_hook=repr).encode
        self._file = -1
        self._torn = False
        self._last_write = 0
        self._retry_at = 0.0
        self._retry_conditions_at = 0.0
        self._warned = False
        self._stop = False
        self._reason = ""
        self._pid = os.getpid()
        self._shown: dict[str, Any] = {}
        self._header: list[dict[str, Any]] = []
        self._in_file: list[dict[str, Any]] = []  # the header events that the present file has
        self._thread = threading.Thread(target=self._loop, name="stagexec-journal", daemon=True)

    def start(self) -> None:
        """Begin writing. The file is made at the first event."""
        self._thread.start()
        atexit.register(self.stop, "exit")

    def put(self, event: dict[str, Any]) -> None:
        """Hand an event to the writer."""
        self._queue.append(event)
        if not self._wake.is_set():
            self._wake.set()

    def put_header(self, one: dict[str, Any]) -> None:
        """Hand over an event about the process: tried until it is written, and again in a file made anew."""
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
            if not self._queue:
                return True
            time.sleep(TICK_S)
        return False

    def stop(self, reason: str) -> None:
        """Write what is left and a `process_end`. Waits for a hanging disk, but not for ever."""
        if self._stop or os.getpid() != self._pid:  # a forked child has a copy of us, and no business here
            return
        self.put(event("process_end", source="process", reason=reason))
        self._stop = True
        self._retry_at = 0.0
        self._wake.set()
        if self._lock.acquire(timeout=STOP_S):
            try:
                self._round()
            finally:
                self._lock.release()

    def tick(self) -> None:
        """One round of the writer."""
        with self._lock:
            self._round()

    def _loop(self) -> None:
        while not self._stop:
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001 (the fence of this thread)
                note("Journal.tick", error)
                time.sleep(HEARTBEAT_S)
            if any(run.started for run in list(self.runs.values())):
                time.sleep(TICK_S)
                continue
            self._wake.wait(HEARTBEAT_S if self.runs or self.lost else None)
            self._wake.clear()

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
        if lines or self.lost or self._header_due():
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

    def _drain(self, run: Run, lines: list[bytes]) -> None:
        if not run.started:
            return
        segments, open_ = take_segments(run)
        shown = self._shown.get(run.run_id)
        if segments or (open_ is not None and open_ != shown):
            self._shown[run.run_id] = open_
            run.segments_written += len(segments)
            columns: dict[str, Any] = {
                "stage": [s[0][0] for s in segments],
                "part": [s[0][1] for s in segments],
                "start_ns": [s[0][2] for s in segments],
                "end_ns": [s[1] for s in segments],
                "visit": [s[0][3] for s in segments],
                "seam": [s[0][4] for s in segments],
                "open": [*open_, *(run.node or (None, None))] if open_ else None,
            }
            lines.append(self._line(event("segments", run, source="loop", **columns)))
        for kind, names, pending in (
            ("visits", VISIT_COLUMNS, run.pending_visits),
            ("spans", SPAN_COLUMNS, run.pending_spans),
        ):
            rows = [pending.popleft() for _ in range(len(pending))]
            if rows:
                columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
                lines.append(self._line(event(kind, run, source="loop", **columns)))

    def _beat_is_due(self) -> bool:
        quiet = clock.now_ns() - self._last_write >= HEARTBEAT_S * 1e9
        return bool(self.runs) and quiet and time.monotonic() >= self._retry_at

    def _heartbeat(self) -> dict[str, Any]:
        rows = []
        for run in list(self.runs.values()):
            open_ = run.ledger.open
            if run.started and open_ is not None:
                node = run.node or (None, None)
                names = ("stage", "part", "start_ns", "visit", "seam")
                row: dict[str, Any] = {"run_id": run.run_id, **dict(zip(names, open_, strict=True))}
                rows.append({**row, "node_id": node[0], "node_class": node[1]})
        return event("heartbeat", source="journal", open=rows)

    def _line(self, one: dict[str, Any]) -> bytes:
        try:
            return self._encode(one) + b"\n"
        except UnicodeEncodeError:  # a file name or a prompt with half a character in it: not our fault
            return self._encode(plain(one)) + b"\n"
        except Exception as error:  # noqa: BLE001 (what cannot be encoded is noted, what is plain of it kept)
            note("Journal.encode", error)
            return self._encode(plain(one)) + b"\n"

    def _header_due(self) -> list[dict[str, Any]]:
        """The events about the process that the present file does not have."""
        return [one for one in self._header if not any(one is there for there in self._in_file)]

    def _write(self, lines: list[bytes]) -> None:
        """Write what is due of the header, the count of lost events, and `lines`; or count them as lost."""
        now = time.monotonic()
        if now < self._retry_at:
            self.lost += len(lines)
            return
        whole, before = 0, self.lost
        try:
            self._open_file()
            due = self._header_due()
            head = [self._line(one) for one in due]
            if self.lost:
                lost = event("lost_events", source="journal", count=self.lost, reason=self._reason)
                head.append(self._line(lost))
            whole, problem = self._write_all(head + lines)
            self._in_file += due[:whole]
            # Beyond the head, the old losses are told, and only what is missing of `lines` is lost.
            self.lost = len(lines) + len(head) - whole if whole >= len(head) else self.lost + len(lines)
        except OSError as error:  # there is no file to write to
            problem = error
            self.lost += len(lines)
        if problem is not None:
            self._failed(problem, now)
            return
        if before:
            log.warning("stagexec: the journal is written again; %d events were lost.", before)
        self._warned = False
        self._last_write = clock.now_ns()

    def _failed(self, problem: OSError, now: float) -> None:
        self._reason = f"{type(problem).__name__}: {problem}"
        self._retry_at = now + RETRY_S
        if not self._warned:
            self._warned = True
            log.error(
                "stagexec: the journal in %s cannot be written (%s). Runs are not affected; events are "
                "lost until it can be written again.",
                self.folder,
                self._reason,
            )

    def _write_all(self, lines: list[bytes]) -> tuple[int, OSError | None]:
        """How many of `lines` are in the file whole, and what ended the writing; ends a torn line first."""
        start = b"\n" if self._torn else b""
        data = start + b"".join(lines)
        done, problem = 0, None
        try:
            while done < len(data):
                done += os.write(self._file, memoryview(data)[done:])
        except OSError as error:
            problem = error
        if done:
            self._torn = data[done - 1 : done] != b"\n"
        ends = done + 1 if done > len(start) else done  # the end of its line, if torn, is written next time
        return data.count(b"\n", len(start), ends), problem

    def _open_file(self) -> None:
        """Open the file, anew when somebody removed it."""
        if self._file >= 0:
            if self.path is not None and self.path.exists():
                return
            os.close(self._file)
            self._file = -1
        self._in_file = []
        if self.path is None or not self.path.parent.exists():
            day = time.strftime("%Y-%m-%d", time.localtime(clock.ANCHOR_WALL_NS / 1e9))
            name = f"{socket.gethostname()}-{os.getpid()}-{clock.ANCHOR_WALL_NS}.jsonl"
            self.path = self.folder / "journal" / day / name
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, APPEND, 0o644)
        self._torn = self._torn and os.fstat(self._file).st_size > 0


def plain(value: Any, depth: int = 20) -> Any:
    """`value` as JSON can hold it: no halves of characters, and type names for what is no plain data."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if depth and isinstance(value, dict):
        return {plain(str(key)): plain(one, depth - 1) for key, one in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [plain(one, depth - 1) for one in value]
    return f"<{type(value).__name__}>"


def take_segments(run: Run) -> tuple[list[Any], Any]:
    """All closed segments of a run and the open one, as one consistent reading from another thread."""
    pending = run.ledger.pending
    taken: list[Any] = []
    while True:
        taken += [pending.popleft() for _ in range(len(pending))]
        open_ = run.ledger.open
        if not pending:
            break
    if taken and open_ is not None and taken[-1][0] is open_:
        # Caught between the two steps of a switch: the segment counts as open still, and is taken next time.
        pending.appendleft(taken.pop())
    return taken, open_


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
