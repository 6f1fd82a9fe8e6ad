"""ComfyUI 0.20.1 and 0.16.3: they start, run the small graphs, and doctor has nothing against them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Servers
from tests.host import graphs
from tests.host.witness import Witness, command, errors, ledger_of, prefix, printed

VERSIONS = ["0.20.1", "0.16.3"]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=VERSIONS)
def older(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    old_host_tree: Callable[[str], Path],
    checkpoint: Path,
) -> Iterator[Witness]:
    """A server of an older host; one at a time."""
    version: str = request.param
    servers = Servers(tmp_path_factory.mktemp(version), old_host_tree(version), checkpoint)
    try:
        witness = Witness(servers())
        yield witness
        witness.close()
    finally:
        servers.stop_all()


def test_a_small_graph_is_recorded_cold_and_cached(older: Witness, color: int) -> None:
    graph = graphs.invert_save(prefix(), color)
    cold, cached = older.run(graph), older.run(graph)
    assert (cold.ended, cached.ended) == (("success", None), ("success", None))
    assert cold.ledger["host_version"] in VERSIONS
    assert cold.ledger["executed_nodes"] == ["1", "2", "3"]
    assert cached.ledger["cached_nodes"] == ["1", "2", "3"]
    assert [one["state"] for one in cached.ledger["artifacts"]] == ["verified"]


def test_the_tiny_workflow_runs_through_its_stages(older: Witness) -> None:
    seen = older.run(graphs.txt2img(prefix=prefix()))
    assert seen.ended == ("success", None)
    used = {"model_load_residency", "conditioning", "sampling", "vae_decode", "native_materialize"}
    assert used <= set(seen.ledger["stages"])
    assert [one["part"] for one in seen.ledger["segments"]].count("step") >= 2


@pytest.mark.parametrize(
    ("node", "ended"),
    [
        ("StxRaise", ("failed", "node_exception")),
        ("StxOOM", ("failed", "oom")),
        ("StxInterrupt", ("failed", "interrupted_by_node")),
    ],
)
def test_failures_have_their_causes(older: Witness, color: int, node: str, ended: tuple[str, str]) -> None:
    seen = older.run(graphs.fails(node, color=color))
    assert seen.ended == ended
    assert seen.place == ("2", node, None)


def test_a_list_item_a_blocker_and_an_expansion_are_told(older: Witness, color: int) -> None:
    item = older.run(graphs.list_fails(color * 100 + 5, color * 100))
    block = older.run(graphs.blocked("", prefix(), color))
    grown = older.run(graphs.expand(prefix(), 0.05, color))
    assert item.place == ("2", "StxFailAt", 5)
    assert block.ended == ("success_empty", "blocked")
    assert grown.ended == ("success", None)


def test_a_cancel_inside_a_node_is_a_cancel(older: Witness, color: int) -> None:
    prompt_id = older.client.submit(graphs.slow(0.6, prefix(), color))
    older.client.wait_for("executing", prompt_id, node="2")
    older.client.interrupt(prompt_id)
    seen = older.wait(prompt_id)
    assert seen.ended == ("cancelled", "user_cancel")
    assert seen.ledger["cancel_latency_ns"] > 0


def test_no_seam_is_refused_or_lost_and_audit_passes(older: Witness, color: int) -> None:
    seen = older.run(graphs.invert_save(prefix(), color))
    states = {seam["state"] for seam in seen.ledger["seams"]}
    assert "installed" in states
    assert states <= {"installed", "absent"}
    assert errors(ledger_of(older.server)) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_doctor_finds_no_problems(old_host_tree: Callable[[str], Path], version: str) -> None:
    tree = old_host_tree(version)
    report = printed("doctor", "--comfyui", tree)
    assert report["host"]["version"] == version
    assert report["problems"] == []


def test_doctor_finds_no_problems_in_the_pinned_host(host_tree: Path) -> None:
    report = printed("doctor", "--comfyui", host_tree)
    assert report["host"]["version"] == "0.30.0"
    assert (report["executor"]["used"], report["problems"]) == ("native", [])


def test_doctor_of_a_folder_without_a_host_is_a_mistake_of_the_users(tmp_path: Path) -> None:
    done = command("doctor", "--comfyui", tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
