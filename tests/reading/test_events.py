"""The reader's structs, the fake journal and format.py speak of the same fields."""

from __future__ import annotations

import msgspec
import pytest

from stagexec import format as journal_format
from stagexec.reading import events
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun, S, tiny_run


def journal_with_every_event() -> FakeJournal:
    journal = FakeJournal().head()
    run = tiny_run(journal, "aaaa")
    other = FakeRun(journal, "bbbb", TINY).spend(MS).start()
    other.grow("2", {"2.0.1": ("X", ["1"])}).spans(("task:1", "sampling", "s", 1, 0, 5))
    other.identify({"1": "d"}).know_condition("ab" * 32, "fps")
    other.columns("samples", {"visit": 1, "name": "a.b ← c.d", "count": 3, "ns": S})
    other.columns("cpu", {"at_ns": MS, "own_ns": 1, "busy_ns": 2, "cores": 4})
    place = {"start_ns": MS, "device": 0, "stream": 0}
    other.columns("device", {**place, "device_ns": 5, "reason": None}, fault=None)
    other.columns("device_spans", {**place, "offset_ns": 1, "length_ns": 2, "copies": 3})
    sizes = dict.fromkeys(("allocated_bytes", "reserved_bytes", "dynamic_bytes", "rss_bytes"), 1)
    other.columns("memory", {"at_ns": MS, "device": 0, **sizes})
    journal.add("nvml_facts", period_ns=MS, reason=None, devices=[{"uuid": "GPU-1"}])
    figures = ("used_bytes", "process_bytes", "power_mw", "energy_mj", "temperature_c")
    clocks = ("sm_clock_mhz", "memory_clock_mhz")
    journal.add("nvml_sample", uuid="GPU-1", **dict.fromkeys((*figures, *clocks), 1))
    journal.heartbeat(run, other)
    journal.add("mark", other, name="blocked", detail={"node": "2"})
    journal.add("after_run", after=None, what="collection", start_ns=1, end_ns=2, delayed=[])
    journal.add("lost_events", count=3, reason="No space left on device")
    outside = {"start_wall_ns": 5, "length_ns": 7, "part": None, "program": "ffmpeg", "exit_code": 0}
    journal.add("outside_span", other, **outside, hostname="elsewhere")
    journal.end()
    return journal


def test_every_event_of_the_format_has_a_struct_and_no_other_has() -> None:
    assert {kind.__struct_config__.tag for kind in events.KINDS} == set(journal_format.EVENTS)


@pytest.mark.parametrize("kind", events.KINDS, ids=lambda kind: kind.__name__)
def test_a_struct_has_exactly_the_fields_that_the_format_lists(kind: type[events.Event]) -> None:
    listed = set(journal_format.EVENTS[str(kind.__struct_config__.tag)])
    common = set(journal_format.COMMON) - {"event_type"} | set(journal_format.OPTIONAL)
    assert {field.name for field in msgspec.structs.fields(kind)} == listed | common


def test_the_fake_journal_writes_exactly_the_fields_that_the_format_lists() -> None:
    seen = set()
    for event in journal_with_every_event().events:
        name = event["event_type"]
        seen.add(name)
        needed = set(journal_format.COMMON) | set(journal_format.EVENTS[name])
        assert needed <= set(event) <= needed | set(journal_format.OPTIONAL), name
    assert seen == set(journal_format.EVENTS)


def test_every_line_of_the_fake_journal_decodes_to_its_struct() -> None:
    decoder = msgspec.json.Decoder(events.AnyEvent)
    journal = journal_with_every_event()
    kinds = [type(decoder.decode(line)).__struct_config__.tag for line in journal.lines()]
    assert kinds == [event["event_type"] for event in journal.events]
