"""The launcher in front of a real ComfyUI: its own errors, the host's arguments, and its end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench import lab
from stagexec.reading import store
from stagexec.reading.journal import sources
from tests.conftest import Servers
from tests.host import graphs
from tests.host.witness import Seen, Witness, closed_run, ledger_of, prefix, sound

Done = subprocess.CompletedProcess[str]


@pytest.fixture
def launch(tmp_path: Path) -> Any:
    """`launch(*words)`: our launcher in an empty folder, to its end."""
    empty = tmp_path / "empty"
    empty.mkdir()

    def run(*words: str | Path, cwd: Path = empty, **env: str) -> Done:
        command = [sys.executable, "-m", "stagexec.main", *map(str, words)]
        environment = lab.environment(lab.Launch(comfyui=tmp_path, base=tmp_path, env=env))
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)

    return run


def assert_one_line(done: Done, code: int, *words: str) -> None:
    """One line on stderr that holds all of `words`, nothing on stdout, and this exit code."""
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("stagexec: ")
    for word in words:
        assert word in line
    assert done.stdout == ""


def test_help_shows_our_arguments_and_then_the_hosts(launch: Any, host_tree: Path) -> None:
    done = launch("--help", "--stagexec-comfyui", host_tree)
    assert done.returncode == 0, done.stderr
    ours, theirs = done.stdout.index("--stagexec-ledger DIR"), done.stdout.index("--listen")
    assert ours < theirs
    for option in ("comfyui", "ledger", "executor", "timing", "patches", "strict", "record-text"):
        assert f"--stagexec-{option}" in done.stdout
    assert "Traceback" not in done.stderr


def test_without_a_tree_it_says_where_it_looked(launch: Any, tmp_path: Path) -> None:
    done = launch("--cpu")
    assert_one_line(done, 2, "--stagexec-comfyui", "$COMFYUI_PATH", str(tmp_path / "empty"))


def test_a_named_folder_that_is_not_there_is_an_error(launch: Any, tmp_path: Path) -> None:
    assert_one_line(
        launch("--stagexec-comfyui", tmp_path / "none"), 2, str(tmp_path / "none"), "not a folder"
    )


def test_a_named_folder_that_is_no_tree_says_what_it_lacks(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "empty" / "main.py").write_text("", encoding="utf-8")
    done = launch("--stagexec-comfyui", tmp_path / "empty")
    assert_one_line(done, 2, "not a ComfyUI tree", "execution.py")


def test_a_wrong_comfyui_path_is_named_as_such(launch: Any, tmp_path: Path) -> None:
    assert_one_line(launch(COMFYUI_PATH=str(tmp_path)), 2, "$COMFYUI_PATH", "not a ComfyUI tree")


@pytest.mark.parametrize("word", ["--stagexec-xyz", "--stagexec-xyz=1", "--stagexec-led"])
def test_an_unknown_option_of_ours_is_refused_by_name(launch: Any, host_tree: Path, word: str) -> None:
    assert_one_line(launch(word, "--stagexec-comfyui", host_tree), 2, word, "--help")


def test_a_wrong_value_of_an_option_of_ours_is_refused_with_the_right_ones(launch: Any) -> None:
    done = launch("--stagexec-executor", "fast")
    assert done.returncode == 2
    assert "native" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_option_that_the_host_does_not_know_is_refused_by_the_host(launch: Any, host_tree: Path) -> None:
    done = launch("--stagexec-comfyui", host_tree, "--no-such-option")
    assert done.returncode == 2
    assert "unrecognized arguments: --no-such-option" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_patches_file_is_refused_by_file_and_row(launch: Any, host_tree: Path, tmp_path: Path) -> None:
    table = tmp_path / "mine.toml"
    row = '[[seam]]\nid = "mine"\ntarget = ["pack.module:run"]\nkind = "stage"\nstage = "cooking"\n'
    table.write_text(row + 'why = "slow"\nhosts = "mine"\n', encoding="utf-8")
    done = launch("--stagexec-comfyui", host_tree, "--stagexec-patches", table)
    assert_one_line(done, 2, str(table), "'mine'", "cooking")


def test_a_patches_file_that_is_not_there_is_an_error(launch: Any, host_tree: Path, tmp_path: Path) -> None:
    done = launch("--stagexec-comfyui", host_tree, "--stagexec-patches", tmp_path / "none.toml")
    assert_one_line(done, 2, str(tmp_path / "none.toml"))


def test_importing_the_launcher_leaves_what_is_heavy_to_the_host() -> None:
    heavy = ("torch", "numpy", "aiohttp", "duckdb", "rich", "execution", "comfy")
    code = f"import stagexec.main, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_host_does_not_find_torch_imported_before_it(witness: Witness) -> None:
    log = witness.server.log().lower()
    assert "starting server" in log
    assert "already imported" not in log


def test_a_port_in_use_is_one_clear_line_and_exit_code_1(witness: Witness, server: Servers) -> None:
    second = server(port=witness.server.port, ready=False)
    assert second.wait_end(60) == 1
    port = str(witness.server.port)
    said = [line for line in second.log().splitlines() if port in line and "--port" in line]
    assert len(said) == 1
    assert "Traceback" not in second.log()


def test_strict_ends_the_start_also_for_a_seam_in_a_node_pack(server: Servers, tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        '[[seam]]\nid = "in_a_pack"\ntarget = "nodes_pack/flow.py:StxBlock"\nkind = "stage"\n'
        'stage = "sampling"\nwhy = "a class cannot be wrapped"\nhosts = "the test"\n',
        encoding="utf-8",
    )
    refusing = server("--stagexec-strict", "--stagexec-patches", str(own), ready=False)
    assert refusing.wait_end(60) == 1
    assert "the seam in_a_pack at nodes_pack/flow.py:StxBlock was refused: a class" in refusing.log()


def test_our_arguments_may_stand_among_the_hosts(server: Servers, tmp_path: Path) -> None:
    own = tmp_path / "own"
    running = server("--stagexec-record-text", "--cache-lru", "3", "--stagexec-ledger", str(own), ledger=None)
    with running.client() as client:
        prompt_id = client.submit(graphs.fails())
        client.wait(prompt_id)
    run = closed_run(own, prompt_id)
    assert run.error is not None
    assert run.error.message == "stx: a node failed"
    start = run.process.start
    assert start is not None
    assert not any("stagexec" in word for word in start.argv[:3])
    assert start.argv[-2:] == ["--cache-lru", "3"]


def test_ctrl_c_ends_as_the_hosts_and_the_journal_says_so(server: Servers, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    mine = server(ledger=None, cwd=elsewhere, ready=False)
    stock = server(launcher=lab.STOCK, ready=False)
    sleeping = {}
    for one in (mine, stock):
        one.wait_ready()
        with one.client() as client:
            client.run(graphs.invert_save())
            sleeping[one] = client.submit(graphs.slow(60.0))
            client.wait_for("executing", sleeping[one], node="2")
        time.sleep(0.2)
        one.interrupt()
    assert mine.wait_end(20) == stock.wait_end(20)
    for one in (mine, stock):
        assert "Stopped server" in one.log()
        assert "Traceback" not in one.log()

    ledger = mine.base / "user" / "__stagexec"  # named nowhere: the host's own folder for it
    (source,) = sources(ledger)
    assert [event for _, _, event in source.read()][-1].__class__.__name__ == "ProcessEnd"
    runs = store.load(ledger).runs
    assert [(run.outcome, run.prompt_id == sleeping[mine]) for run in runs] == [
        ("success", False),
        ("lost", True),
    ]
    assert sound(ledger, runs[1])["error_stage"] == "node_other"
    assert runs[1].cause == "process_stopped"
    assert runs[1].process.end is not None
    assert runs[1].process.end.reason == "signal SIGINT"


# --- the host's own executor --------------------------------------------------------------------------

BOTH = {
    "success": lambda color: graphs.invert_save(prefix(), color),
    "nan": lambda color: graphs.nan_save(prefix()),
    "disk_full": lambda color: graphs.save_on_full_disk(prefix(), color),
    "partial": lambda color: graphs.save_then_fail(prefix(), 0.05, color),
    "oom": lambda color: graphs.fails("StxOOM", color=color),
    "list_item": lambda color: graphs.list_fails(color * 100 + 5, color * 100),
    "interrupt": lambda color: graphs.fails("StxInterrupt", color=color),
    "async": lambda color: graphs.fails("StxAsyncFail", 0.05, color),
    "blocked": lambda color: graphs.blocked("", prefix(), color),
    "lazy": lambda color: graphs.lazy(prefix(), color),
    "async_sleeps": lambda color: graphs.async_sleeps(3, 0.1, color),
    "expand": lambda color: graphs.expand(prefix(), 0.05, color),
    "cycle": lambda color: graphs.expand(prefix(), 0.0, color, "StxExpandCycle"),
    "missing_node": lambda color: graphs.expand(prefix(), 0.0, color, "StxExpandUnknown"),
    "is_changed": lambda color: graphs.changed("StxChangedRaises", prefix(), color),
    "missing": lambda color: graphs.delivers("StxMissingFile", prefix(), color),
    "corrupt": lambda color: graphs.delivers("StxTruncatedVideo", prefix(), color),
    "text": lambda color: graphs.shows("StxText", color),
    "staged": lambda color: graphs.staged(0.05, prefix(), color),
}


def told(seen: Seen) -> dict[str, Any]:
    """What both executors must tell alike."""
    ledger = seen.ledger
    error = ledger["error"] or {}
    return {
        "ended": seen.ended,
        "place": [
            error.get(name) for name in ("stage", "node_id", "node_class", "list_index", "exception_type")
        ],
        "visits": sorted(
            (v["node_id"], v["class_type"], v["kind"], v["parent"] or "") for v in ledger["visits"]
        ),
        "artifacts": sorted(
            (a["node_id"] or "", a["state"], a["orphan"], a["first_bad"] or "") for a in ledger["artifacts"]
        ),
        "lists": [
            sorted(ledger[name])
            for name in ("selected_outputs", "cached_nodes", "executed_nodes", "not_executed")
        ],
        "marks": sorted(mark["name"] for mark in ledger["marks"]),
    }


@pytest.mark.parametrize("name", BOTH)
def test_the_hosts_executor_fills_the_ledger_alike(
    witness: Witness, host_witness: Witness, color: int, name: str
) -> None:
    graph = BOTH[name](color)
    native, host = witness.run(graph), host_witness.run(graph)
    assert (native.ledger["executor"], host.ledger["executor"]) == ("native", "host")
    assert told(host) == told(native)


def test_the_hosts_executor_tells_what_was_cached_at_the_start(host_witness: Witness, color: int) -> None:
    graph = graphs.invert_save("cached at the start", color=color)
    first, again = host_witness.run(graph), host_witness.run(graph)
    assert first.ledger["cached_nodes"] == []
    assert sorted(again.ledger["cached_nodes"]) == sorted(graph)
    assert again.ledger["executed_nodes"] == []


def test_an_exit_in_a_node_is_recorded_though_it_ends_the_hosts_worker(server: Servers) -> None:
    running = server("--stagexec-executor", "host")
    witness = Witness(running)
    try:
        prompt_id = witness.client.submit(graphs.fails("StxSystemExit"))
        seen = witness.read(prompt_id)
    finally:
        witness.close()
    assert seen.ended == ("failed", "worker_escape")
    assert seen.place[:2] == ("2", "StxSystemExit")
    assert ledger_of(running).is_dir()
