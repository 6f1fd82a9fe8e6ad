"""The runner on a scripted lab: order, counting, proofs, faults, resuming."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench import plan, results, runner, schedule
from tests.bench.fake_lab import PROMPT, FakeLab, FakeSession

ARMS = '[[arm]]\nname = "a"\n[[arm]]\nname = "b"\n'
UNIT = '[[unit]]\nname = "M03"\nstate = "recompute"\n'


def make(text: str) -> plan.Plan:
    """A plan whose arms make one run a pair, where the test does not say otherwise."""
    repeats = "" if "repeats =" in text else "repeats = 1\n"
    return plan.parse(f'name = "test"\n{repeats}{text}')


def bench(folder: Path, text: str, lab: FakeLab, resume: bool = False) -> runner.Bench:
    wanted = make(text)
    opened = (
        results.resume(folder, wanted, PROMPT, {"machine": {"name": "here"}})
        if resume
        else results.create(folder, wanted, PROMPT, {"machine": {"name": "here"}})
    )
    one = runner.Bench(wanted, lab, opened)
    one.run()
    return one


def counted(one: runner.Bench) -> list[dict[str, Any]]:
    return [run for run in one.results.runs if run["role"] == "counted" and run["right_state"]]


def notes(one: runner.Bench, kind: str) -> list[dict[str, Any]]:
    return [note for note in one.results.notes if note["kind"] == kind]


def test_each_arm_gets_three_warm_ups_and_ten_counted_runs_with_the_same_seeds(tmp_path: Path) -> None:
    lab = FakeLab()
    one = bench(tmp_path / "r", "servers = 2\n" + ARMS + UNIT, lab)
    roles = Counter((run["arm"], run["role"]) for run in one.results.runs)
    assert roles == {("a", "warmup"): 30, ("b", "warmup"): 30, ("a", "counted"): 10, ("b", "counted"): 10}
    assert len({run["session"] for run in one.results.runs}) == 20
    seeds = {arm: [run["seeds"] for run in counted(one) if run["arm"] == arm] for arm in "ab"}
    assert seeds["a"] == seeds["b"]
    assert len({str(seed) for seed in seeds["a"]}) == 10
    assert lab.alive == 0


def test_pairs_are_interleaved_balanced_and_their_order_is_recorded(tmp_path: Path) -> None:
    one = bench(tmp_path / "r", "servers = 2\n" + ARMS + UNIT, FakeLab())
    order = [(run["pair"], run["arm"]) for run in counted(one)]
    assert [pair for pair, _ in order] == [n // 2 for n in range(20)]
    firsts = Counter(arm for number, (_, arm) in enumerate(order) if number % 2 == 0)
    assert firsts == {"a": 5, "b": 5}
    (noted,) = notes(one, "order")
    assert noted["seed"] == one.plan.seed
    assert [
        (p, arm) for r in noted["rounds"] for p, o in zip(r["pairs"], r["orders"], strict=True) for arm in o
    ] == order


def test_each_order_is_as_frequent_as_its_mirror_which_follows_it_only_on_the_same_servers() -> None:
    mixed = schedule.orders(["a", "b", "c"], 20, 1, "u")
    assert Counter(mixed) == Counter(tuple(reversed(order)) for order in mixed)
    flips = [schedule.orders(["a", "b"], 10, seed, "u") for seed in range(300)]
    turned = sum(x != y for orders in flips for x, y in itertools.pairwise(orders)) / (300 * 9)
    assert 0.5 < turned < 0.6  # five of nine, and not nine of nine
    together = schedule.rounds(["a", "b"], 20, 1, "u", 2, together=True)
    assert all(block.orders[0] == tuple(reversed(block.orders[1])) for block in together)
    alone = [block.orders[0] for block in schedule.rounds(["a", "b"], 20, 1, "u", 2, together=False)]
    assert Counter(alone) == {("a", "b"): 5, ("b", "a"): 5}


def test_another_seed_is_another_order_and_the_same_seed_the_same() -> None:
    arms = ["a", "b", "c"]
    assert schedule.orders(arms, 10, 1, "u") == schedule.orders(arms, 10, 1, "u")
    assert schedule.orders(arms, 10, 1, "u") != schedule.orders(arms, 10, 2, "u")


def test_without_room_for_all_servers_arms_take_turns_in_rounds_of_one_launch_each(tmp_path: Path) -> None:
    lab = FakeLab()
    one = bench(tmp_path / "r", "servers = 1\nchunk = 5\n" + ARMS + UNIT, lab)
    assert lab.most_alive == 1
    names = [name for name, _ in lab.opened]
    assert sorted(names[:2]) == ["a", "b"]
    assert names[2:] == [names[1], names[0]]
    assert len(counted(one)) == 20
    (room,) = notes(one, "room")
    assert (room["fits"], room["why"]) == (False, "the plan allows 1 of 2 servers at a time")


def test_every_pair_has_launches_of_its_own_and_its_runs_follow_each_other(tmp_path: Path) -> None:
    lab = FakeLab()
    one = bench(tmp_path / "r", ARMS + UNIT + "counted = 4\n", lab)
    assert lab.most_alive == 2
    opened = [name for name, _ in lab.opened]
    assert [sorted(opened[n : n + 2]) for n in range(0, 8, 2)] == [["a", "b"]] * 4
    by_pair = {pair: [run["session"] for run in counted(one) if run["pair"] == pair] for pair in range(4)}
    assert sorted(number for numbers in by_pair.values() for number in numbers) == list(range(1, 9))
    roles = [run["role"] for run in one.results.runs]  # both arms are warm before either is measured
    assert roles == (["warmup"] * 6 + ["counted"] * 2) * 4


def rounds_of(one: runner.Bench) -> list[list[str]]:
    (noted,) = notes(one, "order")
    return [block["orders"][0] for block in noted["rounds"]]


def test_two_runs_of_a_pair_are_in_the_order_a_b_b_a_on_the_same_launches(tmp_path: Path) -> None:
    one = bench(tmp_path / "r", "repeats = 2\n" + ARMS + UNIT + "counted = 3\n", FakeLab())
    runs = counted(one)
    assert len(runs) == 12
    for number in range(3):
        four = runs[number * 4 : number * 4 + 4]
        arms = [run["arm"] for run in four]
        assert arms in (["a", "b", "b", "a"], ["b", "a", "a", "b"])
        assert len({(run["arm"], run["session"]) for run in four}) == 2


def test_where_memory_does_not_allow_it_each_arm_has_its_launch_alone_and_a_note_says_why(
    tmp_path: Path,
) -> None:
    lab = FakeLab(fits=False)
    one = bench(tmp_path / "r", ARMS + UNIT + "counted = 4\n", lab)
    assert lab.most_alive == 1
    assert len(lab.opened) == 8
    (room,) = notes(one, "room")
    assert (room["fits"], room["why"]) == (False, "1 more do not fit")
    assert [block["interleaved"] for block in notes(one, "order")[0]["rounds"]] == [False] * 4
    first = [block[0] for block in rounds_of(one)]
    assert sorted(first) == ["a", "a", "b", "b"]
    assert [name for name, _ in lab.opened] == [arm for order in rounds_of(one) for arm in order]


def test_the_first_server_shows_what_all_of_them_need_and_is_not_started_twice(tmp_path: Path) -> None:
    lab = FakeLab()
    one = bench(tmp_path / "r", ARMS + UNIT + "counted = 1\n", lab)
    assert len(lab.opened) == 2
    kinds = [note["kind"] for note in one.results.notes]
    assert kinds.index("session") < kinds.index("room") < kinds.index("order")


def test_a_bench_that_is_gone_on_with_keeps_its_order_whatever_memory_there_is_now(tmp_path: Path) -> None:
    cut = FakeLab(fits=False)
    cut.interrupt_after = 9
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path / "r", ARMS + UNIT, cut)
    one = bench(tmp_path / "r", ARMS + UNIT, FakeLab(fits=True), resume=True)
    assert len(notes(one, "order")) == len(notes(one, "room")) == 1
    assert not any(block["interleaved"] for block in notes(one, "order")[0]["rounds"])
    assert len(counted(one)) == 20


def test_an_older_order_of_fewer_measures_is_gone_on_with_by_a_new_one(tmp_path: Path) -> None:
    one = bench(tmp_path / "r", "repeats = 1\n" + ARMS + UNIT + "counted = 4\n", FakeLab())
    wanted = make(
        "repeats = 2\n" + ARMS + UNIT + "counted = 4\n"
    )  # as if a later version had another default
    again = runner.Bench(wanted, FakeLab(), one.results)
    again.run()
    assert Counter(run["arm"] for run in counted(again)) == {"a": 8, "b": 8}
    assert len({(run["arm"], run["pair"]) for run in counted(again)}) == 16


def test_a_server_that_fails_before_its_turn_costs_its_arm_alone(tmp_path: Path) -> None:
    one = bench(tmp_path / "r", ARMS + UNIT, FakeLab(script={("b", 1): "die"}))
    assert Counter(run["arm"] for run in counted(one)) == {"a": 10, "b": 10}
    assert len(notes(one, "died")) == 1


def test_several_servers_live_at_once_only_where_the_plan_allows(tmp_path: Path) -> None:
    lab = FakeLab()
    bench(tmp_path / "r", "servers = 2\n" + ARMS + UNIT, lab)
    assert lab.most_alive == 2
    assert len(lab.opened) == 20


def test_a_cold_unit_starts_a_process_for_each_run(tmp_path: Path) -> None:
    lab = FakeLab()
    one = bench(
        tmp_path / "r", ARMS + '[[unit]]\nname = "M01"\nstate = "process_cold"\npage_cache = "drop"\n', lab
    )
    assert len(lab.opened) == 10
    assert lab.page_caches == ["drop"] * 10
    assert {run["startup_class"] for run in one.results.runs} == {"process_cold"}
    assert len(one.results.runs) == 10


def test_first_and_second_come_from_one_process_and_different_seeds(tmp_path: Path) -> None:
    lab = FakeLab()
    one = bench(tmp_path / "r", '[[unit]]\nname = "u"\nstate = "first_second"\n', lab)
    assert len(lab.opened) == 5
    by_pair: dict[int, list[Any]] = {}
    for run in counted(one):
        by_pair.setdefault(run["pair"], []).append((run["position"], run["startup_class"], str(run["seeds"])))
    for runs in by_pair.values():
        assert [r[:2] for r in runs] == [("first", "process_cold"), ("second", "model_warm_recompute")]
        assert runs[0][2] != runs[1][2]


def test_a_cached_unit_repeats_one_request_and_a_no_cache_unit_computes_all(tmp_path: Path) -> None:
    text = '[[unit]]\nname = "M02"\nstate = "cached"\n[[unit]]\nname = "M04"\nstate = "no_cache"\n'
    lab = FakeLab()
    one = bench(tmp_path / "r", text, lab)
    by_unit = {unit: [run for run in counted(one) if run["unit"] == unit] for unit in ("M02", "M04")}
    assert {str(run["seeds"]) for run in by_unit["M02"]} == {str([["3", "seed", one.plan.seed]])}
    assert all(not run["executed_nodes"] for run in by_unit["M02"])
    assert all(not run["cached_nodes"] for run in by_unit["M04"])
    assert lab.opened[1][1] == ("--cache-none",)


def test_a_model_switch_has_three_positions_told_apart(tmp_path: Path) -> None:
    text = """[[unit]]
name = "M09"
state = "switch"
warmup = 1
switch = [{ node = "1", input = "ckpt_name", value = "b" }]
"""
    one = bench(tmp_path / "r", text, FakeLab())
    assert Counter(run["position"] for run in counted(one)) == {"A": 5, "B": 5, "A again": 5}


def test_a_queue_is_filled_at_once_and_what_goes_before_is_not_counted(tmp_path: Path) -> None:
    text = (
        '[[unit]]\nname = "M10"\nstate = "queue"\nconcurrency = 3\npreceding = 2\nwarmup = 1\ncounted = 2\n'
    )
    one = bench(tmp_path / "r", text, FakeLab())
    assert Counter(run["role"] for run in one.results.runs) == {"warmup": 1, "preceding": 4, "counted": 6}
    assert {run["position"] for run in counted(one)} == {"request 1", "request 2", "request 3"}


def test_arms_that_differ_in_the_workflow_share_a_server_when_nothing_is_cached(tmp_path: Path) -> None:
    lab = FakeLab()
    bench(tmp_path / "r", ARMS + '[[unit]]\nname = "M04"\nstate = "no_cache"\n', lab)
    assert len(lab.opened) == 1


def test_a_run_in_the_wrong_state_is_kept_flagged_and_repeated(tmp_path: Path) -> None:
    lab = FakeLab(script={("as it is", 5): "cache", ("as it is", 14): "read"})
    one = bench(tmp_path / "q", UNIT, lab)
    wrong = [run for run in one.results.runs if run["role"] == "counted" and not run["right_state"]]
    assert [run["why"] for run in wrong] == [
        "nodes 3, 8, 9 were not executed",
        "a model was read from its file again",
    ]
    assert len(counted(one)) == 10
    assert {run["attempt"] for run in counted(one)} == {0, 1}


def test_an_arm_that_never_reaches_the_state_is_given_up_and_the_rest_goes_on(tmp_path: Path) -> None:
    script = {("a", number): "cache" for number in range(100)}
    one = bench(tmp_path / "r", "servers = 2\n" + ARMS + UNIT, FakeLab(script=script))
    (noted,) = notes(one, "arm")
    assert (noted["arm"], noted["status"]) == ("a", "never in state")
    assert "3 tries" in noted["reason"]
    assert Counter(run["arm"] for run in counted(one)) == {"b": 10}


def test_unavailable_arms_are_named_with_the_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    lab = FakeLab(missing={"a": "the package sageattention is not installed"})
    one = bench(tmp_path / "r", ARMS + UNIT, lab)
    (noted,) = notes(one, "arm")
    assert (noted["arm"], noted["status"]) == ("a", "unavailable")
    assert noted["reason"] == "the package sageattention is not installed"
    assert len(counted(one)) == 10


def test_an_edit_that_does_not_fit_the_workflow_makes_the_arm_unavailable(tmp_path: Path) -> None:
    text = '[[arm]]\nname = "a"\n[[arm]]\nname = "b"\nedits = [{ class = "Nope", becomes = "X" }]\n'
    one = bench(tmp_path / "r", text + UNIT, FakeLab())
    (noted,) = notes(one, "arm")
    assert noted["reason"] == "the workflow has no node of class Nope"


@pytest.mark.parametrize(
    ("lab", "reason"),
    [
        (FakeLab(fails_to_open={"a": "No module named 'torchsde'"}), "No module named 'torchsde'"),
        (FakeLab(script={("a", 0): "refuse"}), "the server refused the workflow"),
    ],
)
def test_a_server_that_cannot_start_or_refuses_is_one_line_and_the_next_arm_goes_on(
    tmp_path: Path, lab: FakeLab, reason: str
) -> None:
    one = bench(tmp_path / "r", ARMS + UNIT, lab)
    (noted,) = notes(one, "arm")
    assert (noted["arm"], noted["status"]) == ("a", "failed")
    assert reason in noted["reason"]
    assert "\n" not in noted["reason"]
    assert Counter(run["arm"] for run in counted(one)) == {"b": 10}
    assert lab.alive == 0


def test_a_server_that_dies_is_started_again_and_its_last_run_is_kept_as_lost(tmp_path: Path) -> None:
    lab = FakeLab(script={("as it is", 6): "die"})
    one = bench(tmp_path / "r", UNIT, lab)
    assert len(lab.opened) == 2
    (lost,) = [run for run in one.results.runs if run["role"] == "died"]
    assert lost["outcome"] == "lost"
    assert len(counted(one)) == 10
    assert notes(one, "died")[0]["text"] == "the server ended with code 3"


def test_servers_that_go_on_dying_end_the_arm(tmp_path: Path) -> None:
    lab = FakeLab(script={("a", number): "die" for number in range(3, 200)})
    one = bench(tmp_path / "r", "servers = 2\n" + ARMS + UNIT, lab)
    (noted,) = notes(one, "arm")
    assert noted["reason"].startswith("its servers die")
    assert Counter(run["arm"] for run in counted(one)) == {"b": 10}
    assert lab.alive == 0


def test_a_failed_run_stays_in_the_results_and_is_not_repeated(tmp_path: Path) -> None:
    one = bench(tmp_path / "r", UNIT, FakeLab(script={("as it is", 7): "fail"}))
    assert Counter(run["outcome"] for run in counted(one)) == {"success": 9, "failed": 1}


PROVED = """[[arm]]
name = "a"
active = [{ what = "attention backend", field = "attention_backend", value = "^a$" }]
[[arm]]
name = "b"
active = [{ what = "attention backend", field = "attention_backend", value = "^sage$" }]
"""


def test_an_arm_that_is_not_active_is_found_out_before_its_second_counted_run(tmp_path: Path) -> None:
    one = bench(tmp_path / "r", "servers = 2\n" + PROVED + UNIT, FakeLab())
    (noted,) = notes(one, "arm")
    assert (noted["arm"], noted["status"]) == ("b", "not active")
    assert noted["reason"] == "attention backend: the condition's attention_backend says otherwise (b)"
    assert Counter(run["arm"] for run in counted(one)) == {"a": 10, "b": 1}
    proofs = {note["arm"]: note["active"] for note in notes(one, "proof")}
    assert proofs == {"a": True, "b": False}


def test_every_session_of_an_arm_is_proved_once(tmp_path: Path) -> None:
    one = bench(
        tmp_path / "r", "servers = 1\n" + PROVED.split('[[arm]]\nname = "b"', maxsplit=1)[0] + UNIT, FakeLab()
    )
    proved = [note["session"] for note in notes(one, "proof")]
    assert proved == sorted(set(proved))
    assert set(proved) == {note["number"] for note in notes(one, "session")}


def test_what_a_warm_up_proved_holds_for_the_cached_runs_after_it(tmp_path: Path) -> None:
    text = """[[arm]]
name = "a"
active = [{ what = "decoder", executed = "VAEDecode" }]
[[unit]]
name = "M02"
state = "cached"
"""
    one = bench(tmp_path / "r", text, FakeLab())
    assert [note["active"] for note in notes(one, "proof")] == [True]
    assert len(counted(one)) == 10


def test_every_raw_run_is_on_disk_when_it_ends(tmp_path: Path) -> None:
    wanted = make(UNIT)
    opened = results.create(tmp_path / "r", wanted, PROMPT, {"machine": {}})
    seen = []

    def watch(name: str, facts: dict[str, Any]) -> None:
        if name == "run":
            seen.append(len((tmp_path / "r" / "runs.jsonl").read_text().splitlines()))

    runner.Bench(wanted, FakeLab(), opened, watch).run()
    assert seen == list(range(1, len(opened.runs) + 1))


@pytest.mark.parametrize("after", [0, 2, 9, 20])
def test_a_bench_that_was_interrupted_and_resumed_has_the_same_measures(tmp_path: Path, after: int) -> None:
    text = "servers = 2\n" + ARMS + UNIT
    cut = FakeLab()
    cut.interrupt_after = after
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path / "r", text, cut)
    assert cut.alive == 0
    with (tmp_path / "r" / "runs.jsonl").open("ab") as file:
        file.write(b'{"torn')
    resumed = bench(tmp_path / "r", text, FakeLab(), resume=True)
    whole = bench(tmp_path / "w", text, FakeLab())
    key = lambda run: (run["unit"], run["arm"], run["pair"], str(run["seeds"]))  # noqa: E731
    again = results.load(tmp_path / "r")
    for one in (resumed.results, again):
        measures = results.complete(one.runs, {"M03": 1})
        assert sorted(key(run) for runs in measures.values() for run in runs) == sorted(
            key(run) for run in counted(whole)
        )


def test_a_stop_that_is_cut_short_is_done_again_before_the_bench_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = FakeLab()
    close = FakeSession.close
    calls: list[FakeSession] = []

    def cut(session: FakeSession) -> None:
        calls.append(session)
        if len(calls) == 1:
            raise KeyboardInterrupt
        close(session)

    monkeypatch.setattr(FakeSession, "close", cut)
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path / "r", ARMS + UNIT, lab)
    assert lab.alive == 0
    assert calls[0] is calls[1]


def test_a_resumed_bench_that_was_finished_starts_no_server(tmp_path: Path) -> None:
    bench(tmp_path / "r", UNIT, FakeLab())
    lab = FakeLab()
    bench(tmp_path / "r", UNIT, lab, resume=True)
    assert lab.opened == []


def test_another_plan_workflow_or_machine_cannot_be_resumed(tmp_path: Path) -> None:
    bench(tmp_path / "r", UNIT, FakeLab())
    here = {"machine": {"name": "here"}}
    with pytest.raises(results.ResultError, match="another machine"):
        results.resume(tmp_path / "r", make(UNIT), PROMPT, {"machine": {"name": "there"}})
    with pytest.raises(results.ResultError, match="another plan"):
        results.resume(tmp_path / "r", make("seed = 9\n" + UNIT), PROMPT, here)
    with pytest.raises(results.ResultError, match="another workflow"):
        results.resume(tmp_path / "r", make(UNIT), {}, here)
    with pytest.raises(results.ResultError, match="already holds a result"):
        results.create(tmp_path / "r", make(UNIT), PROMPT, {})


def test_a_used_up_budget_stops_between_runs_and_says_so(tmp_path: Path) -> None:
    one = bench(tmp_path / "r", "[budget]\nminutes = 0.0000001\n" + UNIT, FakeLab())
    assert counted(one) == []
    assert len(notes(one, "budget")) == 1
    assert not notes(one, "finished")


def test_the_end_of_a_run_is_asked_for_and_one_that_goes_on_is_not_counted(tmp_path: Path) -> None:
    lab = FakeLab(script={("as it is", 5): "deaf"})
    one = bench(tmp_path / "r", UNIT + 'until = "native"\n', lab)
    assert {until for _, _, until in lab.asked} == {"native"}
    assert len(counted(one)) == 10
    (wrong,) = [run for run in one.results.runs if not run["right_state"]]
    assert wrong["why"] == "the server did not take the stop point native"
