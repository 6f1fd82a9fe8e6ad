"""The committed graphs can be played, and the suite's own comparison says what it should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench import lab
from tests.packs import page, sweep
from tests.packs.__main__ import main
from tests.packs.play import Played, Together, different_calls, differing, play_set
from tests.packs.wanted import CORE, GRAPHS, at_hand, fill, wanted

FILES = sorted(GRAPHS.glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_link_of_a_graph_leads_to_a_node_of_it(path: Path) -> None:
    for graph in wanted()[path.stem].graphs:
        for node_id, node in graph.prompt.items():
            links = [each for each in node["inputs"].values() if isinstance(each, list) and len(each) == 2]
            lost = [link for link in links if link[0] not in graph.prompt]
            assert not lost, f"{graph.name}, node {node_id}: {lost}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_pack_has_graphs_or_a_reason_for_having_none(path: Path) -> None:
    each = wanted()[path.stem]
    assert each.graphs or each.why
    assert path.stem == each.name.lower().replace("_", "-")
    assert "/" in each.repository or path.stem == CORE


def test_graphs_of_at_least_thirty_packs_are_there() -> None:
    assert sum(bool(each.graphs) for each in wanted().values()) >= 30


def test_a_graph_gets_its_own_prefix_and_colour() -> None:
    assert fill({"a": ["{color}", "x {prefix}", 3]}, "p", 7) == {"a": [7, "x p", 3]}


def test_packs_are_found_in_folders_of_packs_and_by_their_own_folder(tmp_path: Path) -> None:
    for name in ("many/ComfyUI_Essentials", "many/own_pack", "many/no_pack", "rgthree-comfy"):
        (tmp_path / name).mkdir(parents=True)
        if name != "many/no_pack":
            (tmp_path / name / "__init__.py").touch()
    found = at_hand(
        f"{tmp_path / 'many'}:{tmp_path / 'rgthree-comfy'}".replace(":", __import__("os").pathsep)
    )
    assert [pack.name for pack in found] == ["ComfyUI_Essentials", "own_pack", "rgthree-comfy"]
    assert [bool(pack.wanted.graphs) for pack in found] == [True, False, True]


def test_a_folder_that_is_not_there_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--packs", "no/such/folder"]) == 2
    assert capsys.readouterr().err == "packs: no folder no/such/folder\n"


def test_a_hook_called_once_more_or_by_another_function_is_a_difference() -> None:
    stock = [["A", "IS_CHANGED", "get < f", 2], ["A", "INPUT_TYPES", "get < f", 4]]
    assert different_calls(stock, stock, "native") == []
    assert different_calls(stock, [stock[0], ["A", "INPUT_TYPES", "get < f", 1]], "native") == []
    more = [["A", "IS_CHANGED", "get < f", 3], ["A", "INPUT_TYPES", "get < f", 5]]
    assert len(different_calls(stock, more, "native")) == 2
    other = [["A", "IS_CHANGED", "ask < f", 2], ["A", "INPUT_TYPES", "get < f", 4]]
    assert different_calls(stock, other, "native") == [
        "A.IS_CHANGED: called by get < f; on native by ask < f"
    ]
    never = [["A", "IS_CHANGED", "get < f", 2]]
    assert different_calls(stock, never, "native") == ["A.INPUT_TYPES: called 4 times, on native 0 times"]


def test_what_was_seen_differs_by_a_byte_of_a_file() -> None:
    one, other = [("files", [{"content": "00"}])], [("files", [{"content": "01"}])]
    assert differing(one, list(one), "native") == []
    (text,) = differing(one, other, "native")
    assert '-    "content": "00"' in text


def test_a_difference_is_narrowed_to_what_differs_and_the_order_of_keys_counts() -> None:
    one = [("classes", {"A": 1, "B": {"x": 1, "y": 2}})]
    (text,) = differing(one, [("classes", {"A": 1, "B": {"x": 1, "y": 3}})], "native")
    assert '"x"' not in text
    assert '+    "y": 3' in text.replace("     ", "    ")
    (text,) = differing(one, [("classes", {"B": {"x": 1, "y": 2}, "A": 1})], "native")
    assert "keys in order" in text


@pytest.mark.parametrize(("label", "differences"), [("stock", 0), ("native", 1)])
def test_a_server_of_ours_that_does_not_start_is_a_difference_and_one_of_stock_is_none(
    label: str, differences: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def wait_ready(server: lab.Server, seconds: float = 0) -> None:
        if server.launch.ours == (label == "native"):
            raise lab.ServerDied("the server ended with code 1")

    monkeypatch.setattr(lab.Server, "start", lambda server: None)
    monkeypatch.setattr(lab.Server, "wait_ready", wait_ready)
    result = play_set([], lambda _: [], ("stock", "native"), tmp_path, tmp_path, "python")
    assert len(result.all_differences) == differences


def test_the_page_says_what_is_absent_what_was_not_played_and_what_differs(tmp_path: Path) -> None:
    folder = tmp_path / "own_pack"
    folder.mkdir()
    (folder / "__init__.py").touch()
    played = [
        Played("good", "own_pack", ended="success", executed=3, stages={"A": "node_other (none)"}),
        Played("gone", "own_pack", not_played="no class B: No module named 'x'"),
        Played("bad", "own_pack", ended="error", error="C: wrong", differences=["C.IS_CHANGED: called"]),
    ]
    alone = [Together(["own_pack"], {"own_pack": 2}, {}, {}, [], played)]
    text = page.markdown(
        "1.2.3", ("stock", "native"), at_hand(str(folder)), alone, None, [wanted()["cg-use-everywhere"]]
    )
    for part in ("1 packs, 2 graphs", "1 differences", "| own_pack | ? | 2 | 2/3 | 3 |", "No module named",
                 "cg-use-everywhere", "C: wrong", "node_other (none): A", "bad: C.IS_CHANGED"):  # fmt: skip
        assert part in text, part
    assert json.loads(json.dumps(page.as_json(alone, None, [])))["differences"] == 1


def test_a_class_is_swept_when_all_its_inputs_have_a_source() -> None:
    required: dict[str, Any] = {"image": ["IMAGE"], "width": ["INT", {"default": 512}]}
    info = {"output": ["IMAGE"], "input": {"required": required}}
    graph = sweep.graph_of("Resizer", info)
    assert graph is not None
    assert graph.prompt["node"]["inputs"] == {"image": ["image", 0], "width": 64}
    assert set(graph.prompt) == {"node", "show 0", "image"}
    required["detector"] = ["DETECTOR"]
    assert sweep.graph_of("Resizer", info) is None
