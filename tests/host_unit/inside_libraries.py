"""Runs in a process of its own: the shipped tables on the real libraries, with one run in execution."""

import asyncio
import http.server
import json
import os
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

from stagexec.host import weight_files
from stagexec.host.seams import Seams
from stagexec.host.tables import load
from stagexec.record import clock, live
from stagexec.record.run import Run

FOLDER = Path(sys.argv[1])
SLOW_S = 0.15


class Answers(http.server.BaseHTTPRequestHandler):
    """Thinks for SLOW_S, then sends half of its body, waits as long again, and sends the rest."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(SLOW_S)
        self.send_response(200)
        self.send_header("Content-Length", "2000")
        self.end_headers()
        self.wfile.write(b"x" * 1000)
        self.wfile.flush()
        time.sleep(SLOW_S)
        self.wfile.write(b"y" * 1000)

    do_POST = do_GET  # noqa: N815 (the server asks for it)

    def log_message(self, *_args: object) -> None:
        return


def main() -> None:
    tables = load()
    seams = Seams(tables, {"safe_open": weight_files.make_safe_open})
    seams.install_hooks()
    run = Run("p", clock.now_ns(), clock.now_ns)
    run.thread, run.worker = threading.get_ident(), threading.current_thread()
    run.next_visit("7", "SomeNode")
    run.ledger.switch("node_other", "SomeNode")
    marks: list = []
    run.mark = lambda name, detail, **fields: marks.append([name, detail])
    live.run = run
    live.running[run.thread] = run

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, name="stagexec-test", daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/secret?token=1"
    found: dict = {}

    def told(name: str, work: object) -> None:
        run.ledger.pending.clear()
        run.pending_spans.clear()
        del marks[:]
        start = run.clock()
        work()
        total = run.clock() - start
        rows = [[o[0], o[1], o[4], end - o[2]] for o, end in run.ledger.pending]
        assert run.ledger.depth() == 0
        assert run.stage == "node_other"
        found[name] = {
            "total": total,
            "rows": [one for one in rows if one[0] != "node_other" or one[2]],
            "spans": [[s[0], s[1], s[2], s[5] - s[4]] for s in run.pending_spans],
            "marks": [list(one) for one in marks],
        }

    for one in ACTS:
        told(one.__name__, lambda one=one: one(url))
    live.run = None
    print(json.dumps({"found": found, "states": {s["seam"]: s["state"] for s in seams.verify()}}))


def urllib_read(url: str) -> None:
    import urllib.request

    with urllib.request.urlopen(url) as answer:
        assert len(answer.read()) == 2000


def requests_get(url: str) -> None:
    import requests

    assert len(requests.get(url).content) == 2000


def requests_stream(url: str) -> None:
    import requests

    with requests.get(url, stream=True) as answer:
        assert sum(map(len, answer.iter_content(100))) == 2000


def urllib3_get(url: str) -> None:
    import urllib3

    assert len(urllib3.PoolManager().request("GET", url).data) == 2000


def httpx_get(url: str) -> None:
    import httpx

    assert len(httpx.get(url).content) == 2000


def httpx_stream(url: str) -> None:
    import httpx

    with httpx.stream("GET", url) as answer:
        assert sum(map(len, answer.iter_raw())) == 2000


def httpx2_get(url: str) -> None:
    import httpx2

    assert len(httpx2.get(url).content) == 2000


def httpx2_stream(url: str) -> None:
    import httpx2

    with httpx2.stream("GET", url) as answer:
        assert sum(map(len, answer.iter_raw())) == 2000


def http_by_hand(url: str) -> None:
    import http.client

    line = http.client.HTTPConnection(url.split("/")[2])
    line.request("POST", "/", b"z" * 1000)
    assert len(line.getresponse().read()) == 2000


def aiohttp_on_a_thread(url: str) -> None:
    import aiohttp

    async def get() -> None:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert len(await answer.read()) == 2000

    thread = threading.Thread(target=lambda: asyncio.run(get()), name="stx")
    thread.start()
    thread.join()


def requests_on_a_thread(url: str) -> None:
    import requests

    thread = threading.Thread(target=requests.get, args=(url,), name="stx")
    thread.start()
    thread.join()


def hub_download(url: str) -> None:
    import huggingface_hub

    try:
        huggingface_hub.hf_hub_download(
            "a/b", "c.bin", endpoint=url.removesuffix("/secret?token=1"), token=False
        )
    except Exception as error:  # noqa: BLE001 (this is no hub: how it fails is its own affair)
        print(type(error), file=sys.stderr)


def torch_hub_download(url: str) -> None:
    import torch

    torch.hub.download_url_to_file(url, str(FOLDER / "from_url"), progress=False)


def safetensors_file(_url: str) -> None:
    import safetensors.torch
    import torch

    path = FOLDER / "a woman.safetensors"
    if not path.exists():
        safetensors.torch.save_file({f"t{i}": torch.zeros(2_000_000) for i in range(4)}, path)
    run = live.run
    assert run is not None
    assert len(safetensors.torch.load_file(path)) == 4


def safe_open_tensors(_url: str) -> None:
    from safetensors import safe_open

    with safe_open(FOLDER / "a woman.safetensors", framework="pt", device="cpu") as file:
        assert isinstance(file, safe_open)
        for _ in range(50):
            for name in file.keys():  # noqa: SIM118 (the file is no mapping)
                file.get_tensor(name)
        assert file.get_slice("t0")[0:10].shape == (10,)
        assert file.metadata() is None


def torch_load(_url: str) -> None:
    import torch

    path = FOLDER / "x.pt"
    torch.save({"a": torch.zeros(1_000_000)}, path)
    with open(path, "rb") as file:
        torch.load(file)
    torch.load(path)


def torch_jit_load(_url: str) -> None:
    import torch

    path = FOLDER / "x.jit"
    torch.jit.save(torch.jit.script(torch.nn.Linear(300, 300)), path)
    torch.jit.load(path)


def load_state_dict(_url: str) -> None:
    import torch

    layer = torch.nn.Linear(1000, 1000)
    layer.load_state_dict(torch.nn.Linear(1000, 1000).state_dict())


def transformers_model(_url: str) -> None:
    from transformers import AutoModel, CLIPTextConfig, CLIPTextModel

    folder = FOLDER / "clip"
    config = CLIPTextConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    CLIPTextModel(config).save_pretrained(folder)
    CLIPTextModel.from_pretrained(folder)
    AutoModel.from_pretrained(folder)


def traced_by_torch(_url: str) -> None:
    import torch

    from stagexec.host import wrap
    from stagexec.host.tables import SeamRow

    class Decoder:
        def decode(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    row = SeamRow(id="d", target=("a:b",), kind="stage", stage="vae_decode", why="a test", hosts="the test")
    Decoder.decode, _ = wrap.wrap(Decoder.decode, Decoder.decode, row, Decoder)  # type: ignore[method-assign]
    compiled = torch.compile(Decoder().decode, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert Decoder().decode(torch.ones(2)).tolist() == [2.0, 2.0]


ACTS = [
    urllib_read,
    requests_get,
    requests_stream,
    urllib3_get,
    httpx_get,
    httpx_stream,
    *((httpx2_get, httpx2_stream) if find_spec("httpx2") else ()),
    http_by_hand,
    aiohttp_on_a_thread,
    requests_on_a_thread,
    hub_download,
    safetensors_file,
    safe_open_tensors,
    torch_load,
    torch_jit_load,
    load_state_dict,
    torch_hub_download,
    transformers_model,
    traced_by_torch,
]

if __name__ == "__main__":
    os.environ["HF_HOME"] = str(FOLDER / "hub")
    os.environ["HF_HUB_DOWNLOAD_TIMEOUT"] = "2"
    main()
