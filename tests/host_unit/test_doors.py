"""By which door a cancel came: a person has none but a request from outside this process."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import psutil
import pytest
from aiohttp import web

from stagexec.host import doors
from stagexec.record import live
from stagexec.record.run import VISIT

assert psutil  # the host imports it; doors looks it up


class Site:
    """A server on a loop and a thread of its own, with routes that say by which door they were entered."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.port = 0
        self.late: list[tuple[str, str]] = []
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        assert self.ready.wait(20)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._start())
        self.loop.run_forever()

    async def _start(self) -> None:
        app = web.Application()
        doors.watch(app)
        app.router.add_get("/here", self.here)
        app.router.add_get("/thread", self.on_thread)
        app.router.add_get("/task", self.in_task)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.port = self.runner.addresses[0][1]
        self.ready.set()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(20)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(20)

    async def here(self, _request: Any) -> web.Response:
        return web.json_response(doors.asked_by())

    async def on_thread(self, _request: Any) -> web.Response:
        with ThreadPoolExecutor(1) as pool:
            return web.json_response(await self.loop.run_in_executor(pool, doors.asked_by))

    async def in_task(self, _request: Any) -> web.Response:
        return web.json_response(await asyncio.create_task(self.asked()))

    async def asked(self) -> tuple[str, str]:
        return doors.asked_by()

    def from_outside(self, path: str) -> list[str]:
        """The answer to a request that another process sends, as a browser is one."""
        code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{self.port}{path}').read().decode())"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
        found: list[str] = json.loads(done.stdout)
        return found

    def from_inside(self, path: str) -> list[str]:
        """The answer to a request that this process sends to itself, as a node may."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            found: list[str] = json.loads(answer.read())
            return found


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(doors, "_watching", False)
    one = Site()
    yield one
    one.stop()


def test_a_request_from_another_process_is_a_persons_on_every_path_a_pack_takes(site: Site) -> None:
    for path in ("/here", "/thread", "/task"):
        assert site.from_outside(path) == ["user", "request"], path


def test_a_request_that_this_process_sends_to_itself_is_codes(site: Site) -> None:
    assert site.from_inside("/here") == ["code", "own_request"]


def test_a_thread_that_belongs_to_no_request_and_no_visit_is_code(site: Site) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(doors.asked_by).result(20) == ("code", "thread")


def test_the_server_s_own_thread_outside_of_requests_is_code_once_requests_are_watched(site: Site) -> None:
    assert doors.asked_by() == ("code", "server")


def test_the_main_thread_is_a_persons_where_requests_cannot_be_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doors, "_watching", False)
    assert doors.asked_by() == ("user", "request")
    assert not doors.by_code()


def test_the_context_of_a_visit_is_code_on_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    token = VISIT.set((object(), 1, "node_other", None))  # type: ignore[arg-type]
    try:
        assert doors.asked_by() == ("code", "visit")
        assert doors.by_code()
    finally:
        VISIT.reset(token)


def test_the_thread_that_executes_a_run_is_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "running", {threading.get_ident(): object()})
    assert doors.asked_by() == ("code", "visit")


def test_only_handlers_of_packs_may_hand_a_cancel_to_a_thread() -> None:
    def handler() -> None: ...

    class Request:
        headers: ClassVar[dict[str, str]] = {}

        class match_info:  # noqa: N801 (aiohttp names it so)
            pass

    Request.match_info.handler = functools.partial(handler)  # type: ignore[attr-defined]
    for module, expected in (("server", False), ("app.user_manager", False), ("custom_nodes.x", True)):
        handler.__module__ = module
        assert doors.is_packs(Request) is expected
    Request.headers = {"Upgrade": "websocket"}
    assert doors.is_packs(Request) is False
