"""Threads that check files for several runs at once, each check bounded: nothing waits for a dead disk.

A *job* is all that is to be done for one run: a generator that touches no disk itself, but yields lists of
*tasks*, which may, and is sent their results. A *hand* is a thread that works on jobs. Each new job gets one
at once, up to MOST_HANDS; beyond, they take turns, task by task, so that no job waits for the whole of
another. While nothing else is computed, idle hands help where a job has several tasks.

A hand that gives no sign of life is given up: its task counts as unanswered, its job goes on with another
hand, and the thread is left to itself. Of those there are at most some MOST_GIVEN_UP: from then on nothing
that touches a disk is begun before one of them has come back.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from typing import Any

from stagexec.delivery import pulse
from stagexec.record import safe
from stagexec.record.guard import note

log = logging.getLogger("stagexec")

SILENCE_S = 60.0
"""A check that has read nothing for so long gets no answer from its disk."""

SUSPECT_S = 2.0
"""The same in a folder where another check waits for an answer already."""

LIMIT_S = 600.0
SLOWEST_BYTES_S = 1 << 20
"""A check that goes on may take LIMIT_S in all, and longer by its file's size at this rate; a decoder, which
says nothing between two pictures, may be silent longer by as much."""

JOB_LIMIT_S = 4 * 3600.0
"""All checks of one run together; what is not done by then is not done."""

MOST_HANDS = 8
MOST_HELPERS = 4
"""Hands at work at which no more of them help with a job that another has begun; at most one a core."""

MOST_GIVEN_UP = 16
MOST_GIVEN_UP_IN_A_FOLDER = 4
IDLE_S = 10.0
TICK_S = 0.25

Steps = Generator["list[Task]", "list[Any]", None]


class Task:
    """One piece of work that may get no answer. `lost(reason)` makes what then stands for its result.

    `folder` is where on the disk it looks, or a word of its own for other places; None: on no disk.
    """

    __slots__ = ("folder", "lost", "silence_s", "work")

    def __init__(
        self,
        work: Callable[[], Any],
        lost: Callable[[str], Any],
        folder: str | None = None,
        silence_s: float | None = None,
    ) -> None:
        self.work = work
        self.lost = lost
        self.folder = folder
        self.silence_s = silence_s

    def unanswered(self, reason: str) -> Any:
        """What stands for the result; None where that cannot be made."""
        try:
            return self.lost(reason)
        except Exception as error:  # noqa: BLE001 (the fence: the job decides what to make of None)
            note("Task.lost", error)
            return None


class Job:
    """The tasks of one run. `waits` is told when it waits for a hand, and when it does no more; `failed` is
    given an exception out of `steps`, which ends the job."""

    def __init__(
        self,
        key: Any,
        steps: Steps,
        waits: Callable[[bool], None] = lambda _: None,
        failed: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self.key = key
        self.steps = steps
        self.failed = failed
        self.turn = threading.Lock()  # held by the thread that advances `steps`
        self.todo: deque[tuple[int, Task]] = deque()
        self.results: list[Any] = []
        self.left = 0
        self.due = True  # `steps` can be advanced
        self.begun = False
        self.hands = 0
        self.since_s = time.monotonic()
        self.stopped: str | None = None
        self._waits = waits
        self._waiting = False

    def has_work(self) -> bool:
        """Is there anything that a hand could do now?"""
        return self.due or bool(self.todo)

    def name_waiting(self, waiting: bool) -> None:
        """Tell `waits`, when it is news."""
        if waiting != self._waiting:
            self._waiting = waiting
            self._waits(waiting)

    def settle(self, at: int, result: Any) -> None:
        """A task of it has its result."""
        self.results[at] = result
        self.left -= 1
        self.due = self.left == 0


class Hand:
    """One thread, and what it works on. The pool's lock guards all but the pulse."""

    def __init__(self) -> None:
        self.pulse = pulse.Pulse()
        self.job: Job | None = None
        self.task: Task | None = None
        self.at = 0
        self._silence_s = SILENCE_S
        self._seen = -1
        self._silent_s = self._spent_s = 0.0

    def begin(self, at: int, task: Task, silence_s: float) -> None:
        """It takes a task of its job."""
        self.at, self.task = at, task
        self._silence_s = silence_s
        self._silent_s = self._spent_s = 0.0
        self.pulse.begin()

    def overdue(self, elapsed_s: float) -> str | None:
        """Why its task is to be given up; None when it is not. `elapsed_s`: since this was last asked."""
        beats, size = self.pulse.beats, self.pulse.bytes / SLOWEST_BYTES_S
        self._silent_s = self._silent_s + elapsed_s if beats == self._seen else 0.0
        self._seen = beats
        self._spent_s += elapsed_s
        if self.pulse.decoding and self._silent_s >= self._silence_s + size:
            return f"its decoder gave no sign of life for {self._silent_s:.0f} s"
        if not self.pulse.decoding and self._silent_s >= self._silence_s:
            return f"no answer from the disk within {self._silence_s:g} s"
        if self._spent_s >= LIMIT_S + size:
            return f"its check was not done within {LIMIT_S + size:.0f} s"
        return None

    def is_silent(self) -> bool:
        """Has its task been silent for so long that it may hang?"""
        return self.task is not None and self._silent_s >= SUSPECT_S

    def waits_for(self) -> str | None:
        """Of one that was given up: the folder whose disk does not answer; None where that is not why."""
        return self.task.folder if self.task is not None and not self.pulse.decoding else None


class Hands:
    """A pool of hands. `busy()`: is something computed now that they should leave the cores to?"""

    def __init__(self, name: str, busy: Callable[[], bool] = lambda: False) -> None:
        self._busy = busy
        self._name = name
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._more = threading.Condition(self._lock)
        self._fewer = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._jobs: dict[Any, Job] = {}
        self._ready: deque[Job] = deque()
        self._hands: set[Hand] = set()
        self._given_up: set[Hand] = set()
        self._complaints: list[str] = []
        self._complained: set[str] = set()
        self._looked_s = time.monotonic()
        self._quiet_s = 0.0
        self._asleep = True
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Take a job. Never waits for its work."""
        with self._lock:
            self._jobs[job.key] = job
            self._ready.append(job)
            self._more.notify()
            needed = self._asleep or len(self._ready) > self._free()
        if needed:  # to look after it, or to start a hand
            self._wake.set()

    def drain(self, timeout_s: float) -> list[Any]:
        """Wait until nothing is open, at most so long; the keys of the jobs that still are, oldest first."""
        end = time.monotonic() + timeout_s
        with self._lock:
            while self._jobs and (left := end - time.monotonic()) > 0:
                self._fewer.wait(left)
            return list(self._jobs)

    def stop(self, key: Any, reason: str, timeout_s: float = 1.0) -> bool:
        """Leave the rest of a job's tasks unanswered, and bring it to its end; False if it is not open."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                return False
            self._stop(job, reason)
            mine, job.due = job.due, False
        if mine:
            self._advance(job)
            return True
        with self._lock:  # a hand is at it, and finds no more work
            return self._fewer.wait_for(lambda: key not in self._jobs, timeout_s)

    # ---- our own thread: starts hands, and looks after them ------------------------------------------

    def _loop(self) -> None:
        while True:
            with self._lock:
                # It stays up for a while after the last job: waking it costs the submitter more.
                self._quiet_s = 0.0 if self._jobs else self._quiet_s + TICK_S
                self._asleep = self._quiet_s > IDLE_S
            self._wake.wait(None if self._asleep else TICK_S)
            self._wake.clear()
            try:
                self._round()
            except Exception as error:  # noqa: BLE001 (the fence of this thread)
                note("Hands.round", error)
                time.sleep(TICK_S)

    def _round(self) -> None:
        now = time.monotonic()
        # Where this thread was held up itself (a stopped process, the interpreter's lock), so were the hands.
        elapsed_s, self._looked_s = min(now - self._looked_s, 2 * TICK_S), now
        with self._lock:
            for hand in [one for one in self._hands if one.task is not None]:
                reason = hand.overdue(elapsed_s)
                if reason is not None:
                    self._give_up(hand, reason)
            for job in [one for one in self._jobs.values() if now - one.since_s > JOB_LIMIT_S]:
                if job.stopped is None:
                    self._stop(job, f"the run's checks were not done within {JOB_LIMIT_S:g} s")
            wanted = self._wanted()
            for job in itertools.islice(self._ready, self._free() + wanted, None):
                job.name_waiting(job.hands == 0)
            complaints, self._complaints = self._complaints, []
        for text in complaints:
            log.warning("stagexec: %s", text)
        started = all(self._start() for _ in range(wanted))
        with self._lock:
            if self._may_help(1) and any(job.todo for job in self._jobs.values()):
                self._more.notify_all()  # what was computed may be over since they looked
            helpless = not started and not self._hands
        if helpless:
            for key in list(self._jobs):
                self.stop(key, "no thread could be started to check it")

    def _wanted(self) -> int:
        """How many more hands there should be."""
        need = len(self._ready)
        room = self._helpers() - self._at_work()
        if room > need:
            need += min(room - need, sum(len(job.todo) for job in self._jobs.values()))
        return max(0, min(need - self._free(), self._room() - len(self._hands)))

    def _room(self) -> int:
        """How many hands there may be: those that seem to hang take no place from others, a few a folder."""
        silent = Counter(one.task.folder for one in self._hands if one.task is not None and one.is_silent())
        excused = sum(min(count, MOST_GIVEN_UP_IN_A_FOLDER) for count in silent.values())
        return MOST_HANDS + min(excused, max(0, MOST_GIVEN_UP - len(self._given_up)))

    def _at_work(self) -> int:
        return sum(one.job is not None and not one.is_silent() for one in self._hands)

    def _free(self) -> int:
        """Hands that wait for a job, or have been started and will look for one."""
        return sum(one.job is None for one in self._hands)

    def _start(self) -> bool:
        hand = Hand()
        name = f"{self._name}-{next(self._numbers)}"
        with self._lock:
            self._hands.add(hand)
        try:
            threading.Thread(target=self._work, args=(hand,), name=name, daemon=True).start()
        except (RuntimeError, MemoryError):  # the system gives no more threads
            with self._lock:
                self._hands.discard(hand)
            return False
        return True

    def _give_up(self, hand: Hand, reason: str) -> None:
        assert hand.job is not None
        assert hand.task is not None
        job = hand.job
        hand.pulse.given_up = True
        self._hands.discard(hand)
        self._given_up.add(hand)
        job.hands -= 1
        self._settle(job, hand.at, hand.task.unanswered(reason))
        folder = hand.waits_for()
        if folder is not None and job.stopped is None:
            self._complain(
                folder, f"{folder}: {reason}. Files there may go unverified; runs are not held up."
            )
        if len(self._given_up) == MOST_GIVEN_UP:
            self._complain("", f"{MOST_GIVEN_UP} checks of files hang: until one ends, no file is verified.")

    def _complain(self, about: str, text: str) -> None:
        """Say it once, when the lock is not held any more."""
        if about not in self._complained and len(self._complained) < 100:
            self._complained.add(about)
            self._complaints.append(text)

    def _stop(self, job: Job, reason: str) -> None:
        job.stopped = reason
        for hand in [one for one in self._hands if one.job is job and one.task is not None]:
            self._give_up(hand, reason)
        while job.todo:
            at, task = job.todo.popleft()
            self._settle(job, at, task.unanswered(reason))

    def _settle(self, job: Job, at: int, result: Any) -> None:
        job.settle(at, result)
        if job.has_work() and job.hands == 0:
            self._ready.append(job)
            self._more.notify()
            self._wake.set()

    # ---- the hands -----------------------------------------------------------------------------------

    def _work(self, hand: Hand) -> None:
        pulse.attach(hand.pulse)
        try:
            while self._next(hand):
                self._step(hand)
        except pulse.GivenUp:
            pass  # its job has gone on without it
        except Exception as error:  # noqa: BLE001 (the fence of this thread)
            note("Hands.work", error)
        finally:
            with self._lock:
                self._leave(hand)
            self._wake.set()

    def _leave(self, hand: Hand) -> None:
        job, task = hand.job, hand.task
        if hand not in self._given_up and job is not None:
            job.hands -= 1
            if task is not None:
                self._settle(job, hand.at, task.unanswered("its check ended before its time"))
        self._hands.discard(hand)
        self._given_up.discard(hand)

    def _next(self, hand: Hand) -> bool:
        """Give the hand a job, the one that it has or another; False when there was none for a while."""
        with self._lock:
            found = self._pick(hand)
            patient = True
            while found is None and patient:
                patient = self._more.wait(IDLE_S)
                found = self._pick(hand)
            if found is None:
                self._hands.discard(hand)  # now, so that no job counts on it
                return False
            hand.job = found
            found.hands += 1
            found.name_waiting(False)
            return True

    def _pick(self, hand: Hand) -> Job | None:
        """A job with work: the hand's own, unless another has no hand and will not get one."""
        full = len(self._hands) >= self._room() and self._free() == 0
        job, hand.job = hand.job, None
        if job is not None:
            job.hands -= 1
            if job.has_work():
                others = full and any(one.has_work() for one in self._ready)
                if not others and (job.hands == 0 or self._may_help(1)):
                    return job
                if job.hands == 0:
                    self._ready.append(job)
                    job.name_waiting(True)
        while self._ready:
            one = self._ready.popleft()
            if one.has_work():
                return one
        if self._may_help(1):
            return next((one for one in self._jobs.values() if one.todo), None)
        return None

    def _helpers(self) -> int:
        """Up to how many hands at work another may help."""
        return 0 if self._busy() else min(os.cpu_count() or 1, MOST_HELPERS)

    def _may_help(self, more: int = 0) -> bool:
        return self._at_work() + more <= self._helpers()

    def _step(self, hand: Hand) -> None:
        """One task of its job, or what follows when all of them have their results."""
        job = hand.job
        assert job is not None
        with self._lock:
            if job.due:
                job.due, task = False, None
            elif not job.todo:
                return
            else:
                at, task = job.todo.popleft()
                refused, silence_s = self._patience(task)
                if refused is not None:
                    self._settle(job, at, task.unanswered(refused))
                    return
                hand.begin(at, task, silence_s)
        if task is None:
            self._advance(job)
            return
        try:
            result = task.work()
        except Exception as error:  # noqa: BLE001 (the fence: a fault in one check costs that check only)
            note("Hands.work", error)
            result = task.unanswered(f"the check itself failed: {safe.named(error)}")
        with self._lock:
            if hand.pulse.given_up:
                raise pulse.GivenUp
            hand.task = None
            self._settle(job, at, result)

    def _patience(self, task: Task) -> tuple[str | None, float]:
        """(why the task is not begun at all, how long it may be silent)."""
        silence_s = SILENCE_S if task.silence_s is None else task.silence_s
        if task.folder is None:
            return None, silence_s
        here = sum(hand.waits_for() == task.folder for hand in self._given_up)
        if here >= MOST_GIVEN_UP_IN_A_FOLDER or len(self._given_up) >= MOST_GIVEN_UP:
            waiting = here or len(self._given_up)
            return f"no answer from the disk: {waiting} earlier checks still wait for one", silence_s
        return None, min(silence_s, SUSPECT_S) if here else silence_s

    def _advance(self, job: Job) -> None:
        """Send the results on, and take what is to be done next. Touches no disk."""
        with job.turn:
            while True:
                try:
                    tasks = job.steps.send(job.results) if job.begun else next(job.steps)
                except StopIteration:
                    break
                except Exception as error:  # noqa: BLE001 (the fence: the job ends, and its maker is told)
                    job.failed(error)
                    break
                job.begun = True
                with self._lock:
                    if job.stopped is not None:
                        job.results = [task.unanswered(job.stopped) for task in tasks]
                    elif tasks:
                        job.results, job.left = [None] * len(tasks), len(tasks)
                        job.todo.extend(enumerate(tasks))
                        if len(tasks) > 1 and self._may_help(1):
                            self._more.notify(len(tasks) - 1)
                            self._wake.set()
                        return
                    else:
                        job.results = []
            with self._lock:
                self._jobs.pop(job.key, None)
                self._fewer.notify_all()
