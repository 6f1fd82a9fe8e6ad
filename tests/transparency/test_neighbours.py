"""Packs that hook into execution: each is called as on stock, changes nothing, and the ledger stays exact.

The packs are small ones of ours, written from what real ones are known to do. A pack cannot come before us:
ours are put in as the host's modules are imported; the earliest it can come is its prestartup_script.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stagexec.bench.lab import Server
from stagexec.reading import store
from tests.host import graphs as g
from tests.host.witness import closed_run, errors, ledger_of, sound
from tests.transparency import scenes as s
from tests.transparency.observe import Observer
from tests.transparency.twins import Seen, Twins, messages, start_twins

TELLING = ("visit_wrapper", "executor_wrapper", "mapper_wrapper", "queue_swapper", "sender", "meddler")
"""Packs that keep what they saw and tell it once under /neighbour/<name>."""
ALL = ("odd", *TELLING, "own_executor", "requeuer")
SCENES = (
    "image saved, cached",
    "lazy",
    "parallel async",
    "nested expansion",
    "list of expansions",
    "item 6 of 8 fails",
    "blocked with a message",
    "models loaded",
    "expansion into a cycle",
    "async list, one fails",
    "IS_CHANGED gives a text",
    "node interrupts itself",
    "node of the newer kind",
    "output in mid-graph",
)


@pytest.fixture(scope="module")
def crowd(shared_servers: Any) -> Iterator[Twins]:
    """Stock and ours with every pack at once: they wrap each other's wrappers."""
    twins = start_twins(shared_servers, ("stock", "native"), packs=ALL)
    yield twins
    for server in twins.servers.values():
        server.stop()


def told(seen: Seen, pack: str) -> Any:
    """What a pack told in a scene, the last time it was asked."""
    return [answer["answer"] for what, answer in seen if what.endswith(f"/neighbour/{pack}")][-1]


def ask_all(at: Observer) -> None:
    """Let every pack tell what it saw."""
    for pack in TELLING:
        at.get(f"/neighbour/{pack}")


def exact(server: Server, prompt_id: str) -> dict[str, Any]:
    """The ledger's account of a prompt, after the checks that hold for every run."""
    folder = ledger_of(server)
    return sound(folder, closed_run(folder, prompt_id))


def seam_states(server: Server) -> dict[str, dict[str, Any]]:
    """The seams' states as the journal has them now."""
    run = store.load(ledger_of(server)).runs[-1]
    return {one["seam"]: one for one in run.process.seams}


def prompt_ids(seen: Seen) -> list[str]:
    """The ids of all prompts that were accepted in a scene."""
    return [
        each["answer"]["prompt_id"] for what, each in seen if what == "POST /prompt" and each["status"] == 200
    ]


@pytest.mark.parametrize("name", SCENES)
def test_every_hook_is_called_as_on_stock_and_changes_nothing(crowd: Twins, name: str) -> None:
    def scene(at: Observer) -> None:
        for prompt in s.SCENES[name](at.prefix, at.color):
            at.run(prompt)
        ask_all(at)

    seen = crowd.same(f"crowd, {name}", scene)
    for pack in ("visit_wrapper", "executor_wrapper", "mapper_wrapper", "queue_swapper", "sender"):
        assert told(seen, pack), f"{pack} was never called"
    for prompt_id in prompt_ids(seen):
        exact(crowd.servers["native"], prompt_id)


def test_a_wrapper_of_execute_gets_the_hosts_arguments_by_position(crowd: Twins) -> None:
    def scene(at: Observer) -> None:
        ask_all(at)
        at.run(g.invert_save(at.prefix, at.color))
        ask_all(at)

    calls = told(crowd.same("positions", scene), "visit_wrapper")
    assert [(call[1], call[2], call[3], call[4], call[7]) for call in calls] == [
        ("1", "EmptyImage", 11, [], "SUCCESS"),
        ("2", "ImageInvert", 11, [], "SUCCESS"),
        ("3", "SaveImage", 11, [], "SUCCESS"),
    ]


def test_a_message_that_a_pack_changes_reaches_the_client_changed(crowd: Twins) -> None:
    def scene(at: Observer) -> None:
        at.run(g.invert_save(at.prefix, at.color))

    seen = crowd.same("changed message", scene)
    assert [each["seen_by"] for each in messages(seen, "executed")] == ["sender"]


def test_a_prompt_handler_edits_the_prompt_and_its_failure_is_survived(crowd: Twins) -> None:
    def scene(at: Observer) -> None:
        at.run(
            g.line(
                g.node("OddText", value=at.name),
                g.node("StxText", value="x") | {"inputs": {"value": ["3", 0]}},
                g.empty(at.color),
            )
        )
        prompt = g.txt2img(prefix=at.prefix, steps=1)
        prompt["6"]["inputs"]["text"] = "handler, fill me in"
        at.run(prompt)
        at.run(g.invert_save("refuse", at.color))
        at.get("/neighbour/meddler")

    seen = crowd.same("handlers", scene)
    assert "filled in" in str(seen)
    assert [each[0] for each in told(seen, "meddler")].count("load") >= 2


def test_models_loaded_past_a_wrapper_that_resets_peak_counters_are_still_in_the_ledger(crowd: Twins) -> None:
    def scene(at: Observer) -> None:
        at.run(g.models(3, at.prefix, at.color))

    seen = crowd.same("peak counters", scene)
    ledger = exact(crowd.servers["native"], prompt_ids(seen)[0])
    assert ledger["stages"]["model_load_residency"] > 0
    assert seam_states(crowd.servers["native"])["upload_models"]["state"] == "installed"


def test_the_seams_say_who_stands_in_front_of_them(crowd: Twins) -> None:
    crowd.same("states", lambda at: at.run(g.invert_save(at.prefix, at.color)) and None)
    states = seam_states(crowd.servers["native"])
    for seam in ("prompt_executor", "prompt_queue", "execute_node", "upload_models"):
        assert states[seam]["state"] == "installed", states[seam]
    assert "visit_wrapper" in states["execute_node"]["reason"]
    assert "meddler" in states["upload_models"]["reason"]
    assert "on the instance, wrapped by" in states["prompt_queue"]["reason"]
    assert "queue_swapper" in states["prompt_queue"]["reason"]


def test_a_node_that_requeues_its_own_workflow_runs_as_often_as_on_stock(crowd: Twins) -> None:
    ids: list[str] = []

    def scene(at: Observer) -> None:
        prompt = g.line(
            g.empty(at.color), g.node("Requeue", image=["1", 0], left=2), g.save(["2", 0], at.prefix)
        )
        first = at.submit(prompt)
        second = str(uuid.uuid5(uuid.UUID(first), "again"))
        third = str(uuid.uuid5(uuid.UUID(second), "again"))
        ids[:] = [first, second, third]
        at.wait(third)
        for prompt_id in ids:
            at.look(prompt_id)

    seen = crowd.same("requeue", scene)
    assert len(messages(seen, "execution_success")) == 3
    for prompt_id in ids:
        ledger = exact(crowd.servers["native"], prompt_id)
        assert ledger["outcome"] == "success"
        assert ledger["stages"]["queue_wait"] > 0


def test_an_executor_of_a_packs_own_runs_a_prompt_on_a_thread_of_its_own(crowd: Twins) -> None:
    ids: list[str] = []

    def scene(at: Observer) -> None:
        ids.clear()
        for number, prompt in enumerate(
            (g.invert_save(at.prefix, at.color), g.invert_save(at.prefix, at.color), g.fails(color=at.color),
             g.expand(at.prefix, 0.01, at.color), g.async_sleeps(2, 0.05, at.color))
        ):  # fmt: skip
            ids.append(str(uuid.uuid5(uuid.NAMESPACE_OID, f"{at.name}{number}")))
            at.post("/neighbour/own_executor", {"prompt": prompt, "prompt_id": ids[-1], "client_id": "own"})
        at.run(g.invert_save(f"{at.prefix}after", at.color))

    seen = crowd.same("own executor", scene)
    answers = [each["answer"] for what, each in seen if what == "POST /neighbour/own_executor"]
    assert [each["success"] for each in answers] == [True, True, False, True, True]
    assert all(each[1]["own"] for each in answers[0]["messages"])
    outcomes = [exact(crowd.servers["native"], prompt_id)["outcome"] for prompt_id in ids]
    assert outcomes == ["success", "success", "failed", "success", "success"]


def test_a_packs_own_executor_beside_a_running_prompt_is_recorded_as_the_prompt_is(crowd: Twins) -> None:
    assert_both_whole(crowd, "native")


def test_so_it_is_beside_the_hosts_own_executor(start: Callable[..., Twins]) -> None:
    assert_both_whole(start("stock", "host", packs=("odd", "own_executor")), "host")


def assert_both_whole(twins: Twins, label: str) -> None:
    """A slow prompt of the worker's and a quick one of a pack's own: two runs, each with its own work."""
    ids: list[str] = []

    def scene(at: Observer) -> None:
        running = at.submit(g.slow(1.0, at.prefix, at.color))
        at.until("executing", running, node="2")
        beside = str(uuid.uuid5(uuid.NAMESPACE_OID, at.name))
        ids[:] = [running, beside]
        at.post(
            "/neighbour/own_executor",
            {"prompt": g.invert_save(f"{at.prefix}b", at.color + 1), "prompt_id": beside},
        )
        at.wait(running)
        at.get(f"/history/{running}")
        at.get("/queue")

    seen = twins.same("beside", scene)
    answer = next(each["answer"] for what, each in seen if what == "POST /neighbour/own_executor")
    assert answer["success"]
    runs = [exact(twins.servers[label], prompt_id) for prompt_id in ids]
    for ledger, other in zip(runs, reversed(runs), strict=True):
        assert ledger["outcome"] == "success"
        assert ledger["executed_nodes"] == ["1", "2", "3"]
        assert [visit["node_id"] for visit in ledger["visits"]] == ["1", "2", "3"]
        assert [mark["detail"] for mark in ledger["marks"] if mark["name"] == "beside"] == [
            {"run_id": other["run_id"], "prompt_id": other["prompt_id"]}
        ]
    slow, quick = runs
    assert slow["stages"]["node_other"] >= 900_000_000 > quick["total_ns"]
    assert len(slow["artifacts"]) == len(quick["artifacts"]) == 1
    assert slow["artifacts"][0]["path"] != quick["artifacts"][0]["path"]


def test_the_whole_journal_has_no_contradiction_after_all_this(crowd: Twins) -> None:
    assert errors(ledger_of(crowd.servers["native"])) == []


def test_a_pack_that_rewrites_the_queue_keeps_runs_exact_though_their_wait_is_unseen(
    start: Callable[..., Twins],
) -> None:
    twins = start("stock", "native", packs=("queue_rewriter",))
    server = twins.servers["native"]

    def scene(at: Observer) -> None:
        running = at.submit(g.slow(0.5, at.prefix, at.color))
        at.until("executing", running, node="2")
        waiting = at.submit(g.fails(color=at.color))
        at.wait(waiting)
        at.look(running)
        at.look(waiting)

    seen = twins.same("rewritten queue", scene)
    slow, failed = (exact(server, prompt_id) for prompt_id in prompt_ids(seen))
    lost = seam_states(server)["prompt_queue"]
    assert lost["state"] == "lost"
    assert "queue_rewriter" in lost["reason"]
    assert (slow["outcome"], failed["outcome"], failed["cause"]) == ("success", "failed", "node_exception")
    assert slow["executed_nodes"] == ["1", "2", "3"]


def test_prompts_that_a_pack_hands_to_the_worker_past_put_are_told_of_whole(
    start: Callable[..., Twins],
) -> None:
    twins = start("stock", "native", packs=("queue_keeper",))
    server = twins.servers["native"]

    def scene(at: Observer) -> None:
        ids = [at.submit(g.slow(1.0, f"{at.prefix}0", at.color))]
        time.sleep(0.3)  # it sleeps by now, so that what the queue says of the others has its place
        ids += [at.submit(g.slow(1.0, f"{at.prefix}{n}", at.color + n)) for n in range(1, 4)]
        for prompt_id in ids:
            at.wait(prompt_id)
        for prompt_id in ids:
            at.get(f"/history/{prompt_id}")

    # Without a client: when the queue tells of its length is a race between the scene and the worker.
    seen = twins.same("kept", scene, listen=None)
    runs = [exact(server, prompt_id) for prompt_id in prompt_ids(seen)]
    for run in runs:
        assert sorted(run["expected_nodes"]) == ["1", "2", "3"]
        assert (run["unexpected"], run["condition_id"] is None) == ([], False)
    waits = [run["stages"]["queue_wait"] for run in runs]
    assert all(wait >= 600_000_000 * n for n, wait in enumerate(waits)), waits
    state = seam_states(server)["prompt_queue"]
    assert (state["state"], "queue_keeper" in state["reason"]) == ("installed", True)


def test_a_pack_that_imports_execution_in_its_prestartup_script_still_gets_ours(
    start: Callable[..., Twins],
) -> None:
    twins = start("stock", "native", packs=("early", "odd", "visit_wrapper"))

    def scene(at: Observer) -> None:
        at.run(g.invert_save(at.prefix, at.color))
        at.run(g.fails(color=at.color))
        at.get("/neighbour/early")
        at.get("/neighbour/visit_wrapper")

    seen = twins.same("early", scene)
    assert told(seen, "early")["same_class"]
    assert [call[2] for call in told(seen, "early")["calls"]] == ["SUCCESS"] * 3 + ["FAILURE"]
    for prompt_id in prompt_ids(seen):
        exact(twins.servers["native"], prompt_id)
    states = seam_states(twins.servers["native"])
    assert {states[seam]["state"] for seam in ("prompt_executor", "prompt_queue", "execute_node")} == {
        "installed"
    }


def test_a_pack_that_puts_the_hosts_own_visit_back_is_named_and_changes_no_result(
    start: Callable[..., Twins],
) -> None:
    twins = start("stock", "native", packs=("odd", "restorer"))

    def scene(at: Observer) -> None:
        for prompt in (
            g.invert_save(at.prefix, at.color),
            g.fails(color=at.color),
            g.lazy(at.prefix, at.color),
        ):
            at.run(prompt)

    for prompt_id in prompt_ids(twins.same("restored", scene)):
        exact(twins.servers["native"], prompt_id)
    lost = seam_states(twins.servers["native"])["execute_node"]
    assert (lost["state"], lost["reason"]) == ("lost", "the original was put back")
