"""The sentence that says why a run was faster credits what did it, and nothing else."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from stagexec.answers.explain import Difference, explain
from stagexec.answers.words import human, percent, size
from stagexec.reading import store
from tests.reading.fake_journal import (
    MS,
    TINY,
    FakeJournal,
    FakeRun,
    S,
    cached_run,
    reseeded_run,
    tiny_run,
)

Play = Callable[[FakeJournal], object]


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., Difference]:
    def compare(first: Play, second: Play, **names: str) -> Difference:
        journal = FakeJournal().head()  # written over the one of an earlier call
        first(journal)
        second(journal)
        journal.write(tmp_path)
        a, b = store.load(tmp_path).runs
        return explain(a, b, **names)

    return compare


def cold(journal: FakeJournal) -> None:
    tiny_run(journal, "aaaa", "process_cold", load_ns=5 * S)


Compared = Callable[..., Difference]


def test_a_run_wholly_from_the_cache_says_so_and_that_nothing_was_sampled(compared: Compared) -> None:
    found = compared(cold, lambda j: cached_run(j, "bbbb"), name_a="the first run", name_b="the second run")
    assert found.verdict == (
        "The second run was 6.19 s faster than the first run (6.20 s → 6.00 ms): "
        "all 5 nodes came from the cache, nothing was sampled; same picture, by hash."
    )


def test_a_new_seed_credits_the_resident_model_and_not_the_sampling(
    compared: Compared,
) -> None:
    found = compared(cold, lambda j: reseeded_run(j, "bbbb"), name_a="the first run", name_b="the third run")
    assert found.verdict == (
        "The third run was 5.08 s faster than the first run (6.20 s → 1.12 s): "
        "the model was already resident (5.00 s → 2.00 ms, 98% of the difference); "
        "the other stages 2%; 2 of 5 nodes came from the cache; "
        "sampling took about as long (1.00 s → 980 ms); same picture, by hash."
    )


def test_a_slower_run_that_had_to_load_its_model_says_so(compared: Compared) -> None:
    found = compared(lambda j: tiny_run(j, "aaaa"), lambda j: tiny_run(j, "bbbb", load_ns=4 * S))
    assert "Run B was 3.98 s slower" in found.verdict
    assert "the model had to be loaded (20.0 ms → 4.00 s, 100% of the difference)" in found.verdict
    assert "no node came from the cache" in found.verdict


def test_a_rerun_after_a_cached_run_does_not_blame_the_sampler(compared: Compared) -> None:
    found = compared(lambda j: cached_run(j, "aaaa"), lambda j: reseeded_run(j, "bbbb"))
    assert "sampling ran again, run A had it from the cache" in found.verdict
    assert "sampling took longer" not in found.verdict


def sampler_from_cache(journal: FakeJournal) -> None:
    run = FakeRun(journal, "bbbb", TINY).spend(MS).start(cached=("1", "2", "3"))
    run.visit(1, "4", "VAEDecode", [("vae_decode", 100 * MS)])
    run.visit(2, "5", "SaveImage", [("native_materialize", 30 * MS)])
    run.execute().close()


def test_sampling_that_the_cache_saved_is_credited_to_the_cache(compared: Compared) -> None:
    found = compared(lambda j: tiny_run(j, "aaaa"), sampler_from_cache)
    assert "sampling was not needed, its nodes came from the cache" in found.verdict
    assert "3 of 5 nodes came from the cache" in found.verdict
    assert "sampling took" not in found.verdict


def test_sampling_that_was_really_faster_is_credited_to_sampling(compared: Compared) -> None:
    found = compared(
        lambda j: reseeded_run(j, "aaaa"), lambda j: reseeded_run(j, "bbbb", sampling_ns=300 * MS)
    )
    assert "sampling took less (980 ms → 300 ms, 100% of the difference)" in found.verdict


def test_two_equal_runs_took_about_as_long_and_no_stage_is_blamed(compared: Compared) -> None:
    found = compared(lambda j: tiny_run(j, "aaaa"), lambda j: tiny_run(j, "bbbb", load_ns=21 * MS))
    assert found.verdict == (
        "Run B took about as long as run A (1.22 s → 1.22 s): "
        "no node came from the cache, 5 nodes executed; sampling took about as long (1.00 s → 1.00 s); "
        "same picture, by hash."
    )


def test_nodes_that_were_neither_cached_nor_executed_are_not_counted_as_all(compared: Compared) -> None:
    def second(journal: FakeJournal) -> None:
        FakeRun(journal, "bbbb", TINY).spend(MS).start(cached=("4", "5")).execute(outputs={"5": 1}).close()

    assert ": 2 nodes came from the cache, nothing was sampled" in compared(cold, second).verdict


def waited(journal: FakeJournal) -> None:
    run = FakeRun(journal, "aaaa", TINY).spend(100 * S).start("process_cold")
    run.visit(1, "3", "KSampler", [("sampling", S)]).execute().close()


def test_the_cache_is_not_credited_with_time_that_was_spent_waiting(compared: Compared) -> None:
    found = compared(waited, lambda j: cached_run(j, "bbbb"))
    assert "waiting in the queue took less (1 min 40 s → 1.00 ms, 99% of the difference)" in found.verdict
    assert "all 5 nodes came from the cache" in found.verdict


def test_two_cached_runs_differ_by_what_took_longer_and_not_by_the_cache(compared: Compared) -> None:
    def slow(journal: FakeJournal) -> None:
        run = FakeRun(journal, "bbbb", TINY).spend(9 * S).start(cached=tuple(TINY)).spend(2 * MS)
        run.execute(outputs={"5": 1}).spend(3 * MS).close()

    found = compared(lambda j: cached_run(j, "aaaa"), slow)
    assert "waiting in the queue took longer (1.00 ms → 9.00 s, 100% of the difference)" in found.verdict
    other = compared(slow, lambda j: cached_run(j, "aaaa"))
    assert "waiting in the queue took less" in other.verdict


@pytest.mark.parametrize(("startup", "resident"), [("process_cold", True), ("warm", False)])
def test_a_model_that_was_loaded_faster_is_not_called_resident(
    compared: Compared, startup: str, resident: bool
) -> None:
    def second(journal: FakeJournal) -> None:
        run = FakeRun(journal, "bbbb", TINY).start(startup)
        model = {"class": "SD15", "id": 1, "bytes": 100, "resident": resident}
        journal.add("mark", run, name="model_load", detail={"models": [model]})
        run.visit(1, "3", "KSampler", [("model_load_residency", 900 * MS), ("sampling", S)])
        run.execute().close()

    found = compared(cold, second)
    assert "loading the model took less (5.00 s → 900 ms" in found.verdict
    assert "resident" not in found.verdict


def failed(journal: FakeJournal) -> None:
    run = FakeRun(journal, "bbbb", TINY).spend(MS).start()
    run.visit(1, "3", "KSampler", [("sampling", 5 * MS)], kind="failed")
    run.execute().close("failed", "oom", error={"stage": "sampling", "node_id": "3"})


def test_a_failed_run_is_never_called_faster(compared: Compared) -> None:
    found = compared(lambda j: tiny_run(j, "aaaa"), failed)
    assert found.verdict == (
        "Run B ended as failed in sampling (node 3) after 6.00 ms, so the two times cannot be compared."
    )


def test_deltas_per_stage_add_up_to_the_total_difference_and_shares_to_one(compared: Compared) -> None:
    found = compared(cold, lambda j: reseeded_run(j, "bbbb"))
    assert sum(d.delta_ns for d in found.stages) == found.delta_ns == found.total_b_ns - found.total_a_ns
    assert sum(d.share or 0 for d in found.stages) == pytest.approx(1)


def test_what_changed_is_listed_with_both_sides(compared: Compared) -> None:
    found = compared(cold, lambda j: reseeded_run(j, "bbbb"))
    changed = {c["what"]: (c["a"], c["b"]) for c in found.changed}
    assert changed["startup_class"] == ("process_cold", "model_warm_recompute")
    assert changed["seeds"] == ([["3", "seed", 7]], [["3", "seed", 8]])
    assert changed["cached_nodes"] == ([], ["1", "2"])
    assert changed["executed_nodes"] == (["1", "2", "3", "4", "5"], ["3", "4", "5"])
    assert "condition" not in changed


def test_prompts_that_differ_in_more_than_seeds_are_warned_about(compared: Compared) -> None:
    found = compared(
        lambda j: FakeRun(j, "aaaa", TINY).start().execute().close(),
        lambda j: FakeRun(j, "bbbb", TINY, prompt_hash="ff" * 32).start().execute().close(),
    )
    assert found.warnings == ["the prompts differ in more than their seeds"]


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (350, "0.35 µs"),
        (2_345_678, "2.35 ms"),
        (31 * MS, "31.0 ms"),
        (980 * MS, "980 ms"),
        (S - 1, "1.00 s"),
        (60 * S - 1, "1 min 00 s"),
        (-9_810 * MS, "-9.81 s"),
        (184 * S, "3 min 04 s"),
        (7380 * S, "2 h 03 min"),
    ],
)
def test_durations_are_said_in_the_unit_that_people_would_use(ns: int | None, text: str) -> None:
    assert human(ns) == text


def test_shares_and_sizes_are_said_shortly() -> None:
    assert (percent(0.824), percent(-0.001), percent(None)) == ("82%", "0%", "-")
    assert [size(n) for n in (None, 12, 1234, 5_000_000_000)] == ["-", "12 B", "1.2 kB", "5.0 GB"]


SHARE = re.compile(r"(-?\d+)%")
STAGES = ("conditioning", "sampling", "vae_decode", "native_materialize", "postprocess", "node_other")


def any_run(random_: random.Random, name: str) -> Play:
    """A run of TINY with any times, of which any nodes come from the cache."""

    def play(journal: FakeJournal) -> None:
        run = FakeRun(journal, name, TINY).spend(random_.randrange(S)).start()
        cached = random_.randrange(6)
        run.spend(random_.randrange(20 * MS))
        journal.events[-1]["nodes"] = list(TINY)[:cached]
        for number, node in enumerate(list(TINY)[cached:], 1):
            steps = [(random_.choice(STAGES), random_.randrange(S)) for _ in range(random_.randrange(1, 4))]
            run.visit(number, node, TINY[node][0], steps).spend(random_.randrange(200 * MS))
        run.execute(outputs={"5": 1}).spend(random_.randrange(100 * MS)).close()

    return play


@pytest.mark.parametrize("seed", range(60))
def test_shares_that_are_said_add_up_and_each_clause_agrees_with_the_table(
    compared: Compared, seed: int
) -> None:
    random_ = random.Random(seed)
    found = compared(any_run(random_, "aaaa"), any_run(random_, "bbbb"))
    shares = [int(share) for share in SHARE.findall(found.verdict)]
    assert sum(shares) == (100 if shares else 0)
    assert "the loop between the nodes ran again" not in found.verdict
    times = {(human(one.a_ns), human(one.b_ns)): one for one in found.stages}
    for clause in found.verdict.partition(": ")[2].split("; "):
        told = re.search(r"\((\S+ \S+) → (\S+ \S+), (-?\d+)%", clause)
        if told is None:
            continue
        row = times[told[1], told[2]]
        assert int(told[3]) == round(100 * row.delta_ns / found.delta_ns)
        if "took less" in clause or "was not needed" in clause:
            assert row.delta_ns < 0
        if "took longer" in clause or "ran again" in clause:
            assert row.delta_ns > 0


def test_what_went_the_other_way_is_said_with_its_share(compared: Compared) -> None:
    def play(name: str, sampling_ns: int, decode_ns: int) -> Play:
        def run(journal: FakeJournal) -> None:
            one = FakeRun(journal, name, TINY).start()
            one.visit(1, "3", "KSampler", [("sampling", sampling_ns)])
            one.visit(2, "4", "VAEDecode", [("vae_decode", decode_ns)]).execute(outputs={"5": 1}).close()

        return run

    found = compared(play("aaaa", 4 * S, S), play("bbbb", S, 2 * S))
    assert "sampling took less (4.00 s → 1.00 s, 150% of the difference)" in found.verdict
    assert "partly offset: decoding the latents took longer (1.00 s → 2.00 s, -50%)" in found.verdict


def test_work_that_was_only_partly_cached_before_did_not_come_from_the_cache(compared: Compared) -> None:
    def first(journal: FakeJournal) -> None:
        run = FakeRun(journal, "aaaa", TINY).start(cached=("1",))
        run.visit(1, "2", "CLIPTextEncode", [("conditioning", 5 * MS)], kind="blocked").execute().close()

    def second(journal: FakeJournal) -> None:
        run = FakeRun(journal, "bbbb", TINY).start()
        run.visit(1, "1", "CheckpointLoaderSimple", [("conditioning", S)])
        run.visit(2, "2", "CLIPTextEncode", [("conditioning", S)]).execute().close()

    assert "had it from the cache" not in compared(first, second).verdict


def test_runs_of_different_work_are_said_to_be_that_first(compared: Compared) -> None:
    def other(journal: FakeJournal) -> None:
        run = FakeRun(journal, "bbbb", TINY, prompt_hash="ff" * 32).start()
        run.visit(1, "3", "KSampler", [("sampling", 9 * S)]).artifact("5", sha256="ee" * 32)
        run.execute(outputs={"5": 1}).close()

    found = compared(lambda j: tiny_run(j, "aaaa"), other)
    assert found.verdict.startswith("The two runs are of different work: run B was ")
    assert found.verdict.endswith("; different picture.")


def busy_run(journal: FakeJournal, name: str, sampling_ns: int, others_share: float) -> None:
    run = FakeRun(journal, name, TINY).start()
    run.visit(1, "3", "KSampler", [("sampling", sampling_ns)])
    busy = sampling_ns + round(4 * sampling_ns * others_share)
    columns = ((0, 0, 0), (sampling_ns, sampling_ns, busy))
    run.columns("cpu", *({"at_ns": t, "own_ns": own, "busy_ns": b, "cores": 4} for t, own, b in columns))
    run.execute(outputs={"5": 1}).close()


def test_sampling_is_not_called_slower_where_other_programs_had_the_machine(compared: Compared) -> None:
    found = compared(
        lambda j: busy_run(j, "aaaa", S, 0.0),
        lambda j: busy_run(j, "bbbb", 5 * S, 0.75),
    )
    assert "sampling took longer" not in found.verdict
    assert "sampling took its time while other programs had 75% of the machine in run B" in found.verdict
    faster = compared(lambda j: busy_run(j, "aaaa", 5 * S, 0.75), lambda j: busy_run(j, "bbbb", S, 0.0))
    assert "sampling took less while other programs had 75% of the machine in run A" in faster.verdict


def test_a_machine_that_is_as_busy_in_both_runs_is_no_reason(compared: Compared) -> None:
    found = compared(
        lambda j: busy_run(j, "aaaa", S, 0.75),
        lambda j: busy_run(j, "bbbb", 5 * S, 0.75),
    )
    assert "sampling took longer" in found.verdict
    assert "other programs" not in found.verdict


def test_weights_that_came_from_disk_this_time_are_said_with_their_speed(compared: Compared) -> None:
    def reading(name: str, cold_pages: int, ns: int) -> Play:
        def play(journal: FakeJournal) -> None:
            run = FakeRun(journal, name, TINY).start()
            run.switch("model_load_residency", "read", 1, "read_weights", ("1", "Loader")).spend(ns)
            pages = {"pages": 100, "cold_pages": cold_pages, "ns": ns}
            detail = {"file": "f", "bytes": 178_000_000, **pages}
            journal.add("mark", run, name="weights_read", detail=detail)
            run.visit(1, "1", "Loader", [("node_other", MS)]).execute(outputs={"5": 1}).close()

        return play

    found = compared(reading("aaaa", 0, 74 * MS), reading("bbbb", 100, 1369 * MS))
    assert "read from disk this time (178.0 MB at 130.0 MB/s)" in found.verdict
    other = compared(reading("aaaa", 100, 1369 * MS), reading("bbbb", 0, 74 * MS))
    assert "from disk" not in other.verdict
