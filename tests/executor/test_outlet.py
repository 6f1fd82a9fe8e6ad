"""Messages that come together leave together, and nothing stays behind."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from stagexec.executor import outlet as outlet_module
from stagexec.executor.outlet import BURST, Outlet, cork, uncork

linux = pytest.mark.skipif(outlet_module.CORK is None, reason="this system cannot hold packets back")


class Ws:
    """A client's websocket, over a real connection."""

    def __init__(self, below: Any) -> None:
        self.below = below

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.below if name == "socket" else default


@pytest.fixture
def connection():
    listener = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(listener.getsockname())
    theirs, _ = listener.accept()
    theirs.settimeout(20)
    yield ours, theirs
    for one in (ours, theirs, listener):
        one.close()


def is_corked(one: socket.socket) -> bool:
    assert outlet_module.CORK is not None
    return bool(one.getsockopt(socket.IPPROTO_TCP, outlet_module.CORK))


def look(outlet: Outlet, messages: int, write: Any) -> None:
    """Hand over messages, which another task writes as the host's does, and let the loop run."""

    async def main() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def publish() -> None:
            while True:
                write(await queue.get())

        publishing = asyncio.create_task(publish())
        await asyncio.sleep(0)
        for at in range(messages):
            outlet.call_soon_threadsafe(queue.put_nowait, at)
        await asyncio.sleep(0.05)
        publishing.cancel()

    outlet._loop.run_until_complete(main())


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@linux
@pytest.mark.parametrize(("messages", "held"), [(BURST, True), (BURST - 1, False)])
def test_many_messages_are_held_until_all_are_written_and_few_are_not(connection, loop, messages, held):
    ours, theirs = connection
    seen = []

    def write(at: int) -> None:
        seen.append(is_corked(ours))
        ours.send(b"%02d" % at)

    look(Outlet(loop, lambda: [Ws(ours)]), messages, write)
    assert seen == [held] * messages
    assert not is_corked(ours)
    expected = b"".join(b"%02d" % at for at in range(messages))
    got = b""
    while len(got) < len(expected):
        got += theirs.recv(1000)
    assert got == expected


def gone(connection):
    ours, _ = connection
    ours.close()
    return ours


@pytest.mark.parametrize(
    "make",
    [
        lambda _: object(),  # no websocket
        lambda _: Ws(None),  # one that has gone
        lambda connection: Ws(gone(connection)),
        lambda _: Ws(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
    ],
    ids=["other", "no transport", "closed", "not TCP"],
)
def test_a_client_of_another_kind_keeps_no_message_back(connection, loop, make):
    ws, got = make(connection), []
    look(Outlet(loop, lambda: [ws]), BURST, got.append)
    assert got == list(range(BURST))
    if isinstance(getattr(ws, "below", None), socket.socket):
        ws.below.close()


@linux
def test_a_connection_that_closes_meanwhile_keeps_no_other_back(connection):
    ours, theirs = connection
    corked = cork(lambda: [Ws(ours), Ws(theirs)])
    assert corked == [ours, theirs]
    assert is_corked(theirs)
    ours.close()
    uncork(corked)
    assert not is_corked(theirs)


def test_a_server_without_sockets_loses_no_message(loop, faults_expected):
    got: list[int] = []
    look(Outlet(loop, lambda: object().sockets), BURST, got.append)  # type: ignore[attr-defined]
    assert got == list(range(BURST))
    faults_expected.clear()


@linux
@pytest.mark.parametrize("function", [cork, uncork])
def test_a_fault_of_ours_loses_no_message(connection, loop, monkeypatch, faults_expected, function):
    ours, theirs = connection

    def fault(*_: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(function, "body", fault)
    look(Outlet(loop, lambda: [Ws(ours)]), BURST, lambda at: ours.send(b"."))
    assert [where for where, _ in faults_expected] == [function.__name__]
    got = b""
    while len(got) < BURST:  # also what is not let go: the kernel does
        got += theirs.recv(1000)
    assert got == b"." * BURST


def test_where_the_system_knows_no_such_thing_nothing_is_asked(monkeypatch, loop):
    monkeypatch.setattr(outlet_module, "CORK", None)
    got: list[int] = []
    look(Outlet(loop, lambda: pytest.fail("asked")), BURST, got.append)
    assert got == list(range(BURST))
