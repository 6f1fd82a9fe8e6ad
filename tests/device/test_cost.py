"""The price of a stage with device events, on a device that costs nothing itself."""

from __future__ import annotations

from bench.overhead.stage_cost import per_call_us, stage_with_events

BAR_US = 10
BATCHES = 20


def test_a_stage_entered_and_left_with_events_costs_ten_microseconds_at_most() -> None:
    best = min(per_call_us(stage_with_events(), BATCHES))  # a busy machine can only add to the least
    print(f"enter + leave with events: {best:.2f} µs")
    assert 0 < best <= BAR_US
