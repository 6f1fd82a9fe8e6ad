"""On a real server: equal runs are of one condition, and what defeats the cache is named."""

from __future__ import annotations

import time
from typing import Any

from stagexec.answers import cache_defeat
from stagexec.bench import lab
from stagexec.cli.demo import workflow
from stagexec.reading import conditions, store
from stagexec.reading.runs import Run
from tests.conftest import SHARED_PACKS
from tests.host.witness import Witness


def known(witness: Witness, prompt_id: str) -> Run:
    """The run, once its condition is in the journal."""
    end = time.monotonic() + 60
    while True:
        run = store.load(witness.folder).find(prompt_id)
        if run.missing is not None:
            return run
        assert time.monotonic() < end, "the condition never came"
        time.sleep(0.05)


def fields(witness: Witness, run: Run) -> dict[str, Any]:
    manifest = conditions.manifest(witness.folder, run.condition_id)
    assert manifest is not None
    return manifest.fields


def test_first_again_and_new_seed_are_of_one_condition_and_other_steps_are_not(witness: Witness) -> None:
    runs = [known(witness, witness.run(workflow(seed)).prompt_id) for seed in (31, 31, 32)]
    assert len({run.condition_id for run in runs}) == 1
    found = fields(witness, runs[0])
    assert (found["steps"], found["width"], found["sampler"]) == (2, 64, "euler")
    assert set(found["precision"]) >= {"AutoencoderKL", "SD1ClipModel"}
    assert len(found["model_hash"]) == 64
    other = workflow(32)
    other["3"]["inputs"]["steps"] = 3
    run = known(witness, witness.run(other).prompt_id)
    assert run.condition_id != runs[0].condition_id
    changed = {name for name, value in fields(witness, run).items() if found[name] != value}
    assert changed == {"steps", "api_prompt_hash"}


def test_another_process_gives_the_same_run_the_same_condition(witness: Witness, server: Any) -> None:
    first = known(witness, witness.run(workflow(41)).prompt_id)
    other: lab.Server = server(ledger=witness.folder, custom_nodes=SHARED_PACKS)
    second_witness = Witness(other)
    try:
        second = known(second_witness, second_witness.run(workflow(42)).prompt_id)
    finally:
        second_witness.close()
    assert second.process is not first.process
    assert first.condition_id == second.condition_id


def test_the_node_that_defeated_the_cache_is_named(witness: Witness) -> None:
    known(witness, witness.run(workflow(51)).prompt_id)
    second = known(witness, witness.run(workflow(52)).prompt_id)
    runs = store.load(witness.folder).runs
    before = cache_defeat.previous(second, runs)
    assert before is not None
    told = {one.node_id: (one.why, one.by) for one in cache_defeat.re_executions(second, before)}
    assert told["3"] == ("seed changed", "3")
    assert told["9"] == ("its input comes from node 3: seed changed", "3")
