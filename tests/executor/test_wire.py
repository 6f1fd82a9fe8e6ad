"""Messages on their way: the same JSON values, every callback in its order, the host's own functions once."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import json
import pickle
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagexec.executor import outlet as outlet_module
from stagexec.executor import wire
from stagexec.executor.outlet import Outlet
from stagexec.executor.states import Entry, States, encoded, is_plain, text_of_state
from stagexec.executor.wire import make_send_json, make_send_sync

numbers = st.one_of(
    st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False), st.booleans()
)
ids = st.text(max_size=12)
entries = st.fixed_dictionaries(
    {
        "value": numbers,
        "max": numbers,
        "state": st.sampled_from(["running", "finished"]),
        "parent": st.none() | ids,
    }
)


class Socket:
    def __init__(self) -> None:
        self.sent: list[str] = []
        self.closed = False

    async def send_str(self, text: str) -> None:
        self.sent.append(text)

    async def send_json(self, message: Any) -> None:
        self.sent.append(json.dumps(message))


class Server:
    """Shaped like the host's: chooses sockets in send_json, hands send_sync to its loop."""

    def __init__(self, loop: Any = None) -> None:
        self.sockets = {"a": Socket(), "b": Socket()}
        self.loop = loop
        self.calls = 0
        self.got: list[Any] = []

    async def send_json(self, event: Any, data: Any, sid: Any = None) -> None:
        message = {"type": event, "data": data}
        for socket in [self.sockets[sid]] if sid is not None else list(self.sockets.values()):
            await socket.send_json(message)

    def send_sync(self, event: Any, data: Any, sid: Any = None) -> None:
        self.loop.call_soon_threadsafe(self.got.append, (event, data, sid))


@given(ids, st.dictionaries(ids, entries, max_size=5))
def test_a_state_is_the_json_value_that_the_host_would_send(prompt_id: str, nodes: dict[str, Any]) -> None:
    message = {"type": "progress_state", "data": {"prompt_id": prompt_id, "nodes": States(nodes)}}
    text = encoded(message)
    assert text is not None
    host = json.loads(json.dumps(message))
    assert json.loads(text) == host
    assert list(json.loads(text)["data"]["nodes"]) == list(host["data"]["nodes"])


def state_of(nodes: dict[str, Any], prompt_id: Any = "p", told: bool = True) -> dict[str, Any]:
    made = {node_id: Entry(fields) for node_id, fields in nodes.items()}
    for node_id, entry in made.items():
        if told:
            entry.tell(node_id)
    return {"type": "progress_state", "data": {"prompt_id": prompt_id, "nodes": States(made)}}


@given(ids, st.dictionaries(ids, entries, max_size=5), st.booleans())
def test_the_entries_texts_make_the_message_s(prompt_id: str, nodes: dict[str, Any], told: bool) -> None:
    message = state_of(nodes, prompt_id, told)
    assert text_of_state(message) == encoded(message)
    assert message["data"]["nodes"] == nodes


def forge(entry: Entry) -> None:
    """Make the text of an entry recognisable, to see whether it is asked."""
    entry.text = '"forged":{}'


def test_an_entry_s_text_is_written_once_for_all_states() -> None:
    message = state_of({"1": {"value": 1}, "2": {"value": 2}})
    forge(message["data"]["nodes"]["1"])
    assert json.loads(text_of_state(message) or "")["data"]["nodes"] == {"forged": {}, "2": {"value": 2}}


CHANGES: dict[str, Any] = {
    "set": lambda one: one.__setitem__("added", {"value": 3}),
    "del": lambda one: one.__delitem__("1"),
    "pop": lambda one: one.pop("1"),
    "popitem": lambda one: one.popitem(),
    "clear": lambda one: one.clear(),
    "update": lambda one: one.update({"added": {"value": 3}}),
    "setdefault": lambda one: one.setdefault("added", {"value": 3}),
    "or": lambda one: one.__ior__({"added": {"value": 3}}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("of_entry", [False, True])
def test_what_a_pack_changes_in_a_state_is_sent(change: Any, of_entry: bool) -> None:
    message = state_of({"1": {"1": 1}, "2": {"value": 2}})
    nodes = message["data"]["nodes"]
    change(nodes["1"] if of_entry else nodes)
    told = json.loads(text_of_state(message) or "")
    assert told == json.loads(json.dumps(message))
    assert told != json.loads(json.dumps(state_of({"1": {"1": 1}, "2": {"value": 2}})))


def test_what_a_pack_adds_beside_the_states_is_sent() -> None:
    for data in ({"before": 1, "prompt_id": "p"}, {"prompt_id": ["p"]}, {"prompt_id": "p", "nodes": 0}):
        message = state_of({"1": {"value": 1}})
        after = {"after": 1} if "before" in data else {}
        message["data"] = {**data, "nodes": message["data"]["nodes"], **after}
        assert json.loads(text_of_state(message) or "") == json.loads(json.dumps(message))


def test_states_of_two_prompts_do_not_mix() -> None:
    for prompt_id in ("a", "b", "a"):
        told = json.loads(text_of_state(state_of({"1": {"value": 1}}, prompt_id)) or "")
        assert told["data"]["prompt_id"] == prompt_id


def test_a_plain_entry_among_ours_and_one_that_cannot_be_written_go_the_host_s_way() -> None:
    message = state_of({"1": {"value": 1}})
    dict.__setitem__(message["data"]["nodes"], "2", {"value": 2})
    assert json.loads(text_of_state(message) or "")["data"]["nodes"] == {"1": {"value": 1}, "2": {"value": 2}}
    assert text_of_state(state_of({"1": {"value": object()}})) is None
    assert text_of_state(state_of({"1": {"value": 1}}, "\ud800")) is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_a_state_is_a_dict_of_its_own(copied: Any) -> None:
    states = state_of({"1": {"value": 1}})["data"]["nodes"]
    one = copied(states)
    assert type(one) is dict
    assert one == states
    assert type(copied(states["1"])) is dict


@pytest.mark.parametrize(
    ("event", "data"),
    [
        ("progress_state", {"prompt_id": "p", "nodes": {"1": {"value": 1}}}),
        ("progress", {"prompt_id": "p", "nodes": States()}),
        ("progress_state", [States()]),
        (1, b"preview"),
    ],
)
def test_what_is_no_state_of_ours_is_left_to_the_host(event: Any, data: Any) -> None:
    assert not wire.is_state(event, data)
    assert wire.is_state("progress_state", {"prompt_id": "p", "nodes": States()})


@pytest.mark.parametrize("odd", [object(), "\ud800", {1j: 1}])
def test_what_a_pack_has_put_into_a_state_is_left_to_the_host_s_encoder(odd: Any) -> None:
    server, nodes = Server(), States({"1": {"value": odd}})
    sending = make_send_json(None, Server.send_json)(server, "progress_state", {"nodes": nodes}, "a")
    message = {"type": "progress_state", "data": {"nodes": nodes}}
    try:
        expected = json.dumps(message)
    except TypeError as error:
        with pytest.raises(TypeError, match=str(error)):
            asyncio.run(sending)
        return
    asyncio.run(sending)
    assert server.sockets["a"].sent == [expected]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1", 1j, type("Own", (float,), {})(1.0)])
def test_numbers_that_the_two_encoders_write_differently_are_not_plain(value: Any) -> None:
    assert not is_plain(value)
    assert all(map(is_plain, (1, 0.5, True)))


@pytest.mark.parametrize("sid", ["a", None])
@pytest.mark.parametrize("nodes", [States({"1": {"value": 1}}), {"1": {"value": 1}}])
def test_the_host_s_function_is_called_once_and_chooses_the_sockets(sid: str | None, nodes: Any) -> None:
    calls = []

    async def counted(server: Any, *args: Any, **kwargs: Any) -> None:
        calls.append(type(server))
        await Server.send_json(server, *args, **kwargs)

    server, data = Server(), {"prompt_id": "p", "nodes": nodes}
    asyncio.run(make_send_json(None, counted)(server, "progress_state", data, sid=sid))
    assert len(calls) == 1
    sent = {name: [json.loads(one) for one in socket.sent] for name, socket in server.sockets.items()}
    message = {"type": "progress_state", "data": data}
    assert sent == {"a": [message], "b": [message] if sid is None else []}


def test_nothing_is_encoded_for_a_client_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "text_of_state", lambda _message: pytest.fail("encoded without a client"))
    server = Server()
    server.sockets.clear()
    asyncio.run(make_send_json(None, Server.send_json)(server, "progress_state", {"nodes": States()}))
    with pytest.raises(KeyError):
        asyncio.run(
            make_send_json(None, Server.send_json)(server, "progress_state", {"nodes": States()}, "a")
        )


def test_a_server_and_a_socket_seen_through_ours_have_all_else_of_the_host_s() -> None:
    seen = wire.Encoding(Server())
    assert seen.calls == 0
    assert [socket.closed for socket in seen.sockets.values()] == [False, False]


def run_with(worker: Any) -> list[Any]:
    """What `worker(outlet, got.append)` on another thread makes the loop do, until it has said 'end'."""
    got: list[Any] = []

    async def main() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        outlet = Outlet(loop)

        def work() -> None:
            worker(outlet, got.append)
            outlet.call_soon_threadsafe(ended.set)

        thread = threading.Thread(target=work)
        thread.start()
        await asyncio.wait_for(ended.wait(), 30)
        thread.join()

    asyncio.run(main())
    return got


def test_every_callback_runs_in_the_order_given() -> None:
    def worker(outlet: Outlet, add: Any) -> None:
        for at in range(5_000):
            outlet.call_soon_threadsafe(add, at)

    assert run_with(worker) == list(range(5_000))


def test_callbacks_of_several_threads_all_run_each_thread_s_in_order() -> None:
    def worker(outlet: Outlet, add: Any) -> None:
        def one(name: int) -> None:
            for at in range(1_000):
                outlet.call_soon_threadsafe(add, (name, at))

        threads = [threading.Thread(target=one, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    got = run_with(worker)
    assert len(got) == 4_000
    for name in range(4):
        assert [at for who, at in got if who == name] == list(range(1_000))


class Loop(asyncio.SelectorEventLoop):
    """Counts how often another thread woke it."""

    woken = 0

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> Any:
        self.woken += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def on_loop(body: Any) -> None:
    loop = Loop()
    try:
        loop.run_until_complete(body(loop))
    finally:
        loop.close()


def test_callbacks_in_a_row_wake_the_loop_once_and_later_ones_again() -> None:
    async def body(loop: Loop) -> None:
        outlet, got = Outlet(loop), []
        for at in range(100):
            outlet.call_soon_threadsafe(got.append, at)
        assert loop.woken == 1
        await asyncio.sleep(0.2)  # it looks once more, finds nothing, and rests
        outlet.call_soon_threadsafe(got.append, 100)
        assert loop.woken == 2
        await asyncio.sleep(0.2)
        assert got == list(range(101))

    on_loop(body)


def test_a_finalizer_that_sends_while_its_thread_sends_hangs_nothing() -> None:
    async def body(loop: Loop) -> None:
        outlet, got = Outlet(loop), []
        with outlet._lock:  # as while a message is put in, when garbage is collected
            outlet.call_soon_threadsafe(got.append, "inside")
        await asyncio.sleep(0.05)
        assert got == ["inside"]

    on_loop(body)


def test_a_callback_that_raises_keeps_no_other_from_running() -> None:
    async def body(loop: Loop) -> None:
        outlet, got, told = Outlet(loop), [], []
        loop.set_exception_handler(lambda _loop, context: told.append(type(context["exception"])))
        outlet.call_soon_threadsafe(lambda: 1 / 0)
        outlet.call_soon_threadsafe(got.append, 1)
        await asyncio.sleep(0.05)
        assert got == [1]
        assert told == [ZeroDivisionError]

    on_loop(body)


def test_callbacks_after_one_that_ends_the_loop_keep_their_turn() -> None:
    def end() -> None:
        raise SystemExit(3)

    got: list[int] = []
    loop = Loop()
    try:
        outlet = Outlet(loop)
        for callback, args in ((got.append, (1,)), (end, ()), (got.append, (2,))):
            outlet.call_soon_threadsafe(callback, *args)
        with pytest.raises(SystemExit):
            loop.run_until_complete(asyncio.sleep(5))
        assert got == [1]
        loop.run_until_complete(asyncio.sleep(0))
        assert got == [1, 2]
    finally:
        loop.close()


def test_a_callback_has_the_caller_s_context() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    def worker(outlet: Outlet, add: Any) -> None:
        variable.set(7)
        outlet.call_soon_threadsafe(lambda: add(variable.get()))

    assert run_with(worker) == [7]


def test_a_closed_loop_is_refused_as_by_the_loop_itself() -> None:
    loop = asyncio.new_event_loop()
    outlet = Outlet(loop)
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        outlet.call_soon_threadsafe(print)


def test_send_sync_calls_the_host_s_own_once_and_loses_no_message() -> None:
    calls = []

    def counted(server: Any, *args: Any, **kwargs: Any) -> None:
        calls.append(args)
        Server.send_sync(server, *args, **kwargs)

    async def body(loop: Loop) -> None:
        server, send = Server(loop), make_send_sync(None, counted)
        for at in range(3):
            send(server, "executing", {"at": at}, sid="a")
        await asyncio.sleep(0.05)
        assert server.got == [("executing", {"at": at}, "a") for at in range(3)]
        assert loop.woken == 1
        other = Server(loop)
        send(other, "executing", {}, "b")
        await asyncio.sleep(0.05)
        assert (len(server.got), len(other.got)) == (3, 1)

    on_loop(body)
    assert len(calls) == 4


END = ("executing", {"node": None, "prompt_id": "p"}, "a")


@pytest.mark.parametrize(
    ("event", "data", "is_end"),
    [
        (*END[:2], True),
        ("executing", {"node": "1", "prompt_id": "p"}, False),
        ("executing", {"prompt_id": "p"}, False),
        ("executed", {"node": None}, False),
        ("executing", None, False),
        (1, b"preview", False),
    ],
)
def test_a_prompt_ends_with_executing_no_node(event: Any, data: Any, is_end: bool) -> None:
    assert wire.ends_prompt(event, data) is is_end


class Publishing(Server):
    """Sends what it was handed from a task of its own, as the host does."""

    def __init__(self, loop: Any) -> None:
        super().__init__(loop)
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: list[Any] = []

    def send_sync(self, event: Any, data: Any, sid: Any = None) -> None:
        self.loop.call_soon_threadsafe(self.queue.put_nowait, (event, data, sid))

    async def publish(self) -> None:
        while True:
            self.sent.append(await self.queue.get())


def at_the_end(due: bool, monkeypatch: pytest.MonkeyPatch, fault: bool = False) -> tuple[int, int]:
    """How many of 101 messages were sent when the worker went on after the last, and in the end."""
    monkeypatch.setattr(wire.pauses, "due", lambda after_ns: due)
    if fault:
        monkeypatch.setattr(Outlet, "deliver", lambda _self, _seconds: 1 / 0)
    monkeypatch.setattr(wire, "AHEAD_S", 30)
    monkeypatch.setattr(wire, "told", threading.Event())
    told: list[int] = []

    async def body(loop: Loop) -> None:
        server, send = Publishing(loop), make_send_sync(None, Publishing.send_sync)
        publishing = asyncio.create_task(server.publish())

        def work() -> None:
            for at in range(100):
                send(server, "progress", {"at": at}, "a")
            send(server, *END)
            told.append(len(server.sent))

        worker = threading.Thread(target=work)
        if not due:
            work()  # nothing waits, so that the loop's own thread may send too
        else:
            worker.start()
        await asyncio.sleep(0.3)
        assert server.sent[-1] == END
        assert wire.told.is_set()
        told.append(len(server.sent))
        publishing.cancel()

    on_loop(body)
    return told[0], told[1]


def test_before_garbage_is_collected_the_client_has_been_told_of_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert at_the_end(True, monkeypatch) == (101, 101)


def test_otherwise_nothing_waits_for_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    assert at_the_end(False, monkeypatch) == (0, 101)


def test_the_client_has_been_told_once_the_message_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire.pauses, "due", lambda after_ns: False)

    async def body(loop: Loop) -> None:
        server, send = Publishing(loop), make_send_sync(None, Publishing.send_sync)
        publishing = asyncio.create_task(server.publish())
        sent_when_told: list[int] = []
        monkeypatch.setattr(
            wire, "told", SimpleNamespace(set=lambda: sent_when_told.append(len(server.sent)))
        )
        send(server, "executing", {"node": "1"}, "a")
        await asyncio.sleep(0.05)
        assert sent_when_told == []
        send(server, *END)
        await asyncio.sleep(0.05)
        assert sent_when_told == [2]
        publishing.cancel()

    on_loop(body)


def test_a_fault_while_the_end_is_told_loses_no_message(monkeypatch, faults_expected) -> None:
    assert at_the_end(True, monkeypatch, fault=True)[1] == 101
    assert [where for where, _ in faults_expected] == ["tell_of_end"]


def test_the_end_does_not_wait_for_the_loop_s_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire.pauses, "due", lambda after_ns: False)
    monkeypatch.setattr(outlet_module, "PAUSE_S", 3_600)

    async def body(loop: Loop) -> None:
        server, send = Server(loop), make_send_sync(None, Server.send_sync)
        send(server, "executing", {"node": "1"}, "a")
        await asyncio.sleep(0.05)
        send(server, "executing", {"node": "2"}, "a")
        await asyncio.sleep(0.05)
        assert len(server.got) == 1
        send(server, *END)
        await asyncio.sleep(0.05)
        assert len(server.got) == 3

    on_loop(body)


def test_a_loop_that_is_busy_is_waited_for_no_longer_than_was_said() -> None:
    async def body(loop: Loop) -> None:
        outlet, told = Outlet(loop), []
        worker = threading.Thread(target=lambda: told.append(outlet.deliver(0.01)))
        worker.start()
        worker.join()  # the loop stands still meanwhile
        assert told == [False]

    on_loop(body)


def test_a_server_whose_loop_is_none_of_asyncio_s_is_left_to_the_host() -> None:
    seen = []
    loop = SimpleNamespace(call_soon_threadsafe=lambda callback, *args: seen.append(args))
    make_send_sync(None, Server.send_sync)(Server(loop), "status", {})
    assert seen == [(("status", {}, None),)]
