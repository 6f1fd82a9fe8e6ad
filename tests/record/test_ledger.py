"""The ledger is a partition of the run's time, whatever is entered, left, torn out or left twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagexec.record import guard
from stagexec.record.ledger import NO_DEPTH, Ledger
from stagexec.stages import STAGES

ACCEPTED = 1_000

stages = st.sampled_from(sorted(STAGES))
seams = st.sampled_from([None, "read", "decode"])
ticks = st.lists(st.sampled_from([0, 0, 1, 7, 10**9]), min_size=1, max_size=30)
"""How far the clock moves from one reading to the next; 0: it gives the same value again."""

proper = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), stages, seams),
        st.tuples(st.just("leave")),
        st.tuples(st.just("switch"), stages, seams),
        st.tuples(st.just("visit"), st.one_of(st.none(), st.integers(1, 9))),
    ),
    max_size=60,
)
"""What well-behaved code does: it leaves what it entered last, or never."""

misuse = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), stages, seams),
        st.tuples(st.just("leave depth"), st.integers(-1, 12)),
        st.tuples(st.just("switch"), stages, seams),
        st.tuples(st.just("level"), st.integers(0, 6)),
    ),
    max_size=60,
)
"""Anything: leaving out of order, twice, what was never entered."""

MS = 1_000_000


def scripted(steps: Sequence[int]) -> Callable[[], int]:
    """A clock that moves on by these steps, over and over."""
    moves = itertools.cycle(steps)
    now = ACCEPTED

    def clock() -> int:
        nonlocal now
        now += next(moves)
        return now

    return clock


def closed(ledger: Ledger, clock: Callable[[], int]) -> tuple[list[Any], int]:
    end = clock()
    ledger.close(end)
    return list(ledger.pending), end


def assert_partition(segments: list[Any], finished: int) -> None:
    """Gap-free, overlap-free, from acceptance to the end, and so of exactly that sum."""
    assert segments[0][0][2] == ACCEPTED
    assert segments[-1][1] == finished
    for (_, end), (after, _) in itertools.pairwise(segments):
        assert end == after[2]
    assert all(open_[2] <= end for open_, end in segments)
    assert sum(end - open_[2] for open_, end in segments) == finished - ACCEPTED


@given(proper, ticks)
def test_any_nesting_is_a_partition_and_reopens_what_was_open_before(program: list[Any], steps: list[int]):
    clock = scripted(steps)
    ledger = Ledger("queue_wait", ACCEPTED, clock)
    suspended: list[tuple[int, Any]] = []
    for step in program:
        if step[0] == "enter":
            before = ledger.open
            suspended.append((ledger.enter(step[1], None, step[2]), before))
            assert label(ledger.open) == (step[1], None, ledger.visit, step[2])
        elif step[0] == "leave" and suspended:
            depth, before = suspended.pop()
            ledger.leave(depth)
            assert label(ledger.open) == label(before)
        elif step[0] == "switch":
            ledger.switch(step[1], None, step[2])
            assert label(ledger.open) == (step[1], None, ledger.visit, step[2])
        elif step[0] == "visit":
            ledger.visit = step[1]
        assert ledger.depth() == len(suspended)
    assert_partition(*closed(ledger, clock))


@given(misuse, ticks)
def test_misuse_still_leaves_a_partition_and_the_right_stage_open(program: list[Any], steps: list[int]):
    clock = scripted(steps)
    ledger = Ledger("queue_wait", ACCEPTED, clock)
    model = [("queue_wait", None)]  # the stack as it should be, the open stage last
    guard.faults.clear()
    misused = 0
    for step in program:
        if step[0] == "enter":
            assert ledger.enter(step[1], None, step[2]) == len(model)
            model.append(step[1:])
        elif step[0] == "leave depth":
            ledger.leave(step[1])
            if 1 <= step[1] < len(model):
                del model[step[1] :]
            elif step[1] != NO_DEPTH:
                misused += 1
        elif step[0] == "switch":
            ledger.switch(step[1], None, step[2])
            model[-1] = step[1:]
        else:
            ledger.level(step[1])
            del model[step[1] + 1 :]
        assert (ledger.open[0], ledger.open[4]) == model[-1]
        assert ledger.depth() == len(model) - 1
    assert_partition(*closed(ledger, clock))
    assert len(guard.faults) == min(misused, guard.MAX_FAULTS)
    guard.faults.clear()


@given(proper, ticks, misuse)
def test_a_straggler_after_the_end_changes_nothing(program: list[Any], steps: list[int], late: list[Any]):
    clock = scripted(steps)
    ledger = Ledger("queue_wait", ACCEPTED, clock)
    for step in program:
        if step[0] == "enter":
            ledger.enter(step[1])
    segments, end = closed(ledger, clock)
    for step in late:
        if step[0] == "enter":
            assert ledger.enter(step[1]) == NO_DEPTH
        elif step[0] == "switch":
            ledger.switch(step[1])
        elif step[0] == "level":
            ledger.level(step[1])
        else:
            ledger.leave(step[1])
    ledger.close(clock())
    assert list(ledger.pending) == segments
    assert ledger.open is None
    assert_partition(segments, end)


@given(proper, ticks, st.sets(st.integers(0, 60), max_size=8))
def test_a_clock_that_faults_now_and_then_spoils_no_partition(
    program: list[Any], steps: list[int], faulty: set[int]
):
    working = scripted(steps)
    readings = raised = 0

    def clock() -> int:
        nonlocal readings, raised
        readings += 1
        if readings in faulty:
            raised += 1
            raise OSError("no time")
        return working()

    ledger = Ledger("queue_wait", ACCEPTED, clock)
    guard.faults.clear()
    depths: list[int] = []
    for step in program:
        if step[0] == "enter":
            depths.append(ledger.enter(step[1]))
        elif step[0] == "leave" and depths:
            ledger.leave(depths.pop())
        elif step[0] == "switch":
            ledger.switch(step[1])
    while depths:
        ledger.leave(depths.pop())
    assert [error for _, error in guard.faults if "no time" in error] == ["OSError: no time"] * raised
    guard.faults.clear()
    assert_partition(*closed(ledger, working))


def label(open_: Any) -> tuple[Any, ...]:
    """What is open, without since when."""
    return (open_[0], open_[1], open_[3], open_[4])


@pytest.fixture
def ledger() -> Ledger:
    return Ledger("queue_wait", ACCEPTED, scripted([5]))


def test_inside_sees_the_open_seam_and_the_suspended_ones(ledger: Ledger) -> None:
    outer = ledger.enter("sampling", None, "sample")
    ledger.enter("model_load_residency", "upload", "load")
    assert ledger.inside("sample")
    assert ledger.inside("load")
    assert not ledger.inside("decode")
    ledger.leave(outer)
    assert not ledger.inside("sample")


def test_what_a_torn_out_node_never_left_is_dropped_by_level(ledger: Ledger) -> None:
    depth = ledger.depth()
    ledger.enter("sampling")
    ledger.enter("vae_decode")
    ledger.level(depth)
    assert ledger.open is not None
    assert ledger.open[0] == "queue_wait"


def test_a_depth_left_twice_is_noted_and_changes_nothing(ledger: Ledger, faults_expected) -> None:
    depth = ledger.enter("sampling")
    ledger.leave(depth)
    before = (ledger.open, len(ledger.pending))
    ledger.leave(depth)
    assert (ledger.open, len(ledger.pending)) == before
    assert [where for where, _ in faults_expected] == ["Ledger.leave"]


def test_a_segment_belongs_to_the_visit_in_which_it_was_entered(ledger: Ledger) -> None:
    ledger.visit = 1
    depth = ledger.enter("sampling")
    ledger.visit = 2
    ledger.leave(depth)
    ledger.enter("vae_decode")
    assert [open_[3] for open_, _ in ledger.pending] == [None, 1, None]
    assert ledger.open is not None
    assert ledger.open[3] == 2


def test_a_stage_that_is_reopened_belongs_to_its_own_visit_and_seam_still(ledger: Ledger) -> None:
    ledger.visit = 1
    ledger.enter("node_other", "Sampler", "outer")
    depth = ledger.enter("sampling", None, "inner")
    ledger.visit = 2
    ledger.leave(depth)
    assert label(ledger.open) == ("node_other", "Sampler", 1, "outer")


def test_a_part_of_the_loops_time_is_named_afterwards_and_the_partition_stays_exact() -> None:
    times = iter([0, 10 * MS, 30 * MS, 31 * MS])
    ledger = Ledger("executor_overhead", 0, lambda: next(times))
    begun = ledger.clock()
    assert ledger.carve("eviction", begun + 4 * MS) == 10 * MS
    ledger.enter("sampling")
    ledger.close(31 * MS)
    rows = [(open_[0], open_[1], open_[2], end) for open_, end in ledger.pending]
    assert rows == [
        ("executor_overhead", None, 0, 4 * MS),
        ("executor_overhead", "eviction", 4 * MS, 10 * MS),
        ("executor_overhead", None, 10 * MS, 30 * MS),
        ("sampling", None, 30 * MS, 31 * MS),
    ]


def test_a_part_that_took_all_of_the_open_segment_leaves_no_empty_one_before_it() -> None:
    times = iter([10 * MS])
    ledger = Ledger("executor_overhead", 0, lambda: next(times))
    ledger.carve("inputs", 0)
    assert [(open_[1], open_[2], end) for open_, end in ledger.pending] == [("inputs", 0, 10 * MS)]


def test_what_was_short_or_is_another_stages_by_now_is_not_named() -> None:
    times = iter([10, 20, 50 * MS, 60 * MS])
    ledger = Ledger("executor_overhead", 0, lambda: next(times))
    assert ledger.carve("inputs", 0) == 10
    assert not ledger.pending
    ledger.enter("sampling")
    assert ledger.carve("inputs", 0) == 50 * MS
    ledger.close(60 * MS)
    assert ledger.carve("inputs", 0) == 60 * MS
    assert [open_[1] for open_, _ in ledger.pending] == [None, None]


def test_a_part_in_which_another_stage_was_open_is_named_from_when_that_was_left() -> None:
    times = iter([10 * MS, 20 * MS, 40 * MS])
    ledger = Ledger("executor_overhead", 0, lambda: next(times))
    ledger.leave(ledger.enter("model_load_residency", "offload"))
    ledger.carve("eviction", 5 * MS)
    rows = [(open_[0], open_[1], open_[2], end) for open_, end in ledger.pending]
    assert rows[-1] == ("executor_overhead", "eviction", 20 * MS, 40 * MS)
    assert [start for _, _, start, _ in rows][1:] == [end for _, _, _, end in rows][:-1]
