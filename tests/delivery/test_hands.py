"""The threads that check files: none waits for another's disk; what hangs is left behind, within bounds."""

from __future__ import annotations

import threading
import time

import pytest

from stagexec.delivery import hands as hands_module
from stagexec.delivery import pulse
from stagexec.delivery.hands import Hand, Hands, Job, Task

PATIENCE_S = 60.0


class Disk:
    """A disk that answers for all folders but the dead ones, which answer when `revive` is called."""

    def __init__(self, *dead):
        self.dead = set(dead)
        self.alive = threading.Event()
        self.asked = []

    def look(self, folder, name):
        self.asked.append((folder, name))
        if folder in self.dead:
            self.alive.wait()
        return f"{folder}/{name}"

    def revive(self):
        self.dead.clear()
        self.alive.set()

    def task(self, folder, name=0):
        return Task(lambda: self.look(folder, name), lambda reason: reason, folder)


@pytest.fixture
def disk():
    one = Disk("dead")
    yield one
    one.revive()


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setattr(hands_module, "SILENCE_S", 0.5)
    monkeypatch.setattr(hands_module, "SUSPECT_S", 0.25)
    monkeypatch.setattr(hands_module, "TICK_S", 0.02)
    monkeypatch.setattr(hands_module.os, "cpu_count", lambda: 2)
    one = Hands("test-hands")
    one.start()
    return one


def run(pool, key, *lots, **told):
    """Submit a job of some lots of tasks; the list that its results, lot by lot, will be in."""
    results = []

    def steps():
        for lot in lots:
            results.extend([(yield list(lot))])

    pool.submit(Job(key, steps(), **told))
    return results


def wait(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_job_behind_one_that_hangs_is_done_at_once(pool, disk, monkeypatch):
    monkeypatch.setattr(hands_module, "SILENCE_S", 1000.0)
    run(pool, "hanging", [disk.task("dead")])
    wait(lambda: disk.asked)
    done = run(pool, "next", [disk.task("good")])
    wait(lambda: done == [["good/0"]])
    assert pool.drain(0.0) == ["hanging"]


def test_hands_that_seem_to_hang_take_no_place_from_others(pool, disk, monkeypatch):
    monkeypatch.setattr(hands_module, "SILENCE_S", 1000.0)
    monkeypatch.setattr(hands_module, "MOST_HANDS", 2)
    for number in range(4):
        run(pool, number, [disk.task("dead", number)])
    wait(lambda: len(disk.asked) == 4)
    done = run(pool, "next", [disk.task("good")])
    wait(lambda: done == [["good/0"]])
    assert pool.drain(0.0) == [0, 1, 2, 3]


def test_what_hangs_is_unanswered_and_the_rest_of_its_job_is_done(pool, disk):
    lots = [disk.task("good", 1), disk.task("dead", 2), disk.task("good", 3)], [disk.task("good", 4)]
    done = run(pool, "job", *lots)
    assert pool.drain(PATIENCE_S) == []
    assert done == [["good/1", "no answer from the disk within 0.5 s", "good/3"], ["good/4"]]


def test_a_dead_folder_holds_a_few_threads_only_and_is_then_not_asked(pool, disk):
    done = [run(pool, number, [disk.task("dead", number)]) for number in range(40)]
    assert pool.drain(PATIENCE_S) == []
    assert len(disk.asked) <= hands_module.MOST_GIVEN_UP_IN_A_FOLDER + hands_module.MOST_HANDS
    assert all("no answer from the disk" in reason for ((reason,),) in done)
    last = run(pool, "last", [disk.task("dead", "last"), disk.task("good", "last")])
    assert pool.drain(PATIENCE_S) == []
    assert last[0][0].startswith("no answer from the disk: ")
    assert last[0][1] == "good/last"
    assert ("dead", "last") not in disk.asked


def test_a_folder_in_which_one_file_hangs_is_asked_for_others_with_less_patience(pool, disk):
    run(pool, "first", [disk.task("dead", 1)])
    assert pool.drain(PATIENCE_S) == []
    second = run(pool, "second", [disk.task("dead", 2)])
    assert pool.drain(PATIENCE_S) == []
    assert second == [["no answer from the disk within 0.25 s"]]
    disk.dead.clear()  # the two hang on: they were odd files, and others are read
    third = run(pool, "third", [disk.task("dead", 3)])
    assert pool.drain(PATIENCE_S) == []
    assert third == [["dead/3"]]


def test_where_too_many_threads_hang_nothing_on_a_disk_is_begun_until_one_comes_back(pool, monkeypatch):
    monkeypatch.setattr(hands_module, "MOST_GIVEN_UP", 3)
    disk = Disk("a", "b", "c")
    for folder in "abc":
        run(pool, folder, [disk.task(folder)])
    assert pool.drain(PATIENCE_S) == []
    done = run(pool, "job", [disk.task("good"), Task(lambda: "computed", lambda reason: reason)])
    assert pool.drain(PATIENCE_S) == []
    assert done == [["no answer from the disk: 3 earlier checks still wait for one", "computed"]]
    assert ("good", 0) not in disk.asked
    disk.revive()
    wait(lambda: not pool._given_up)
    done = run(pool, "again", [disk.task("good"), disk.task("a")])
    assert pool.drain(PATIENCE_S) == []
    assert done == [["good/0", "a/0"]]


def test_an_answer_that_comes_too_late_changes_nothing(pool, disk):
    done = run(pool, "job", [disk.task("dead")])
    assert pool.drain(PATIENCE_S) == []
    disk.revive()
    wait(lambda: not pool._given_up)
    assert done == [["no answer from the disk within 0.5 s"]]


def test_a_slow_check_that_goes_on_is_not_given_up(pool):
    def slow():
        for _ in range(30):
            time.sleep(0.02)
            pulse.beat()
        return "read"

    done = run(pool, "job", [Task(slow, lambda reason: reason, "slow")])
    assert pool.drain(PATIENCE_S) == []
    assert done == [["read"]]


def test_a_check_that_goes_on_without_end_is_ended(pool, monkeypatch):
    monkeypatch.setattr(hands_module, "LIMIT_S", 0.3)
    ended = []

    def endless():
        try:
            while True:
                time.sleep(0.005)
                pulse.beat()
        finally:
            ended.append(True)

    done = run(pool, "job", [Task(endless, lambda reason: reason, "odd")])
    assert pool.drain(PATIENCE_S) == []
    assert done == [["its check was not done within 0 s"]]
    wait(lambda: ended)


def test_a_decoder_that_hangs_is_no_fault_of_the_disk(pool, disk):
    def odd():
        pulse.decoding(True)
        disk.alive.wait()

    done = run(pool, "odd", [Task(odd, lambda reason: reason, "folder")])
    assert pool.drain(PATIENCE_S) == []
    assert done[0][0].startswith("its decoder gave no sign of life")
    assert all(one.waits_for() is None for one in pool._given_up)


def test_the_time_that_the_watcher_itself_lost_is_not_counted(monkeypatch):
    pool = Hands("never-started")
    hand, job = Hand(), Job("job", iter(()))
    hand.job = job
    job.results, job.left, job.due, job.hands = [None], 1, False, 1
    hand.begin(0, Task(lambda: None, lambda reason: reason, "folder"), 60.0)
    pool._hands.add(hand)
    now = [1000.0]
    monkeypatch.setattr(hands_module.time, "monotonic", lambda: now[0])
    for _ in range(50):
        pool._round()
        now[0] += 3600.0  # the process was stopped, or other code held the interpreter's lock
    assert not hand.pulse.given_up
    for _ in range(500):
        pool._round()
        now[0] += hands_module.TICK_S
    assert hand.pulse.given_up


def test_more_jobs_than_hands_take_turns_task_by_task_and_their_waiting_is_told(pool, monkeypatch):
    monkeypatch.setattr(hands_module, "MOST_HANDS", 2)
    pool._busy = lambda: True
    waits = []
    long = [[Task(lambda: time.sleep(0.01), lambda reason: reason) for _ in range(100)] for _ in range(2)]
    for number, tasks in enumerate(long):
        run(pool, number, tasks)
    short = run(pool, "short", [Task(lambda: "done", lambda reason: reason)], waits=waits.append)
    wait(lambda: short == [["done"]])
    assert pool.drain(0.0) == [0, 1]
    assert waits[::2] == [True] * (len(waits) // 2)
    assert waits[1::2] == [False] * (len(waits) // 2)
    assert waits


def test_a_job_that_has_a_hand_at_once_is_not_said_to_wait(pool):
    waits = []
    for number in range(20):
        run(pool, number, [Task(lambda: None, lambda _: None)], waits=waits.append)
        assert pool.drain(PATIENCE_S) == []
    assert waits == []


@pytest.mark.parametrize("busy", [False, True])
def test_hands_help_each_other_while_nothing_else_is_computed(pool, busy):
    pool._busy = lambda: busy
    at_once, most, lock = [], [], threading.Lock()

    def work():
        with lock:
            at_once.append(1)
            most.append(len(at_once))
        time.sleep(0.02)
        with lock:
            at_once.pop()

    run(pool, "job", [Task(work, lambda _: None) for _ in range(30)])
    assert pool.drain(PATIENCE_S) == []
    assert max(most) == (1 if busy else 2)
    assert len(most) == 30


def test_a_fault_in_a_task_costs_that_task_only(pool, faults_expected):
    def fail():
        raise MemoryError("a picture of all stars")

    done = run(pool, "job", [Task(fail, lambda reason: reason), Task(lambda: 1, lambda _: 0)])
    assert pool.drain(PATIENCE_S) == []
    assert done == [["the check itself failed: MemoryError: a picture of all stars", 1]]
    assert [where for where, _ in faults_expected] == ["Hands.work"]


def test_a_fault_in_a_job_ends_it_and_no_other(pool):
    told = []

    def steps():
        yield []
        raise ValueError("odd")

    pool.submit(Job("odd", steps(), failed=told.append))
    done = run(pool, "next", [Task(lambda: 1, lambda _: 0)])
    assert pool.drain(PATIENCE_S) == []
    assert done == [[1]]
    assert [str(one) for one in told] == ["odd"]


def test_a_job_that_is_stopped_ends_with_the_rest_unanswered(pool, disk, monkeypatch):
    monkeypatch.setattr(hands_module, "SILENCE_S", 1000.0)
    pool._busy = lambda: True
    done = run(
        pool, "job", [disk.task("good", 1), disk.task("dead", 2), disk.task("good", 3)], [disk.task("x")]
    )
    wait(lambda: ("dead", 2) in disk.asked)
    assert pool.drain(0.01) == ["job"]
    assert pool.stop("job", "the end")
    assert done == [["good/1", "the end", "the end"], ["the end"]]
    assert pool.drain(0.0) == []
    assert not pool.stop("job", "again")


def test_a_job_that_no_hand_has_begun_can_be_stopped():
    pool = Hands("never-started")
    done = run(pool, "job", [Task(lambda: 1, lambda reason: reason)])
    assert pool.stop("job", "the end")
    assert done == [["the end"]]


def test_a_job_older_than_its_limit_comes_to_its_end(pool, disk, monkeypatch):
    monkeypatch.setattr(hands_module, "SILENCE_S", 1000.0)
    monkeypatch.setattr(hands_module, "JOB_LIMIT_S", 0.2)
    done = run(pool, "job", [disk.task("dead"), disk.task("dead")])
    assert pool.drain(PATIENCE_S) == []
    assert done == [["the run's checks were not done within 0.2 s"] * 2]


def test_where_the_system_gives_no_thread_jobs_end_unanswered(pool, monkeypatch):
    def none_left(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    done = run(pool, "job", [Task(lambda: 1, lambda reason: reason)])
    assert pool.drain(PATIENCE_S) == []
    assert done == [["no thread could be started to check it"]]


def test_a_thread_that_nobody_watches_may_beat():
    pulse.beat()
    pulse.expect(5)
    pulse.decoding(True)
