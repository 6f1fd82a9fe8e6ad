"""What a person cancels: before the first visit, inside a node, in the queue."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conftest import NODES_PACK, Servers
from tests.host import graphs
from tests.host.witness import MS, Seen, Witness, prefix

SLOW_WORKER = '''"""Holds the worker between taking a prompt and executing it, for as long as asked."""

import time

import execution

_execute = execution.PromptExecutor.execute


def execute(self, prompt, prompt_id, extra_data={}, execute_outputs=[]):
    time.sleep(extra_data.get("stx_hold", 0))
    return _execute(self, prompt, prompt_id, extra_data, execute_outputs)


execution.PromptExecutor.execute = execute
NODE_CLASS_MAPPINGS = {}
'''


def assert_cancelled(seen: Seen) -> None:
    assert seen.ended == ("cancelled", "user_cancel")
    assert seen.of_type("execution_interrupted")
    assert seen.history is not None
    assert seen.history["status"]["status_str"] == "error"
    assert len(seen.marks("cancel_requested")) == 1


def test_a_cancel_inside_a_node_waits_for_it_and_its_latency_is_kept(witness: Witness, color: int) -> None:
    prompt_id = witness.client.submit(graphs.slow(1.0, prefix(), color))
    witness.client.wait_for("executing", prompt_id, node="2")
    time.sleep(0.15)
    witness.client.interrupt(prompt_id)
    seen = witness.wait(prompt_id)
    assert_cancelled(seen)
    slept = sum(visit["self_ns"] for visit in seen.visits_of("2"))
    assert 700 * MS < seen.ledger["cancel_latency_ns"] < slept
    assert 1000 * MS <= seen.ledger["wasted_ns"] <= seen.ledger["total_ns"]
    assert seen.place[0] == "3"  # the node that would have been next


def test_a_cancel_without_a_prompt_id_cancels_what_runs(witness: Witness, color: int) -> None:
    prompt_id = witness.client.submit(graphs.slow(0.5, prefix(), color))
    witness.client.wait_for("executing", prompt_id, node="2")
    witness.client.interrupt()
    assert_cancelled(witness.wait(prompt_id))


def test_a_cancel_during_planning_counts_before_the_first_visit(witness: Witness, color: int) -> None:
    prompt_id = witness.client.submit(graphs.slow_planning(1.0, prefix(), color))
    witness.client.wait_for("execution_start", prompt_id)
    time.sleep(0.1)
    witness.client.interrupt(prompt_id)
    seen = witness.wait(prompt_id)
    assert_cancelled(seen)
    assert seen.ledger["executed_nodes"] == []
    assert seen.stage_ms("executor_prepare") >= 1000
    assert 700 * MS < seen.ledger["cancel_latency_ns"] < seen.ledger["total_ns"]


def test_the_prompt_after_a_cancelled_one_is_not_cancelled(witness: Witness, color: int) -> None:
    prompt_id = witness.client.submit(graphs.slow(0.3, prefix(), color))
    witness.client.wait_for("executing", prompt_id, node="2")
    witness.client.interrupt(prompt_id)
    after = witness.client.submit(graphs.invert_save(prefix(), color))
    assert_cancelled(witness.wait(prompt_id))
    seen = witness.wait(after)
    assert seen.ended == ("success", None)
    assert seen.ledger["cancel_latency_ns"] is None


def test_a_node_that_raises_the_interrupt_after_a_cancel_is_cancelled(witness: Witness, color: int) -> None:
    prompt_id = witness.client.submit(graphs.fails("StxInterrupt", 0.4, color))
    witness.client.wait_for("executing", prompt_id, node="2")
    witness.client.interrupt(prompt_id)
    assert_cancelled(witness.wait(prompt_id))


def test_a_prompt_deleted_from_the_queue_is_cancelled_and_was_only_waiting(
    witness: Witness, color: int
) -> None:
    running = witness.client.submit(graphs.slow(0.5, prefix(), color))
    waiting = witness.client.submit(graphs.invert_save(prefix(), color))
    time.sleep(0.1)
    witness.client.delete(waiting)
    deleted = witness.read(waiting)
    assert deleted.ended == ("cancelled", "user_cancel")
    assert list(deleted.ledger["stages"]) == ["queue_wait"]
    assert deleted.ledger["total_ns"] >= 100 * MS
    assert (deleted.ledger["wasted_ns"], deleted.ledger["visits"]) == (0, [])
    assert deleted.ledger["startup_class"] is None
    assert witness.wait(running).ended == ("success", None)


def test_a_wiped_queue_cancels_all_that_waited_and_nothing_that_runs(witness: Witness, color: int) -> None:
    running = witness.client.submit(graphs.slow(0.5, prefix(), color))
    witness.client.wait_for("executing", running, node="2")
    waiting = [witness.client.submit(graphs.invert_save(prefix(), color)) for _ in range(3)]
    witness.client.post("/queue", {"clear": True})
    for prompt_id in waiting:
        wiped = witness.read(prompt_id)
        assert wiped.ended == ("cancelled", "user_cancel")
        assert list(wiped.ledger["stages"]) == ["queue_wait"]
    assert witness.wait(running).ended == ("success", None)


def test_waiting_behind_another_prompt_is_queue_wait(witness: Witness, color: int) -> None:
    running = witness.client.submit(graphs.slow(0.5, prefix(), color))
    behind = witness.client.submit(graphs.invert_save(prefix(), color))
    first, second = witness.wait(running), witness.wait(behind)
    assert second.stage_ms("queue_wait") >= 400
    assert second.ledger["accepted_mono_ns"] < first.ledger["finished_mono_ns"]


@pytest.fixture
def slow_worker(tmp_path: Path) -> Path:
    pack = tmp_path / "slow_worker"
    pack.mkdir()
    (pack / "__init__.py").write_text(SLOW_WORKER, encoding="utf-8")
    return pack


def test_a_cancel_between_the_queue_and_the_executor_is_not_forgotten(
    server: Servers, slow_worker: Path
) -> None:
    witness = Witness(server(custom_nodes=(NODES_PACK, slow_worker)))
    try:
        prompt_id = witness.client.submit(graphs.slow(0.1), extra_data={"stx_hold": 1.0})
        end = time.monotonic() + 10
        while not witness.client.queue()["queue_running"]:
            assert time.monotonic() < end
        witness.client.interrupt(prompt_id)
        seen = witness.wait(prompt_id)
        after = witness.run(graphs.invert_save())
    finally:
        witness.close()
    assert_cancelled(seen)
    assert seen.ledger["executed_nodes"] == []
    assert after.ended == ("success", None)
