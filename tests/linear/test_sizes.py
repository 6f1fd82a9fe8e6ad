"""Large graphs through a real server: they run, whole, and all is cached the second time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.overhead import shapes
from stagexec.bench import lab

PACK = Path(__file__).resolve().parents[2] / "bench" / "overhead" / "size_pack"

pytestmark = [pytest.mark.host, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def sized(shared_servers: Any) -> lab.Server:
    """Ours, with the host's classic cache: the one that a chain costs most."""
    return shared_servers("--cache-classic", custom_nodes=(PACK,))


@pytest.fixture(scope="module")
def by_default(shared_servers: Any) -> lab.Server:
    """Ours, with the host's default cache."""
    return shared_servers(custom_nodes=(PACK,))


def ran(server: lab.Server, prompt: shapes.Prompt) -> tuple[set[str], dict[str, Any]]:
    """The nodes that were cached at the start, and the history entry of a prompt that must succeed."""
    with server.client() as client:
        prompt_id = client.submit(prompt)
        messages = client.wait(prompt_id, 400)
        entry = client.wait_history(prompt_id)
    assert entry["status"]["status_str"] == "success", entry["status"]["messages"][-1]
    cached = [one["data"]["nodes"] for one in messages if one["type"] == "execution_cached"]
    executed = {one["data"]["node"] for one in messages if one["type"] == "executing"} - {None}
    left = {key_of(prompt[node_id]) for node_id in set(prompt) - executed - set(cached[0])}
    assert left <= {key_of(prompt[node_id]) for node_id in executed & set(prompt)}, (
        "neither cached nor run, nor like one that was"
    )
    return set(cached[0]), entry


def key_of(node: dict[str, Any]) -> str:
    return repr((node["class_type"], sorted(node["inputs"].items())))


@pytest.mark.parametrize(
    ("shape", "nodes"),
    [
        ("chain", 2_000),
        ("chain", 20_000),
        ("wide", 5_000),
        ("lanes", 2_000),
        ("diamond", 1_500),
        ("loops", 600),
    ],
)
def test_a_large_graph_runs_and_is_cached_whole(sized: lab.Server, shape: str, nodes: int) -> None:
    prompt = shapes.SHAPES[shape](nodes, nodes)
    cached, first = ran(sized, prompt)
    assert cached == set()
    cached, second = ran(sized, prompt)
    assert cached == set(prompt)
    assert second["outputs"] == first["outputs"]


@pytest.mark.parametrize("turns", [300, 1_200])
def test_a_deep_nested_expansion_runs_twice(by_default: lab.Server, turns: int) -> None:
    prompt = shapes.loops(turns * shapes.TURN + 3, turns)
    _, first = ran(by_default, prompt)
    assert first["outputs"]["end"] == {"text": [str(turns)]}
    _, second = ran(by_default, prompt)
    assert second["outputs"] == first["outputs"]


def test_a_prompt_after_a_very_deep_one_still_runs(sized: lab.Server) -> None:
    """The classic cache keeps a cache in a cache for each turn."""
    for turns, salt in ((1_100, 5), (1_100, 5), (10, 6)):
        _, entry = ran(sized, shapes.loops(turns * shapes.TURN + 3, salt))
        assert entry["outputs"]["end"] == {"text": [str(salt)]}


def test_a_chain_that_validation_must_walk_is_refused_with_the_one_error(sized: lab.Server) -> None:
    prompt = shapes.chain(5_000, 1)
    prompt["0"]["inputs"]["width"] = 0
    with sized.client() as client, pytest.raises(Exception, match="value_smaller_than_min") as refused:
        client.submit(prompt)
    assert list(refused.value.body["node_errors"]) == ["0"]


@pytest.mark.parametrize("shape", ["wide", "lanes", "diamond"])
def test_input_types_are_asked_once_a_node_and_a_few_times_a_class(sized: lab.Server, shape: str) -> None:
    prompt = shapes.SHAPES[shape](600, 77)
    with sized.client() as client:
        ran(sized, shapes.SHAPES[shape](100, 78))  # what is asked once in a process
        client.get("/size/asked")
        ran(sized, prompt)
        asked = client.get("/size/asked")
    classes = [one["class_type"] for one in prompt.values()]
    for name in set(classes):
        # Validation asks once a node and get_input_data, the host's own, once a visit; planning once a class.
        assert asked[name] <= 2 * classes.count(name) + 3, (name, asked[name], classes.count(name))
