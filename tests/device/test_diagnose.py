"""Diagnoses: each rule finds what it is for, with its figures, and nothing where there is nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stagexec.answers.diagnose import Diagnosis, diagnose, swings
from stagexec.reading import store
from tests.reading.fake_journal import MS, TINY, FakeJournal, FakeRun, S, reseeded_run, tiny_run

UNET: dict[str, Any] = {"class": "SDXL", "id": 1, "bytes": 5_000_000_000, "resident": False}


def found(tmp_path: Path, journal: FakeJournal, name: str = "aaaa") -> dict[str, Diagnosis]:
    journal.write(tmp_path)
    loaded = store.load(tmp_path)
    return {one.name: one for one in diagnose(loaded.find(name), loaded.runs)}


def load_mark(run: FakeRun, *models: dict[str, Any], stage: str = "sampling") -> None:
    detail = {"models": list(models), "count": len(models), "resident": 0}
    run.journal.add("mark", run, name="model_load", detail=detail, stage_id=stage)


def test_an_ordinary_run_has_no_diagnosis(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa")
    assert found(tmp_path, journal) == {}


def test_a_model_loaded_twice_in_a_run_is_thrashing(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    load_mark(run, UNET)
    load_mark(run, {**UNET, "id": 2})
    load_mark(run, {**UNET, "resident": True})
    load_mark(run, UNET)
    run.close()
    one = found(tmp_path, journal)["model_reload"]
    assert one.severity == "problem"
    assert one.figures == {"class": "SDXL", "bytes": 5_000_000_000, "loads": 2}
    assert "loaded 2 times" in one.says


@pytest.mark.parametrize("resident", [False, True])
def test_a_model_loaded_in_run_after_run_is_thrashing_too(tmp_path: Path, resident: bool) -> None:
    journal = FakeJournal().head()
    for name, there in (("bbbb", False), ("aaaa", resident)):
        run = FakeRun(journal, name, TINY).start()
        load_mark(run, {**UNET, "resident": there})
        run.visit(1, "3", "KSampler", [("sampling", S)]).close()
    told = found(tmp_path, journal)
    assert ("model_reload_every_run" in told) is not resident


def with_memory(tmp_path: Path, *allocated: int) -> dict[str, Diagnosis]:
    journal = FakeJournal().head(timing="events")
    run = FakeRun(journal, "aaaa", TINY).start()
    layers = {"device": 0, "reserved_bytes": None, "dynamic_bytes": None, "rss_bytes": 1}
    run.columns(
        "memory", *[{"at_ns": at * MS, "allocated_bytes": a, **layers} for at, a in enumerate(allocated)]
    )
    run.close()
    return found(tmp_path, journal)


def test_memory_that_falls_and_rises_again_and_again_is_a_sawtooth(tmp_path: Path) -> None:
    told = with_memory(tmp_path, 0, 100, 20, 90, 10, 100, 30, 80)
    assert told["memory_sawtooth"].figures == {"cycles": 3, "highest_bytes": 100, "lowest_bytes": 0}


def test_memory_that_wavers_or_turns_once_is_no_sawtooth(tmp_path: Path) -> None:
    assert with_memory(tmp_path, 0, 100, 80, 100, 80, 100, 80, 100) == {}
    assert swings([0, 100, 20, 90], 25) == 1
    assert swings([], 1) == 0


def timed(tmp_path: Path, sampling: int | None, decode: int | None) -> dict[str, Diagnosis]:
    """Host: 10 ms of sampling, 120 of decoding."""
    journal = FakeJournal().head(timing="events")
    run = FakeRun(journal, "aaaa", TINY).spend(MS)
    run.start(timing="events", device="cuda", device_reason=None).spend(MS)
    starts = []
    for number, (node, stage, host) in enumerate((("3", "sampling", 10), ("4", "vae_decode", 120)), 1):
        run.spend(MS)
        starts.append(journal.now)
        run.visit(number, node, "Node", [(stage, host * MS)])
    place = {"device": 0, "stream": 0}
    rows = [
        {"start_ns": start, **place, "device_ns": length, "reason": None if length else "fault"}
        for start, length in zip(starts, (sampling, decode), strict=True)
    ]
    run.columns("device", *rows, fault=None)
    run.close()
    return found(tmp_path, journal)


def test_host_time_far_from_device_time_is_told_for_the_stage(tmp_path: Path) -> None:
    journal_told = timed(tmp_path, 100 * MS, 30 * MS)
    one = journal_told["host_device_ratio"]
    assert (one.figures["stage"], one.figures["ratio"]) == ("vae_decode", 4.0)
    assert "waits for device work of earlier stages" in one.says


def test_equal_unknown_and_tiny_device_times_are_not(tmp_path: Path) -> None:
    assert timed(tmp_path, 10 * MS, 120 * MS) == {}
    assert timed(tmp_path, None, 500_000) == {}


def test_segments_of_unknown_device_time_count_on_neither_side(tmp_path: Path) -> None:
    journal = FakeJournal().head(timing="events")
    run = FakeRun(journal, "aaaa", TINY).start(timing="events", device="cuda", device_reason=None).spend(MS)
    first = journal.now
    run.visit(1, "3", "KSampler", [("sampling", 10 * MS)]).spend(MS)
    second = journal.now
    run.visit(2, "3", "KSampler", [("sampling", 900 * MS)])
    place = {"device": 0, "stream": 0}
    known = {"start_ns": first, **place, "device_ns": 10 * MS, "reason": None}
    captured = {"start_ns": second, **place, "device_ns": None, "reason": "graph_capture"}
    run.columns("device", known, captured, fault=None).close()
    assert found(tmp_path, journal) == {}


def pair(tmp_path: Path, load_ns: int) -> dict[str, Diagnosis]:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa", "process_cold", load_ns)
    reseeded_run(journal, "bbbb")
    return found(tmp_path, journal)


def test_a_first_run_that_mostly_loads_is_one_time_cost(tmp_path: Path) -> None:
    one = pair(tmp_path, 20 * S)["one_time_cost"]
    assert one.figures["share"] > 0.9
    assert one.figures["first"].startswith("aaaa")
    assert one.severity == "note"


def test_a_first_run_that_mostly_samples_is_per_run_cost(tmp_path: Path) -> None:
    one = pair(tmp_path, 20 * MS)["per_run_cost"]
    assert 0 <= one.figures["share"] < 0.8
    assert "1% of the first was one-time cost (18.0 ms); 51.0 ms came from the cache" in one.says


def test_a_second_run_that_was_slower_shows_no_one_time_cost(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    reseeded_run(journal, "aaaa", 100 * MS)
    reseeded_run(journal, "bbbb", 400 * MS)
    one = found(tmp_path, journal)["per_run_cost"]
    assert one.figures["share"] == 0
    assert one.says.endswith("no one-time cost shows; the same work took 300 ms more")


def test_text_encoding_that_the_cache_saved_is_cached_and_not_paid_once(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    first = FakeRun(journal, "aaaa", TINY).start("process_cold")
    first.visit(1, "2", "CLIPTextEncode", [("conditioning", 3 * S)])
    first.visit(2, "3", "KSampler", [("sampling", 100 * MS)]).execute(outputs={"5": 1}).close()
    second = FakeRun(journal, "bbbb", TINY).start(cached=("1", "2"))
    second.visit(1, "3", "KSampler", [("sampling", 100 * MS)]).execute(outputs={"5": 1}).close()
    one = found(tmp_path, journal)["per_run_cost"]
    assert (one.figures["once_ns"], one.figures["cached_ns"], one.figures["share"]) == (0, 3 * S, 0)
    assert "3.00 s came from the cache and comes back when its inputs change" in one.says


def taking_turns(
    journal: FakeJournal, name: str, work: str, read: bool = True, startup: str = "warm"
) -> None:
    run = FakeRun(journal, name, TINY, prompt_hash=work * 64).start(startup)
    if read:
        run.switch("model_load_residency", "read", 1, "read_weights", ("1", "Loader")).spend(S)
        journal.add("mark", run, name="weights_read", detail={"file": work, "bytes": 10})
        run.visit(1, "1", "Loader", [("node_other", MS)])
    detail = {"models": [{"class": "SD15", "bytes": 1_300_000_000, "id": name, "resident": not read}]}
    journal.add("mark", run, name="model_load", detail=detail)
    run.visit(2, "3", "KSampler", [("sampling", S)]).execute(outputs={"5": 1}).close()


def test_a_model_that_came_back_was_loaded_again_because_the_other_ran_between(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    taking_turns(journal, "aaaa", "a", startup="process_cold")
    taking_turns(journal, "bbbb", "b")
    taking_turns(journal, "cccc", "a")
    one = found(tmp_path, journal, "cccc")
    assert (
        one["model_reloaded"].says
        == "SD15 (1.3 GB) was loaded again because run bbbb-000 ran between (1.00 s)"
    )
    assert not {"one_time_cost", "per_run_cost"} & set(one)  # it is no second run


def test_models_that_take_turns_in_every_run_are_a_thrash(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    for at, work in enumerate("abab"):
        taking_turns(journal, f"{at}{at}{at}{at}", work, startup="warm" if at else "process_cold")
    one = found(tmp_path, journal, "3333")["model_thrash"]
    assert (one.figures["runs"], one.figures["load_ns"]) == (2, 2 * S)
    assert "models take turns: 2 runs in a row" in one.says


def test_an_eviction_under_memory_pressure_is_told_with_what_it_gave_back(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start().spend(MS)
    run.switch("executor_overhead", "eviction").spend(150 * MS).switch("executor_overhead")
    empty = {"device": None, "allocated_bytes": None, "reserved_bytes": None, "dynamic_bytes": None}
    readings = ((0, 9_300_000_000), (160 * MS, 8_000_000_000))
    run.columns("memory", *({"at_ns": at, **empty, "rss_bytes": rss} for at, rss in readings)).close()
    assert found(tmp_path, journal)["ram_eviction"].says.startswith("evicted under RAM pressure (1.3 GB)")


def test_device_memory_that_is_held_and_not_used_is_told(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    row = {"at_ns": 1, "device": 0, "dynamic_bytes": None, "rss_bytes": None}
    held = {"allocated_bytes": 4_000_000_000, "reserved_bytes": 10_000_000_000}
    run.columns("memory", {**row, **held}).close()
    assert found(tmp_path, journal)["fragmentation"].figures["idle_bytes"] == 6_000_000_000


def test_runs_of_other_timing_modes_are_not_compared(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    tiny_run(journal, "aaaa", "process_cold", 20 * S)
    reseeded_run(journal, "bbbb")
    for event in journal.events:
        if event["event_type"] == "run_started" and event["run_id"].startswith("bbbb"):
            event["timing"] = "profile"
    assert found(tmp_path, journal) == {}


def test_a_tiled_retry_is_told_with_the_time_that_went_into_it(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    journal.add("mark", run, name="oom_seen", detail={"type": "OutOfMemoryError"})
    journal.add("mark", run, name="tiled_retry", detail={"inside": "vae_decode"})
    run.switch("vae_decode", "tiled_retry", 1).spend(300 * MS).switch("executor_overhead")
    run.close()
    one = found(tmp_path, journal)["tiled_retry"]
    assert one.figures == {"retries": 1, "oom_seen": 1, "tiled_retry_ns": 300 * MS}


def test_graphs_compiled_again_are_a_problem_and_the_first_time_a_note(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    for name in ("aaaa", "bbbb"):
        run = FakeRun(journal, name, TINY).start()
        detail = {"unique_graphs": 2, "frames": 3, "graph_breaks": 0}
        journal.add("mark", run, name="compiled", detail=detail)
        run.visit(1, "3", "KSampler", [("sampling", S)]).close()
    told = found(tmp_path, journal), found(tmp_path, journal, "bbbb")
    assert told[0]["compiled"].severity == "note"
    assert told[1]["recompiled"].severity == "problem"
    assert told[1]["recompiled"].figures["unique_graphs"] == 2


def attending(tmp_path: Path, calls: dict[str, int], asked: str | None) -> dict[str, Diagnosis]:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    detail = {"calls": calls, "configured": "attention_sage", "asked": asked}
    journal.add("mark", run, name="attention", detail=detail)
    run.close()
    return found(tmp_path, journal)


def test_attention_that_fell_back_is_a_problem(tmp_path: Path) -> None:
    calls = {"attention_sage": 10, "attention_pytorch": 30}
    one = attending(tmp_path, calls, "attention_sage")["attention_other"]
    assert "75% of the calls ran another: attention_pytorch 30×, attention_sage 10×" in one.says
    assert one.figures["calls"] == calls


def test_attention_as_asked_or_unasked_is_a_note(tmp_path: Path) -> None:
    assert attending(tmp_path, {"attention_sage": 10}, "attention_sage")["attention"].severity == "note"
    assert attending(tmp_path, {"attention_pytorch": 10}, None)["attention"].severity == "note"


def test_the_vaes_dtype_is_that_of_the_model_a_decode_loads(tmp_path: Path) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    load_mark(run, {**UNET, "dtype": "float16"})
    load_mark(run, {**UNET, "id": 9, "class": "AutoencoderKL", "dtype": "bfloat16"}, stage="vae_decode")
    run.close()
    assert found(tmp_path, journal)["vae_dtype"].figures == {"dtypes": {"bfloat16": 1}}


@pytest.mark.parametrize(("bad", "name"), [("3", "nonfinite_latents"), ("4", "nonfinite")])
def test_a_file_made_of_nan_names_the_first_node_and_whether_it_was_the_latents(
    tmp_path: Path, bad: str, name: str
) -> None:
    journal = FakeJournal().head()
    run = FakeRun(journal, "aaaa", TINY).start()
    run.visit(1, "3", "KSampler", [("sampling", S)]).visit(2, "4", "VAEDecode", [("vae_decode", S)])
    run.artifact("5", state="nonfinite", first_bad=bad)
    run.close("failed", "artifact_nonfinite")
    one = found(tmp_path, journal)[name]
    assert one.figures["first_bad"] == [bad]
    assert f"node {bad} (" in one.says


def test_every_diagnosis_has_a_rule_and_figures(tmp_path: Path) -> None:
    for one in pair(tmp_path, 20 * S).values():
        assert one.rule
        assert one.figures
