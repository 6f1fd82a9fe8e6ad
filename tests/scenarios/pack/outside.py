"""Nodes that wait for something outside: servers, downloads, processes."""

import functools
import hashlib
import http.server
import subprocess
import sys
import threading

from .kinds import ANY, MS, NUMBER, TEXT, node, picture, required, work

COMMIT = "0" * 40


class Answers(http.server.BaseHTTPRequestHandler):
    """`/wait/MS…` answers after so long; a HEAD at once, with what a model hub says of a file."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format, *args):  # noqa: A002
        """Nothing: the server's log is read by tests."""

    def _head(self, size):
        self.send_response(200)
        tag = hashlib.sha256(
            self.path.encode()
        ).hexdigest()  # one of a file that a hub has given is not asked for
        for name, value in (("ETag", f'"{tag}"'), ("X-Repo-Commit", COMMIT), ("Content-Length", str(size))):
            self.send_header(name, value)
        self.end_headers()

    def do_HEAD(self):
        """What is there."""
        self._head(4)

    def do_GET(self):
        """What is there, after a while."""
        words = self.path.split("/")
        if "wait" in words:
            work(int(words[words.index("wait") + 1].split("-")[0]))
        self._head(4)
        self.wfile.write(b"done")


@functools.cache
def address():
    """The address of a slow server on a thread of this process."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True, name="scn-server").start()
    return f"http://127.0.0.1:{server.server_port}"


def by_requests(url):
    """Most packs."""
    import requests

    requests.get(url, timeout=30)


def by_httpx(url):
    """Clients of newer services."""
    import httpx

    with httpx.Client(trust_env=False, verify=False) as client:
        client.get(url, timeout=30)


def by_urllib3(url):
    """Below requests."""
    import urllib3

    urllib3.PoolManager().request("GET", url)


def by_urllib(url):
    """Python's own."""
    import urllib.request

    with urllib.request.urlopen(url, timeout=30) as answer:
        answer.read()


ASKED = {"requests": by_requests, "httpx": by_httpx, "urllib3": by_urllib3, "urllib": by_urllib}


def ask(self, label, library, own_ms, ms):
    """A sync node of a remote service: it prepares its picture and waits for the answer."""
    work(own_ms)
    ASKED[library](f"{address()}/wait/{ms}")
    return (picture(),)


async def ask_later(self, label, ms):
    """An async node of a remote service."""
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(f"{address()}/wait/{ms}") as answer:
        await answer.read()
    return (picture(),)


def download(self, label, ms):
    """A model that comes from a hub before it is used."""
    import huggingface_hub

    from .libraries import scratch

    path = huggingface_hub.hf_hub_download(
        "someone/some-model", f"wait/{ms}-{label}.bin", endpoint=address(), cache_dir=scratch("hub")
    )
    return (path,)


def child(self, value, ms):
    """A process that is no encoder, as wrappers of tools start."""
    code = f"import time; time.sleep({ms / 1000})"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
    return (value,)


NODES = {
    "ScnAsk": node("ScnAsk", required(label=NUMBER, library=TEXT, own_ms=MS, ms=MS), ("IMAGE",), ask),
    "ScnAskLater": node("ScnAskLater", required(label=NUMBER, ms=MS), ("IMAGE",), ask_later),
    "ScnDownload": node("ScnDownload", required(label=NUMBER, ms=MS), ("SCN_MODEL",), download),
    "ScnChild": node("ScnChild", required(value=ANY, ms=MS), (ANY,), child),
}
