"""The lab starts, awaits, stops and kills servers, and its client hears all; on a stand-in for the host."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench import client, lab

FAKE = Path(__file__).with_name("fake_host.py")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder whose main.py is the stand-in."""
    folder = tmp_path / "tree"
    (folder / "comfy").mkdir(parents=True)
    shutil.copy(FAKE, folder / "main.py")
    return folder


@pytest.fixture
def fake(tree: Path, tmp_path: Path) -> Iterator[lab.Server]:
    with lab.Server(lab.Launch(tree, tmp_path / "base", launcher=lab.STOCK, hash_seed=7)) as server:
        yield server


def said(server: lab.Server) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(server.log().splitlines()[0])
    return found


def test_a_server_gets_folders_a_port_and_a_hash_seed_of_its_own(fake: lab.Server, tree: Path) -> None:
    heard = said(fake)
    base = heard["others"][heard["others"].index("--base-directory") + 1]
    assert Path(base) == fake.base
    assert (fake.base / "custom_nodes").is_dir()
    assert Path(heard["cwd"]) == tree
    assert heard["hashseed"] == "7"


def test_waiting_gives_every_message_up_to_this_prompts_end_in_order(fake: lab.Server) -> None:
    with fake.client() as browser:
        prompt_id = browser.submit({"1": {}})
        heard = browser.wait(prompt_id, 10)
    kinds = [(message["type"], message["data"]) for message in heard if message["type"] != "status"]
    assert kinds == [
        ("executing", {"node": "1", "prompt_id": prompt_id}),
        ("binary", b"preview"),
        ("executing", {"node": None, "prompt_id": "another"}),
        ("executing", {"node": None, "prompt_id": prompt_id}),
    ]


def test_two_prompts_of_one_client_are_kept_apart(fake: lab.Server) -> None:
    with fake.client() as browser:
        first, second = browser.submit({"1": {}}), browser.submit({"1": {}})
        assert browser.wait(second, 10)[-1]["data"] == {"node": None, "prompt_id": second}
        assert browser.wait(first, 10)[-1]["data"] == {"node": None, "prompt_id": first}


def test_one_message_can_be_awaited_while_the_prompt_runs(fake: lab.Server) -> None:
    with fake.client() as browser:
        prompt_id = browser.submit({"1": {}})
        assert browser.wait_for("executing", prompt_id, 10, node="1")["data"]["node"] == "1"


def test_what_is_submitted_reaches_the_server(fake: lab.Server) -> None:
    with fake.client(client_id="me") as browser:
        entry = browser.run({"1": {}}, 10, extra_data={"a": 1}, front=True, partial_execution_targets=["1"])
    asked = {"prompt": {"1": {}}, "client_id": "me", "extra_data": {"a": 1}, "front": True}
    assert entry["asked"] == {**asked, "partial_execution_targets": ["1"]}


def test_a_refused_prompt_carries_the_servers_answer(fake: lab.Server) -> None:
    with fake.client() as browser, pytest.raises(client.Refused) as caught:
        browser.submit({})
    assert caught.value.status == 400
    assert caught.value.body == {"error": {"type": "no_prompt"}}


def test_a_prompt_that_never_ends_times_out(fake: lab.Server) -> None:
    with fake.client() as browser:
        prompt_id = browser.submit("hang")  # type: ignore[arg-type]
        with pytest.raises(TimeoutError, match=prompt_id):
            browser.wait(prompt_id, 0.3)


def test_a_server_that_dies_ends_the_wait(fake: lab.Server) -> None:
    with fake.client() as browser:
        prompt_id = "prompt-1"
        with contextlib.suppress(client.Unreachable):  # the process may be gone before its answer is out
            prompt_id = browser.submit("die")  # type: ignore[arg-type]
        with pytest.raises(client.Unreachable):
            browser.wait(prompt_id, 10)
    assert fake.wait_end(10) == 3
    with pytest.raises(lab.ServerDied, match="code 3"):
        fake.check_alive()


def test_a_server_that_fails_at_the_start_is_noticed_at_once_with_its_last_words(
    tree: Path, tmp_path: Path
) -> None:
    server = lab.Server(lab.Launch(tree, tmp_path / "base", launcher=lab.STOCK, args=("--fail",)))
    began = time.monotonic()
    with pytest.raises(lab.ServerDied, match="no such model"):
        server.start().wait_ready()
    assert time.monotonic() - began < 30


def test_stopping_is_a_clean_end_and_killing_is_not(tree: Path, tmp_path: Path) -> None:
    stopped = lab.Server(lab.Launch(tree, tmp_path / "a", launcher=lab.STOCK)).start().wait_ready()
    killed = lab.Server(lab.Launch(tree, tmp_path / "b", launcher=lab.STOCK)).start().wait_ready()
    assert stopped.stop() == 0
    assert killed.kill() != 0
    assert killed.stop() == killed.kill()  # ending what has ended changes nothing


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signal masks")
@pytest.mark.parametrize("how", ["blocked", "ignored"])
def test_a_server_started_where_ctrl_c_does_nothing_still_ends_by_it(
    tree: Path, tmp_path: Path, how: str
) -> None:
    mask, handler = signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGINT)
    try:
        if how == "blocked":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        else:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        server = lab.Server(lab.Launch(tree, tmp_path / "base", launcher=lab.STOCK)).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    server.wait_ready()
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < lab.STOP_SECONDS


def test_our_launcher_is_told_the_tree_and_the_ledger(tmp_path: Path) -> None:
    launch = lab.Launch(
        tmp_path / "tree", tmp_path / "base", ledger=tmp_path / "ledger", args=("--cpu", "--x")
    )
    words = lab.command(launch, 1234)
    assert words[:3] == [sys.executable, "-m", "stagexec.main"]
    assert words[words.index("--stagexec-comfyui") + 1] == str(tmp_path / "tree")
    assert words[words.index("--stagexec-ledger") + 1] == str(tmp_path / "ledger")
    assert words[-2:] == ["--cpu", "--x"]


def test_the_database_option_is_given_only_to_a_host_that_knows_it(tmp_path: Path) -> None:
    (tmp_path / "comfy").mkdir()
    options = tmp_path / "comfy" / "cli_args.py"
    options.write_text('parser.add_argument("--port")')
    assert "--database-url" not in lab.command(lab.Launch(tmp_path, tmp_path), 1)
    options.write_text('parser.add_argument("--database-url")')
    assert "--database-url" in lab.command(lab.Launch(tmp_path, tmp_path), 1)


def test_a_servers_environment_is_free_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STAGEXEC_LEDGER", "/elsewhere")
    monkeypatch.setenv("COMFYUI_PATH", "/elsewhere")
    env = lab.environment(lab.Launch(tmp_path, tmp_path, env={"STAGEXEC_X": "1"}))
    assert "STAGEXEC_LEDGER" not in env
    assert "COMFYUI_PATH" not in env
    assert env["STAGEXEC_X"] == "1"


def test_a_pack_is_copied_and_a_folder_of_packs_is_named(tmp_path: Path) -> None:
    pack, packs = tmp_path / "pack", tmp_path / "packs"
    pack.mkdir()
    packs.mkdir()
    (pack / "__init__.py").write_text("NODE_CLASS_MAPPINGS = {}")
    lab.prepare_folders(lab.Launch(tmp_path, tmp_path / "base", custom_nodes=(pack, packs)))
    assert (tmp_path / "base" / "custom_nodes" / "pack" / "__init__.py").is_file()
    named = json.loads((tmp_path / "base" / "extra_model_paths.yaml").read_text())
    assert named == {"stagexec": {"custom_nodes": str(packs)}}
