"""Automatic full collections are put off for 10 s, and no other code's thresholds are touched."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from stagexec.executor import garbage
from stagexec.executor.garbage import NEVER, REST_NS, Restraint
from stagexec.record import clock

THEIRS = (700, 10, 10)
HELD = (700, 10, NEVER)


class Collector:
    """Shaped like the module `gc`."""

    def __init__(self, threshold: tuple[int, int, int] = THEIRS) -> None:
        self.threshold = threshold
        self.callbacks: list[object] = []

    def get_threshold(self) -> tuple[int, int, int]:
        return self.threshold

    def set_threshold(self, *threshold: int) -> None:
        self.threshold = threshold

    def collect(self, generation: int = 2) -> None:
        for phase in ("start", "stop"):
            for callback in self.callbacks:
                callback(phase, {"generation": generation})


@pytest.fixture
def now(monkeypatch):
    time = [1_000_000_000_000]
    monkeypatch.setattr(clock, "now_ns", lambda: time[0])
    return time


@pytest.fixture
def collector(monkeypatch):
    monkeypatch.setattr(garbage, "IN_PIECES", False)
    return Collector()


@pytest.fixture
def one(collector, now):
    one = Restraint(collector)
    one.watch()
    return one


def test_a_prompt_s_first_ten_seconds_are_free_of_automatic_collections(one, collector, now):
    one.begin()
    assert collector.threshold == HELD
    now[0] += REST_NS - 1
    one.look()
    assert collector.threshold == HELD
    now[0] += 1
    one.look()
    assert collector.threshold == THEIRS


def test_a_prompt_that_ends_gives_the_thresholds_back_at_once(one, collector, now):
    one.begin()
    one.end()
    assert collector.threshold == THEIRS


def test_after_a_full_collection_there_is_none_for_as_long(one, collector, now):
    collector.collect()
    assert collector.threshold == HELD
    one.begin()
    one.end()
    assert collector.threshold == HELD
    now[0] += REST_NS
    one.look()
    assert collector.threshold == THEIRS


def test_a_long_prompt_is_collected_every_ten_seconds(one, collector, now):
    one.begin()
    now[0] += REST_NS
    one.look()
    assert collector.threshold == THEIRS  # now Python may collect, and does
    collector.collect()
    assert collector.threshold == HELD
    now[0] += REST_NS
    one.look()
    assert collector.threshold == THEIRS


def test_collections_of_young_objects_change_nothing(one, collector, now):
    collector.collect(0)
    collector.collect(1)
    assert collector.threshold == THEIRS


@pytest.mark.parametrize("theirs", [(5000, 20, 20), (0, 0, 0), (700, 10, 5)])
def test_thresholds_set_meanwhile_stay(one, collector, now, theirs):
    one.begin()
    collector.threshold = theirs
    one.end()
    assert collector.threshold == theirs
    now[0] += 2 * REST_NS
    one.begin()
    assert collector.threshold == theirs


def test_thresholds_saved_while_held_and_put_back_later_end_as_they_were(one, collector, now):
    one.begin()
    saved, collector.threshold = collector.threshold, (5000, 20, 20)
    one.end()
    collector.threshold = saved
    one.look()
    assert collector.threshold == THEIRS


def test_a_python_that_collects_in_pieces_is_left_as_it_is(one, collector, monkeypatch):
    monkeypatch.setattr(garbage, "IN_PIECES", True)
    one.begin()
    assert collector.threshold == THEIRS


@pytest.mark.parametrize("theirs", [(0, 10, 10), (700, 10, 0)])
def test_a_collector_that_starts_no_full_collection_is_left_as_it_is(collector, now, theirs):
    collector.threshold = theirs
    one = Restraint(collector)
    one.begin()
    assert collector.threshold == theirs
    one.end()
    assert collector.threshold == theirs


CHILD = """
import gc, os
from stagexec.executor import garbage
before = gc.get_threshold()
one = garbage.restraint()
assert garbage.restraint() is one
one.begin()
held = gc.get_threshold()
assert (held == before) is garbage.IN_PIECES, held
child = os.fork()
if child == 0:
    os._exit(0 if gc.get_threshold() == before else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert gc.get_threshold() == held
one.end()
assert gc.get_threshold() == before
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_has_the_thresholds_back_and_there_is_one_for_the_process():
    made = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=60, check=False
    )
    assert made.returncode == 0, made.stderr


def test_a_thread_that_cannot_be_started_ends_no_run(monkeypatch, collector, faults_expected):
    monkeypatch.setattr(garbage, "_one", None)
    monkeypatch.setattr(garbage, "Restraint", lambda: Restraint(collector))

    def refused(*_args, **_fields):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(garbage.threading, "Thread", refused)
    one = garbage.restraint()
    one.begin()
    assert collector.threshold == HELD
    one.end()
    assert collector.threshold == THEIRS
    assert [where for where, _ in faults_expected] == ["_set_up"]


@pytest.mark.skipif(garbage.IN_PIECES, reason="this Python collects the old generation in pieces")
def test_the_interpreter_starts_no_full_collection_in_a_prompt():
    before = gc.get_threshold()
    full = []

    def told(phase, info):
        if phase == "stop" and info["generation"] == garbage.FULL:
            full.append(info)

    def grow():  # by far more than a quarter, and by enough for the thresholds
        kept = [[] for _ in range(300_000 + len(gc.get_objects()))]
        return len(kept)

    gc.collect()
    gc.set_threshold(700, 10, 10)
    gc.callbacks.append(told)
    try:
        grow()
        assert full, "the interpreter would have collected"
        full.clear()
        one = Restraint()
        one.begin()
        grow()
        one.end()
        assert full == []
        assert gc.get_threshold() == (700, 10, 10)
    finally:
        gc.callbacks.remove(told)
        gc.set_threshold(*before)
