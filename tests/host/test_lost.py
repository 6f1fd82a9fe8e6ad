"""kill -9 in the middle of sampling: what the next reader makes of the journal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stagexec.reading import conditions, store
from stagexec.reading.runs import Run
from tests.conftest import Servers
from tests.host import graphs
from tests.host.witness import MS, Witness, command, errors, ledger_of, printed, sound

STEPS = 200
"""The host tells of progress from half a percent on: with 200 steps, of each."""


class Killed(NamedTuple):
    """A ledger whose server was killed: one run was done, one was sampling, one was waiting."""

    ledger: Path
    done: str
    sampling: str
    waiting: str
    wall_ns: int


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, host_tree: Path, checkpoint: Path) -> Iterator[Killed]:
    servers = Servers(tmp_path_factory.mktemp("killed"), host_tree, checkpoint)
    try:
        server = servers()
        witness = Witness(server)
        done = witness.run(graphs.invert_save()).prompt_id
        sampling = witness.client.submit(graphs.txt2img(steps=STEPS, size=256))
        waiting = witness.client.submit(graphs.invert_save(color=1))
        wait_for_step(witness, sampling, 3)
        now = time.time_ns()
        server.kill()
        yield Killed(ledger_of(server), done, sampling, waiting, now)
        witness.close()
    finally:
        servers.stop_all()


def wait_for_step(witness: Witness, prompt_id: str, step: int) -> None:
    """Return when the sampler has told `step`."""
    listener = witness.client.listener
    assert listener is not None
    end = time.monotonic() + 120
    while True:
        told = [m["data"] for m in listener.messages if m["type"] == "progress"]
        steps = [data["value"] for data in told if data["prompt_id"] == prompt_id and data["max"] == STEPS]
        if steps and step <= steps[-1]:
            assert steps[-1] < STEPS // 2
            return
        assert time.monotonic() < end, steps
        time.sleep(0.02)


def run_of(killed: Killed, prompt_id: str) -> Run:
    return store.load(killed.ledger).find(prompt_id)


def test_a_long_run_that_is_killed_has_a_condition_of_what_was_known(server: Any) -> None:
    one = server()
    witness = Witness(one)
    prompt_id = witness.client.submit(graphs.slow(60.0))
    folder = ledger_of(one)
    end = time.monotonic() + 30
    while not (known := [run.condition_id for run in store.load(folder).runs if run.condition_id]):
        assert time.monotonic() < end, "no condition while it runs"
        time.sleep(0.1)
    one.kill()
    witness.close()
    lost = store.load(folder).find(prompt_id)
    assert (lost.outcome, [lost.condition_id]) == ("lost", known)
    manifest = conditions.manifest(folder, lost.condition_id)
    assert manifest is not None
    assert lost.accepted is not None
    assert manifest.fields["api_prompt_hash"] == lost.accepted.prompt_hash
    assert manifest.fields["executor"] == "native"
    assert manifest.fields["precision"] is None
    assert "not read back" in manifest.reasons["precision"]
    assert errors(folder) == []


def shown(killed: Killed, prompt_id: str) -> dict[str, Any]:
    return sound(killed.ledger, run_of(killed, prompt_id))


def test_a_run_killed_in_mid_sampling_is_lost_in_sampling_with_its_segments(killed: Killed) -> None:
    run = shown(killed, killed.sampling)
    assert (run["outcome"], run["cause"]) == ("lost", "process_died")
    assert (run["error_stage"], run["error_node"]) == ("sampling", "3")
    assert run["error"]["node_class"] == "KSampler"
    assert run["segments"][-1]["stage"] == "sampling"
    steps = [one for one in run["segments"] if one["part"] == "step"]
    assert len(steps) >= 2
    assert {"model_load_residency", "conditioning", "sampling"} <= set(run["stages"])
    assert run["wasted_ns"] >= run["stages"]["sampling"]
    kinds = {visit["node_id"]: visit["kind"] for visit in run["visits"]}
    assert (kinds["4"], kinds["3"]) == ("executed", "pending")
    assert "9" in run["not_executed"]


def test_a_run_that_waited_when_the_process_was_killed_is_lost_in_queue_wait(killed: Killed) -> None:
    run = shown(killed, killed.waiting)
    assert (run["outcome"], run["cause"], run["error_stage"]) == ("lost", "process_died", "queue_wait")
    assert list(run["stages"]) == ["queue_wait"]
    assert run["total_ns"] > 0
    assert run["wasted_ns"] == 0


@pytest.mark.parametrize("which", ["sampling", "waiting"])
def test_at_most_a_second_before_the_kill_is_unaccounted_for(killed: Killed, which: str) -> None:
    run = run_of(killed, getattr(killed, which))
    assert run.finished_ns is not None
    end = run.process.wall_ns(run.finished_ns)
    assert end is not None
    # After the kill the system takes the process's memory down before it says that the process has ended:
    # 0.1 s for a gigabyte and a half.
    assert -500 * MS <= killed.wall_ns - end <= 1000 * MS


def test_a_run_that_was_done_before_the_kill_is_untouched_by_it(killed: Killed) -> None:
    run = shown(killed, killed.done)
    assert (run["outcome"], run["cause"]) == ("success", None)
    assert [one["state"] for one in run["artifacts"]] == ["verified"]


def test_the_command_tells_of_the_lost_runs_and_audit_has_only_notes(killed: Killed) -> None:
    rows = printed("runs", "--ledger", killed.ledger)
    told = {row["prompt_id"]: (row["outcome"], row["error_stage"]) for row in rows}
    assert told == {
        killed.done: ("success", None),
        killed.sampling: ("lost", "sampling"),
        killed.waiting: ("lost", "queue_wait"),
    }
    assert all(sum(row["stages"].values()) == row["total_ns"] for row in rows)
    assert errors(killed.ledger) == []
    assert command("audit", "--ledger", killed.ledger).returncode == 0
