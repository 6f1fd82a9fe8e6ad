"""Our routes on a real server: which names they answer to, and which rules the browser gets."""

from __future__ import annotations

import http.client
import json
import urllib.parse

from stagexec.bench import lab
from tests.conftest import Servers


def get(server: lab.Server, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(server.url).netloc, timeout=60)
    connection.request(
        "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def test_the_host_s_middlewares_take_no_rule_away_and_every_route_looks_at_the_host(server: Servers) -> None:
    running = server("--disable-api-nodes", "--enable-cors-header", "--enable-compress-response-body")
    host_s = get(running, "/system_stats")[1]["Content-Security-Policy"]
    assert "unsafe-eval" in host_s
    for base in ("/stagexec", "/api/stagexec"):
        for path in ("/", "/runs", "/runs/x", "/failures", "/metrics"):
            status, headers, _ = get(running, base + path)
            assert status == (404 if path == "/runs/x" else 200)
            (rules,) = headers.get_all("Content-Security-Policy")
            assert "unsafe-eval" not in rules
            assert "default-src 'none'" in rules
            assert headers["X-Content-Type-Options"] == "nosniff"
            status, _, body = get(running, base + path, Host="evil.example:8188")
            assert (status, "STAGEXEC_HOSTS" in json.loads(body)["error"]) == (403, True)
            assert get(running, base + path, Origin="http://evil.example")[0] == 403
    assert "'self'" in get(running, "/stagexec/")[1]["Content-Security-Policy"]
    assert get(running, "/stagexec/metrics", Host="comfy:8188")[0] == 200
