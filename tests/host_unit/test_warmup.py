"""The warm-up at start: its file is checked first, and it is sent when the server answers."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagexec import main
from stagexec.host import warmup

PROMPT = {"1": {"class_type": "EmptyImage", "inputs": {}}}


class Host:
    """Answers 503 so many times, then as a server does; remembers what was posted."""

    def __init__(self, not_ready: int, status: int) -> None:
        self.posted: list[Any] = []
        host = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                nonlocal not_ready
                not_ready -= 1
                self.answer(503 if not_ready >= 0 else 200, b"{}")

            def do_POST(self) -> None:
                host.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.answer(status, b'{"prompt_id": "x"}')

            def answer(self, code: int, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def address(self) -> tuple[str, str, int]:
        return "http", "127.0.0.1", self.server.server_port


@pytest.fixture(params=[(0, 200), (3, 200), (0, 400)], ids=["ready", "later", "refused"])
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr(warmup, "POLL_SECONDS", 0.01)
    one = Host(*request.param)
    yield one
    one.server.shutdown()
    one.server.server_close()


def test_the_workflow_is_sent_once_and_flagged_when_the_server_answers(host: Host) -> None:
    warmup.start(PROMPT, host.address).join(10)
    assert host.posted == [{"prompt": PROMPT, "extra_data": {"stagexec.warmup": True}}]


def test_nothing_is_sent_before_the_host_knows_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(warmup, "WAIT_SECONDS", 0.1)
    thread = warmup.start(PROMPT, lambda: None)
    thread.join(10)
    assert not thread.is_alive()


def test_the_address_is_known_when_our_own_server_listens_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    args = types.SimpleNamespace(listen="127.0.0.1", port=8188, tls_keyfile=None)
    server = types.SimpleNamespace()
    prompt_server = types.SimpleNamespace(instance=server)
    monkeypatch.setitem(sys.modules, "comfy.cli_args", types.SimpleNamespace(args=args))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "server", types.SimpleNamespace(PromptServer=prompt_server))  # type: ignore[arg-type]
    assert warmup.host_address() is None  # another ComfyUI may listen there meanwhile
    server.address, server.port = "0.0.0.0", 8189
    assert warmup.host_address() == ("http", "127.0.0.1", 8189)


@pytest.mark.parametrize("text", ["", "no json", "[]", "{}", '{"nodes": []}', '{"1": {"inputs": {}}}'])
def test_a_file_that_is_no_workflow_ends_the_start_with_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    tree = tmp_path / "tree"
    for name in ("comfy", "comfy_execution"):
        (tree / name).mkdir(parents=True)
    for name in ("main.py", "execution.py", "nodes.py", "server.py"):
        (tree / name).write_text("raise SystemExit('the host was started')")
    file = tmp_path / "warm.json"
    file.write_text(text)
    assert main.main(["--stagexec-comfyui", str(tree), "--stagexec-warmup", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--stagexec-warmup" in said
