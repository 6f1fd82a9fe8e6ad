"""Encoder processes that nodes start through `subprocess`: seen from spawn to exit, the call unchanged.
What other programs there are is programs.py's.

Four methods of `subprocess.Popen` are wrapped on the class (seams `child_*`), so every way to start a
process is seen, whatever the pack imported. Each calls the original exactly once. The exit is watched
through a pidfd where the system has them, which takes nothing from the pack that waits; elsewhere it is
seen when the pack looks (`wait`, `poll`, `communicate`).
"""

from __future__ import annotations

import functools
import os
import select
import stat
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stagexec.delivery import pulse, recovery, saying
from stagexec.delivery.asking import ask
from stagexec.delivery.command import Command, read
from stagexec.delivery.command import other as command_of_other
from stagexec.delivery.listen import Heard, listen
from stagexec.public import in_other_task
from stagexec.record import children, live
from stagexec.record.guard import guarded
from stagexec.record.ledger import NO_DEPTH
from stagexec.record.run import Run
from stagexec.record.words import short_name

visit_here: Callable[[], int | None] = lambda: None  # noqa: E731
"""Visit number of the node that the calling thread works for; set by host/hooks.py."""

_of_popen: weakref.WeakKeyDictionary[Any, Child] = weakref.WeakKeyDictionary()
_of_run: weakref.WeakKeyDictionary[Run, list[Child]] = weakref.WeakKeyDictionary()


class Child:
    """One encoder process of a run, from the attempt to start it to its exit."""

    def __init__(self, run: Run, command: Command, streams: dict[str, Any]) -> None:
        self.run = run
        self.command = command
        self.streams = streams
        self.main_lane = run.on_main_lane() and not in_other_task(run)
        self.visit = run.visit if self.main_lane else visit_here()
        node: tuple[str | None, str | None] = (None, None)
        self.node_id, self.node_class = (run.node or node) if self.main_lane else node
        self.start_ns = run.clock()
        self.exit_ns: int | None = None
        self.exit_code: int | None = None
        self.exit_seen: str | None = None
        self.pid: int | None = None
        self.cpu_ns: int | None = None
        self.stderr, self.stdout = Heard(), Heard()
        self.input_ended = False
        self.stopped_by_node = False
        self.filed = self.waited = self.communicating = False
        self.failure: children.ChildFailure | None = None
        self.places = recovery.places_of(command, streams.get("cwd"))
        self.missing: set[str] = set()
        self.before: recovery.Look | None = None
        if command.role == "encode" and any(other.places & self.places for other in self._others()):
            self.before = recovery.look(self.places)
        self._lock = threading.RLock()
        self._popen: Any = lambda: None
        self._depth = NO_DEPTH
        self._seam = "".join(("child_", "spawn"))  # an object of its own: `leave` knows its segment by it
        if self.main_lane and command.role == "encode":
            self._depth = run.enter("encode_mux", command.part, self._seam)

    # --- life ---

    def spawned(self, popen: Any) -> None:
        """The process runs: listen to its pipes, and watch for its end."""
        self.pid = popen.pid
        self._popen = weakref.ref(popen)
        keep(self, popen)
        if popen.stderr is not None:
            popen.stderr = listen(popen.stderr, self.stderr)
        merged = self.streams.get("stderr") == subprocess.STDOUT
        if popen.stdout is not None and (self.command.progress == "stdout" or merged):
            popen.stdout = listen(popen.stdout, self.stderr if merged else self.stdout)
        watch(self)

    def not_spawned(self, error: BaseException | None) -> None:
        """The process could not be started."""
        self.run.failed_in(error, "encode_mux" if self.command.role == "encode" else "node_other")
        self.leave()
        self.exit_ns, self.exit_seen = self.run.clock(), "spawn"
        if self.command.role == "encode":
            _of_run.setdefault(self.run, []).append(self)
            number = error.errno if isinstance(error, OSError) else None
            words = "it was not started" if number is None else os.strerror(number)
            self._failed("spawn", [f"{short_name(type(error))}: {words}"])
        self.file()

    def popen(self) -> Any:
        """The object that the pack holds; None when it does no more."""
        return self._popen()

    def ended(self, exit_code: int | None, seen: str) -> None:
        """The process has exited; told once by the watcher and once by the code that waits for it.

        The second one finds the failure judged: it files what there is.
        """
        with self._lock:
            if self.exit_ns is None:
                self.exit_ns, self.exit_seen = self.run.clock(), seen
                popen = self.popen()
                stdin = getattr(popen, "stdin", None)
                self.input_ended = stdin is not None and stdin.closed
            if self.exit_code is not None or exit_code is None:
                return
            self.exit_code = exit_code
            if self.command.role == "encode":
                self._judge(exit_code)

    def _judge(self, exit_code: int) -> None:
        """Has it failed, or made good what failed before it?"""
        if exit_code != 0:
            self._failed(self.phase(), [])
            return
        asked = {place for other in self._others() for place in other.missing & self.places}
        made_good(self.run, self.visit, recovery.written(asked, self.before), self.pid)

    def _others(self) -> list[Child]:
        """The encoders that were started before this one, in the same visit."""
        return [one for one in _of_run.get(self.run, ()) if one is not self and one.visit == self.visit]

    def judge_pipe(self, out: Any) -> None:
        """It has exited, and gave the pack `out` through its pipe; True where the pack took it by itself."""
        if self.exit_code == 0 and self.command.role == "encode" and recovery.PIPE in self.places and out:
            made_good(self.run, self.visit, {recovery.PIPE}, self.pid)

    def looked(self, popen: Any) -> None:
        """The pack has waited or polled: when the process is over, so is its segment."""
        code = popen.returncode
        if code is None:
            return
        self.ended(code, "wait")
        self.waited = True
        if not self.communicating:
            self.judge_pipe(True)
        if self.run.on_main_lane():
            self.leave()
        if self.stderr.ended or popen.stderr is None:
            self.file()

    def leave(self) -> None:
        """Leave the stage that the process opened, if nothing stands above it."""
        depth, ledger = self._depth, self.run.ledger
        if depth == NO_DEPTH or ledger.depth() != depth:
            return  # it is gone with what was below it, or something above is still open
        open_ = ledger.open
        self._depth = NO_DEPTH
        if open_ is not None and open_[4] is self._seam:
            self.run.leave(depth)
            for below in _of_run.get(self.run, ()):
                if below.waited:  # it was over first, and had to stay open under this one
                    below.leave()

    # --- what is kept ---

    def said(self) -> bytes:
        """The end of what it wrote to stderr, as far as the pack let it be seen."""
        if self.stderr.tail:
            return self.stderr.tail
        name = getattr(self.streams.get("stderr"), "name", None)
        return tail_of_file(name) if isinstance(name, str) else b""

    def phase(self) -> str:
        """open, encode or close: how far a process that failed had come."""
        if self._progress().get("frames"):
            return "close" if self.input_ended else "encode"
        if saying.is_refusal(self.said().decode("utf-8", "replace")) and (self.exit_code or 0) > 0:
            return "open"
        return "close" if self.input_ended else "encode"

    def _progress(self) -> dict[str, int | str]:
        where = self.command.progress
        if where is None or where == "stderr":
            return saying.progress_of(self.stderr.tail)
        return saying.progress_of(self.stdout.tail if where == "stdout" else tail_of_file(where))

    def lines(self) -> list[str]:
        """What it said last, as far as it may be kept."""
        names = saying.file_names(self.command.words)
        return saying.lines_of(self.said(), names, live.record_text)

    def _failed(self, phase: str, lines: list[str]) -> None:
        text = self.said().decode("utf-8", "replace")
        self.failure = children.ChildFailure(
            self.command.program, phase, self.exit_code, self.visit, self.node_id, self.node_class,
            disk_full=saying.is_disk_full(text) or self.exit_code == saying.FILE_TOO_LARGE,
            stopped_by_node=self.stopped_by_node,
            stderr=lines or self.lines(),
        )  # fmt: skip
        self.missing = set(self.places)
        children.add(self.run, self.failure)

    def detail(self) -> dict[str, Any]:
        """What the span says besides its interval."""
        found: dict[str, Any] = {
            "pid": self.pid,
            "exit_code": self.exit_code,
            "exit_seen": self.exit_seen,
            "cpu_ns": self.cpu_ns,
            "role": self.command.role,
            "part": self.command.part,
            "template": self.command.template,
            "stderr": self.lines(),
            **self._progress(),
        }
        if self.failure is not None:
            found["phase"] = self.failure.phase
        if live.record_text:
            found["command"] = list(self.command.words)
        return found

    def file(self) -> None:
        """File the span, once; and a failure as a mark, with all that is known of it by now."""
        with self._lock:
            if self.filed:
                return
            self.filed = True
        if self.failure is not None and self.pid is not None:
            self._refine(self.failure)
        detail, end = self.detail(), self.exit_ns or self.run.clock()
        stage = "encode_mux" if self.command.role == "encode" else None
        program = self.command.program
        self.run.span(f"child:{program}", program, self.start_ns, end, stage, self.visit, detail)
        if self.failure is not None:
            where = {"visit": self.visit, "node_id": self.node_id, "node_class": self.node_class}
            self.run.mark("child_failed", {"program": program, **detail}, **where)

    def _refine(self, failure: children.ChildFailure) -> None:
        text = self.said().decode("utf-8", "replace")
        failure.stderr = self.lines() or failure.stderr
        failure.phase = self.phase()
        failure.disk_full = failure.disk_full or saying.is_disk_full(text)


def made_good(run: Run, visit: int | None, made: set[str], by_pid: int | None) -> None:
    """What was `made` now is missing no longer: a process that lacks nothing is made good for its visit."""
    for one in _of_run.get(run, ()) if made else ():
        if one.failure is None or one.visit != visit or not one.missing & made:
            continue
        one.missing -= made
        if not one.missing:
            one.failure.recovered = True
            run.mark("child_recovered", {"pid": one.pid, "by_pid": by_pid}, visit=visit)


def made_otherwise(run: Run, visit: int | None, target: Any) -> None:
    """A file was written whole in this process: what an encoder failed to make of it is made good."""
    if isinstance(target, (str, bytes, os.PathLike)) and _of_run.get(run):
        made_good(run, visit, {recovery.place_of(os.fsdecode(target))}, None)


def settle(run: Run) -> None:
    """The run is over: file what is left of its processes, also of those that run on."""
    for child in _of_run.pop(run, ()):
        child.file()


# --- the wrapped methods ---


def watched_init(_module: ModuleType, original: Any) -> Any:
    """`Popen.__init__` that sees an encoder start."""

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 (it takes that method's place)
        child = begin(args, kwargs) if live.run is not None else None
        if child is None:
            original(self, *args, **kwargs)
            return
        done, depth = False, programs().entered(child)
        try:
            original(self, *args, **kwargs)
            done = True
        finally:
            programs().left(child, depth)
            begun(child, self, done)

    return __init__


def watched_look(_module: ModuleType, original: Any) -> Any:
    """`Popen.wait` or `Popen.poll` that sees whether the process is over."""
    waits = original.__name__ == "wait"

    @functools.wraps(original)
    def look(self: Any, *args: Any, **kwargs: Any) -> Any:
        child = _of_popen.get(self) if _of_popen else None
        if child is None:
            return original(self, *args, **kwargs)
        depth, before = programs().entered(child) if waits else None, programs().before_reaping(self)
        try:
            return original(self, *args, **kwargs)
        finally:
            programs().left(child, depth)
            programs().after_reaping(child, self, before)
            look_at(child, self)

    return look


def watched_communicate(_module: ModuleType, original: Any) -> Any:
    """`Popen.communicate`, whose result holds what the process said."""

    @functools.wraps(original)
    def communicate(self: Any, *args: Any, **kwargs: Any) -> Any:
        child = _of_popen.get(self) if _of_popen else None
        if child is None:
            return original(self, *args, **kwargs)
        result: Any = (None, None)
        depth = programs().entered(child)
        child.communicating = True
        try:
            result = original(self, *args, **kwargs)
            return result
        finally:
            programs().left(child, depth)
            take_result(child, result)
            look_at(child, self)

    return communicate


def watched_signal(_module: ModuleType, original: Any) -> Any:
    """`Popen.send_signal` (also behind terminate and kill): the node itself ends its process."""

    @functools.wraps(original)
    def send_signal(self: Any, *args: Any, **kwargs: Any) -> Any:
        child = _of_popen.get(self) if _of_popen else None
        if child is not None and self.returncode is None:
            child.stopped_by_node = True
        return original(self, *args, **kwargs)

    return send_signal


POPEN = {
    "subprocess:Popen.__init__": watched_init,
    "subprocess:Popen.wait": watched_look,
    "subprocess:Popen.poll": watched_look,
    "subprocess:Popen.communicate": watched_communicate,
    "subprocess:Popen.send_signal": watched_signal,
}
"""Target of a seam -> what makes its replacement."""

TOLD_S = 1.0
"""How long other code that has reaped a process may take to say with which code it ended."""

POSITIONS = {"args": 0, "executable": 2, "stdin": 3, "stdout": 4, "stderr": 5, "shell": 8, "cwd": 9}
"""Where `Popen` takes these when they are given by position (since Python 3.0)."""


def programs() -> ModuleType:
    """Where all that every process has in common lies; it builds on this module."""
    from stagexec.delivery import programs as found

    return found


def of_run(run: Run) -> list[Child]:
    """The processes of a run that goes on."""
    return list(_of_run.get(run, ()))


def keep(child: Child, popen: Any) -> None:
    """Remember whose process `popen` is."""
    _of_popen[popen] = child
    _of_run.setdefault(child.run, []).append(child)


@guarded
def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Child | None:
    """A process is about to be started: one of a run's?"""
    run = live.here()
    if run is None or (not run.on_main_lane() and threading.current_thread() is threading.main_thread()):
        return None  # the server's own thread answers requests: its processes are no part of the run
    if threading.current_thread().name.startswith("stagexec-"):
        return None  # ours, and no node's: it asks which ffmpeg there is
    given = {
        name: args[at] if at < len(args) else kwargs.get(name)
        for name, at in POSITIONS.items()
        if at < len(args) or name in kwargs
    }
    started = given.get("args"), given.get("executable"), bool(given.get("shell"))
    command = read(*started)
    if command is not None:
        return Child(run, command, given)
    unknown = command_of_other(*started)
    return None if unknown is None else programs().Program(run, unknown, given)


@guarded
def begun(child: Child, popen: Any, done: bool) -> None:
    """The process was started, or could not be."""
    if done:
        child.spawned(popen)
    else:
        child.not_spawned(sys.exc_info()[1])


@guarded
def look_at(child: Child, popen: Any) -> None:
    """See `Child.looked`."""
    child.looked(popen)


@guarded
def take_result(child: Child, result: tuple[Any, Any]) -> None:
    """What `communicate` gave to the pack. On POSIX it reads past the file objects."""
    out, err = result
    merged = child.streams.get("stderr") == subprocess.STDOUT
    for data, heard in ((err, child.stderr), (out, child.stderr if merged else child.stdout)):
        if data and not heard.tail and (heard is child.stderr or child.command.progress == "stdout"):
            heard.take(data)
    child.stderr.ended = True
    child.judge_pipe(out)


# --- the watcher ---


def watch(child: Child) -> None:
    """Wait for the exit on a thread of its own, where the system can do so without reaping the process."""
    open_pidfd = getattr(os, "pidfd_open", None)
    if open_pidfd is None or child.pid is None:
        return
    try:
        number = open_pidfd(child.pid)
    except OSError:  # an old kernel, or it is over and reaped: the code that waits will tell
        return
    name = f"stagexec-child-{child.pid}"
    threading.Thread(target=_wait_for, args=(child, number), name=name, daemon=True).start()


@guarded
def _wait_for(child: Child, number: int) -> None:
    try:
        poller = select.poll()
        poller.register(number, select.POLLIN)
        poller.poll()
        popen = child.popen()  # first of all: asyncio lets go of it at once, and it alone has the code then
        child.cpu_ns = programs().cpu_of_dead(child.pid) or child.cpu_ns
        code = _code_of(number)
        child.ended(code, "pidfd")
        if code is None:
            child.ended(_code_told(popen), "pidfd")
    finally:
        os.close(number)


def _code_of(number: int) -> int | None:
    try:
        found = os.waitid(os.P_PIDFD, number, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:  # reaped already: the pack knows the code, and so will we when it looks
        return None
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _code_told(popen: Any) -> int | None:
    """The code that the reaper of the process puts into its `Popen`, as asyncio does from its event loop."""
    end = time.monotonic() + TOLD_S
    while popen is not None and popen.returncode is None and time.monotonic() < end:
        time.sleep(0.01)
    code: int | None = getattr(popen, "returncode", None)
    return code


def tail_of_file(name: str) -> bytes:
    """The end of a text file; nothing when it cannot be read, or its disk gives no answer."""
    try:
        found = ask(functools.partial(_tail, name), b"")
    except (OSError, ValueError):
        found = b""
    pulse.beat()  # a run that has been closed meanwhile gets no further events
    return found


def _tail(name: str) -> bytes:
    if not stat.S_ISREG(os.stat(name).st_mode):
        return b""  # what is read from a pipe or a terminal is taken from its reader
    with open(name, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - saying.TAIL_BYTES, 0))
        return file.read(saying.TAIL_BYTES)
