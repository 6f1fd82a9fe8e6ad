"""The worker lives through whatever kills the host's, and each prompt has its end, for its client too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NODES_PACK, Servers
from tests.host import graphs
from tests.host.witness import Seen, Witness, prefix, printed

PACK = Path(__file__).parent / "worker_pack"
ERROR = "execution_error"


@pytest.fixture(scope="module")
def narrow(shared_servers: Servers) -> Iterator[Witness]:
    """Our loop, on a console that has few characters."""
    one = Witness(start(shared_servers))
    yield one
    one.close()


@pytest.fixture(scope="module")
def narrow_host(shared_servers: Servers) -> Iterator[Witness]:
    """The host's own loop in the same way."""
    one = Witness(start(shared_servers, "--stagexec-executor", "host"))
    yield one
    one.close()


def start(servers: Servers, *args: str) -> Any:
    return servers(*args, custom_nodes=(NODES_PACK, PACK), env={"PYTHONIOENCODING": "cp1252"})


@pytest.fixture(params=["native", "host"])
def either(request: pytest.FixtureRequest) -> Witness:
    """Both of them."""
    found: Witness = request.getfixturevalue("narrow" if request.param == "native" else "narrow_host")
    return found


def with_node(name: str, color: int) -> graphs.Prompt:
    """A picture saved, and beside it a node by whose name the pack knows what to do."""
    return {**graphs.invert_save(prefix(), color), name: graphs.node("PreviewAny", source="x")}


def fails(kind: str, **inputs: Any) -> graphs.Prompt:
    return {"1": graphs.node("WpUnshown"), "2": graphs.node("WpFails", kind=kind, **inputs)}


def assert_it_has_an_end(seen: Seen) -> None:
    """One execution_error, then `executing {node: null}`, and a history entry that says the same."""
    assert len(seen.of_type(ERROR)) == 1
    last = seen.messages[-1]
    assert (last["type"], last["data"]["node"]) == ("executing", None)
    assert seen.history is not None
    assert seen.history["status"]["status_str"] == "error"
    assert [name for name, _ in seen.history["status"]["messages"]].count(ERROR) == 1


def assert_the_next_one_runs(witness: Witness, color: int) -> None:
    after = witness.run(graphs.invert_save(prefix(), color + 1_000_000))
    assert after.ended == ("success", None)
    assert witness.client.queue() == {"queue_running": [], "queue_pending": []}


# ---- fences that cannot raise -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("half \ud800 a character", "half \ud800 a character\n"),
        ("a face \U0001f600 and \u00e9", "a face \U0001f600 and \u00e9\n"),
        ("no_text", "NoText (its text raised SystemExit)\n"),
        ("no_name", "odd\n"),
        ("circle", "first\n"),
        ("x" * 1_000_000, "x" * 1_000_000 + "\n"),
    ],
    ids=["half", "face", "no_text", "no_name", "circle", "huge"],
)
def test_an_error_that_no_console_can_show_fails_its_node_alone(
    narrow: Witness, color: int, kind: str, message: str
) -> None:
    seen = narrow.run(fails(kind))
    assert seen.ended == ("failed", "node_exception")
    assert seen.place == ("2", "WpFails", None)
    assert seen.of_type(ERROR)[0]["exception_message"] == message
    assert_it_has_an_end(seen)
    assert_the_next_one_runs(narrow, color)
    assert seen.ledger["host_status"] == "error"


def test_an_input_that_has_no_text_is_told_by_its_kind(narrow: Witness, color: int) -> None:
    seen = narrow.run(fails("plain", value=["1", 0]))
    assert seen.ended == ("failed", "node_exception")
    assert seen.of_type(ERROR)[0]["current_inputs"] == {"kind": ["plain"], "value": ["<Unshown>"]}
    assert_it_has_an_end(seen)


def test_an_error_is_still_shown_with_what_the_console_lacks_escaped(narrow: Witness) -> None:
    narrow.run(fails("caf\u00e9 \U0001f680 \ud801"))
    log = narrow.server.log_file.read_text("cp1252")
    assert "!!! Exception during processing !!! caf\u00e9 \\U0001f680 \\ud801\n" in log
    assert "--- Logging error ---" not in log


def test_a_deliver_node_whose_artifact_is_half_a_character_fails_alone(narrow: Witness, color: int) -> None:
    deliver = graphs.node(
        "StagexecDeliver", artifact="\ud800", filename_prefix=prefix(), destination="", overwrite=False
    )
    seen = narrow.run({"1": deliver})
    assert seen.ledger["outcome"] == "failed"
    assert seen.place[:2] == ("1", "StagexecDeliver")
    assert_it_has_an_end(seen)


@pytest.mark.parametrize(
    ("kind", "exception"),
    [("half \ud800 a character", "ValueError"), ("no_text", "SystemExit"), ("circle", "ValueError")],
)
def test_the_hosts_own_loop_dies_of_such_an_error_and_another_worker_goes_on(
    narrow_host: Witness, color: int, kind: str, exception: str
) -> None:
    seen = narrow_host.run(fails(kind))
    assert seen.ledger["outcome"] == "failed"
    assert seen.place[:2] == ("2", "WpFails")
    assert seen.ledger["error"]["exception_type"] == f"builtins.{exception}"
    assert seen.of_type(ERROR)[0]["exception_type"] == exception
    assert_it_has_an_end(seen)
    assert_the_next_one_runs(narrow_host, color)


# ---- a worker that dies -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("raise", "builtins.RuntimeError"),
        ("exit", "builtins.SystemExit"),
        ("interrupt", "builtins.KeyboardInterrupt"),
        ("half", "builtins.ValueError"),
        ("no_text", "NoText"),
        ("get", "builtins.RuntimeError"),
    ],
)
def test_a_prompt_that_kills_the_worker_before_it_begins_fails_and_the_next_one_runs(
    either: Witness, color: int, name: str, kind: str
) -> None:
    seen = either.run(with_node(name, color))
    assert seen.ended == ("failed", "worker_escape")
    assert seen.ledger["error"]["exception_type"].endswith(kind)
    assert seen.ledger["host_status"] == "error"
    assert_it_has_an_end(seen)
    assert seen.of_type(ERROR)[0]["node_id"] in with_node(name, color)
    assert_the_next_one_runs(either, color)


@pytest.mark.parametrize("name", ["raise_after", "task_done"])
def test_a_prompt_that_kills_the_worker_after_its_end_keeps_what_it_delivered(
    either: Witness, color: int, name: str
) -> None:
    seen = either.run(with_node(name, color))
    assert seen.ended == ("partial", "worker_escape")
    assert seen.ledger["error"]["exception_type"] == "builtins.RuntimeError"
    assert [one["state"] for one in seen.artifacts("3")] == ["verified"]
    assert_it_has_an_end(seen)
    assert seen.history is not None
    assert "3" in seen.history["outputs"]
    assert_the_next_one_runs(either, color)


@pytest.mark.parametrize("name", ["after_task_done", "send"])
def test_a_worker_that_dies_when_its_prompt_is_filed_changes_nothing_of_it(
    either: Witness, color: int, name: str
) -> None:
    seen = either.run(with_node(name, color))
    assert seen.ended == ("success", None)
    assert seen.history is not None
    assert seen.history["status"]["status_str"] == "success"
    assert_the_next_one_runs(either, color)


def test_an_error_that_a_wrapper_keeps_from_the_client_is_told_to_it_all_the_same(
    either: Witness, color: int
) -> None:
    # No output: the host takes the outputs of a prompt in no fixed order, and a second one may have run.
    seen = either.run({**fails("plain"), "tell": graphs.node("WpUnshown")})
    assert seen.ended == ("failed", "node_exception")
    assert seen.of_type(ERROR)[0]["exception_message"] == "plain\n"
    assert_it_has_an_end(seen)
    assert_the_next_one_runs(either, color)


def test_a_worker_that_dies_between_two_prompts_is_replaced(either: Witness, color: int) -> None:
    before = worker(either)["restarts"]
    assert either.run(with_node("cleanup", color)).ended == ("success", None)
    either.client.post("/free", {"free_memory": True})
    wait_for(lambda: worker(either)["restarts"] > before)
    told = worker(either)
    assert (told["up"], told["exception_type"]) == (True, "builtins.RuntimeError")
    assert "worker_pack" in told["at"]
    assert_the_next_one_runs(either, color)


def test_the_node_of_a_prompt_that_ended_so_is_not_shown_to_clients_that_come_back(
    either: Witness, color: int
) -> None:
    with either.server.client() as first:
        first.run(with_node("raise", color))
    with either.server.client(client_id=first.client_id) as again:
        again.run(graphs.invert_save(prefix(), color))
        assert again.listener is not None
        kinds = [one["type"] for one in again.listener.messages]
    assert "executing" not in kinds[: kinds.index("execution_start")]


def test_a_restart_is_counted_and_marked_with_its_place_and_without_its_text(narrow: Witness) -> None:
    text = metrics(narrow)
    assert "stagexec_worker_up 1.0" in text
    restarts = worker(narrow)["restarts"]
    assert restarts > 5
    assert f"stagexec_worker_restarts_total {float(restarts)}" in text
    journal = "".join(path.read_text() for path in narrow.folder.rglob("*.jsonl"))
    assert journal.count('"name":"worker_restarted"') == restarts
    assert '"exception_type":"builtins.RuntimeError","at":"' in journal
    assert "a profiler cannot start" not in journal


def test_the_worker_lives_with_closed_consoles(narrow: Witness, color: int) -> None:
    seen = narrow.run(fails("closes"))
    assert seen.ended == ("failed", "node_exception")
    assert_it_has_an_end(seen)
    assert_the_next_one_runs(narrow, color)
    assert narrow.run(fails("again")).ended == ("failed", "node_exception")


def test_a_worker_that_cannot_live_is_told_dead(narrow_host: Witness, color: int) -> None:
    witness = narrow_host
    assert witness.run(with_node("for_ever", color)).ended == ("success", None)
    waiting = witness.client.submit(graphs.invert_save(prefix(), color))
    assert witness.read(waiting).ended == ("lost", "worker_died")
    told = worker(witness)
    assert (told["up"], told["exception_type"]) == (False, "builtins.OSError")
    assert "stagexec_worker_up 0.0" in metrics(witness)
    assert witness.server.log().count("THE WORKER IS DEAD") == 1

    later = witness.client.submit(graphs.invert_save(prefix(), color + 1))
    (row,) = [one for one in printed("runs", "--ledger", witness.folder) if one["prompt_id"] == later]
    assert row["outcome"] is None
    assert list(row["stages"]) == ["queue_wait"]
    shown = printed("show", later, "--ledger", witness.folder)
    (mark,) = [one for one in shown["marks"] if one["name"] == "worker_died"]
    assert mark["detail"]["exception_type"] == "builtins.OSError"
    pending = [item[1] for item in witness.client.queue()["queue_pending"]]
    assert pending == [waiting, later]


def worker(witness: Witness) -> dict[str, Any]:
    found: dict[str, Any] = witness.client.get("/stagexec/worker")
    return found


def metrics(witness: Witness) -> str:
    import urllib.request

    with urllib.request.urlopen(f"{witness.server.url}/stagexec/metrics") as answer:
        return str(answer.read().decode())


def wait_for(true: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
