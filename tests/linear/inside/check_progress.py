"""Progress states: the host's message for message while few, a bounded share of the time when many."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import DynamicPrompt, HostProgress, OurProgress, examples, progress_module

from stagexec.executor import progress as ours_module

MS = 1_000_000


class Clock:
    """Time and timers that move only when a test says so."""

    def __init__(self) -> None:
        self.now = 0
        self.timers: list[Timer] = []

    def now_ns(self) -> int:
        return self.now

    def advance(self, ns: int) -> None:
        """Let time pass, and what is due happen on its way."""
        end = self.now + ns
        while due := [one for one in self.timers if one.due <= end]:
            first = min(due, key=lambda one: one.due)
            self.timers.remove(first)
            self.now = max(self.now, first.due)
            first.function()
        self.now = end

    def timer(self, seconds: float, function: Any) -> Timer:
        return Timer(self, seconds, function)


class Timer:
    def __init__(self, clock: Clock, seconds: float, function: Any) -> None:
        self.clock, self.function = clock, function
        self.due = clock.now + round(seconds * 1e9)
        self.daemon = False

    def start(self) -> None:
        assert self.daemon, "a timer must not keep the process alive"
        self.clock.timers.append(self)

    def cancel(self) -> None:
        if self in self.clock.timers:
            self.clock.timers.remove(self)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(ours_module, "clock", made)
    monkeypatch.setattr(ours_module.threading, "Timer", made.timer)
    return made


class Server:
    """Keeps each message as it was when it was sent, and when."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.client_id = "client"
        self.sockets_metadata: dict[str, Any] = {}
        self.sent: list[Any] = []
        self.times: list[int] = []

    def send_sync(self, event: str, data: Any, client: Any) -> None:
        self.sent.append((event, in_order(copy.deepcopy(data)), client))
        self.times.append(self.clock.now)


def in_order(data: Any) -> Any:
    return [(key, in_order(value)) for key, value in data.items()] if isinstance(data, dict) else data


class Scene:
    """The host's registry with one handler in it."""

    def __init__(self, kind: type, clock: Clock, prompt_id: str = "p", nodes: int = 30) -> None:
        self.clock = clock
        self.server = Server(clock)
        self.dynprompt = DynamicPrompt({str(at): {} for at in range(nodes)})
        progress_module.reset_progress_state(prompt_id, self.dynprompt)
        self.handler = kind(self.server)
        progress_module.add_progress_handler(self.handler)
        self.registry = progress_module.get_progress_state()

    def play(self, steps: list[Any]) -> None:
        for action, node, value, pause in steps:
            node_id = str(node)
            self.clock.advance(pause)
            if action == "grow":
                parent = str(node % 5)
                self.dynprompt.add_ephemeral_node(f"{parent}.{node}", {}, parent, parent)
                self.registry.start_progress(f"{parent}.{node}")
            elif action == "touch":
                self.registry.ensure_entry(node_id)
            elif action == "update":
                self.registry.update_progress(node_id, value, 8)
            elif action == "switch":
                switch = self.registry.disable_handler if value % 2 else self.registry.enable_handler
                switch("webui")
            else:
                getattr(self.registry, f"{action}_progress")(node_id)


ACTIONS = ("start", "start", "finish", "update", "grow", "touch")
steps = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS), st.integers(0, 29), st.integers(0, 9), st.sampled_from((0, 1, MS, 500 * MS))
    ),
    max_size=60,
)


def small(monkeypatch_value: int) -> Any:
    """`SMALL` for one example: hypothesis shares the fixtures of a test among its examples."""
    patch = pytest.MonkeyPatch()
    patch.setattr(ours_module, "SMALL", monkeypatch_value)
    return patch


def both(plan: list[Any], limit: int) -> tuple[Scene, Scene]:
    patch = small(limit)
    try:
        scenes = []
        for kind in (HostProgress, OurProgress):
            fresh = Clock()
            patch.setattr(ours_module, "clock", fresh)
            patch.setattr(ours_module.threading, "Timer", fresh.timer)
            scenes.append(Scene(kind, fresh))
            scenes[-1].play(plan)
        scenes[1].handler.flush()
    finally:
        patch.undo()
    return scenes[0], scenes[1]


@examples(200)
@given(steps)
def test_few_nodes_get_every_message_of_the_host(plan: list[Any]) -> None:
    host, ours = both(plan, 200)
    assert ours.server.sent == host.server.sent
    assert ours.server.times == host.server.times


@examples(300)
@given(steps, st.integers(0, 6))
def test_many_nodes_get_some_of_the_host_s_messages_and_always_its_last(plan: list[Any], limit: int) -> None:
    host, ours = both(plan, limit)
    rest = iter(host.server.sent)
    assert all(message in rest for message in ours.server.sent), (
        "a state that the host never told, or out of order"
    )
    assert ours.server.sent[-1:] == host.server.sent[-1:]
    assert ours.clock.timers == []


@examples(150)
@given(
    st.lists(
        st.tuples(st.sampled_from((*ACTIONS, "switch")), st.integers(0, 29), st.integers(0, 9), st.just(MS)),
        max_size=60,
    )
)
def test_a_handler_that_was_switched_off_meanwhile_tells_of_all_nodes(plan: list[Any]) -> None:
    host, ours = both([*plan, ("switch", 0, 0, 0), ("start", 0, 0, 0)], 2)
    assert ours.server.sent[-1:] == host.server.sent[-1:]


def run_chain(scene: Scene, nodes: int, each_ns: int) -> None:
    for at in range(nodes):
        scene.play([("start", at, 0, 0), ("finish", at, 0, each_ns)])


@pytest.mark.parametrize("each_ns", [100_000, 3 * MS])
def test_the_time_for_states_is_a_bounded_share(clock: Clock, each_ns: int) -> None:
    nodes = 5_000
    scene = Scene(OurProgress, clock, nodes=nodes)
    run_chain(scene, nodes, each_ns)
    scene.handler.flush()
    large = [len(dict(message[1])["nodes"]) for message in scene.server.sent]
    large = [count for count in large if count > ours_module.SMALL]
    spent = sum(large) * ours_module.COST_NS
    share = ours_module.SHARE * nodes * each_ns
    assert spent <= share + 3 * nodes * ours_module.COST_NS, (
        "the first, the last and the one before are extra"
    )
    assert spent >= share / 4, "the share is there to be used"


def test_states_of_nodes_with_long_ids_are_sent_less_often(clock: Clock) -> None:
    sent = []
    for length in (1, 5_000):
        scene = Scene(OurProgress, clock, nodes=0)
        for at in range(600):
            node_id = str(at).rjust(length, "x")
            clock.advance(3 * MS)
            scene.registry.start_progress(node_id)
        scene.handler.flush()
        sent.append(len(scene.server.sent) - ours_module.SMALL)
    assert sent[1] < sent[0] / 4


def test_a_long_node_s_state_is_sent_though_nothing_follows(clock: Clock) -> None:
    scene = Scene(OurProgress, clock, nodes=400)
    run_chain(scene, 300, 0)
    scene.play([("start", 301, 0, 0)])
    before = len(scene.server.sent)
    clock.advance(3_600_000 * MS)
    assert len(scene.server.sent) == before + 1
    assert dict(dict(scene.server.sent[-1][1])["nodes"])["301"][2] == ("state", "running")
    clock.advance(3_600_000 * MS)
    assert len(scene.server.sent) == before + 1


def test_after_a_flush_no_timer_is_left_and_nothing_is_sent_twice(clock: Clock) -> None:
    scene = Scene(OurProgress, clock, nodes=400)
    run_chain(scene, 300, 0)
    scene.handler.flush()
    sent = len(scene.server.sent)
    scene.handler.flush()
    clock.advance(3_600_000 * MS)
    assert len(scene.server.sent) == sent


def test_a_timer_that_fires_while_it_is_cancelled_sends_nothing(clock: Clock) -> None:
    scene = Scene(OurProgress, clock, nodes=400)
    run_chain(scene, 300, 0)
    (late,) = clock.timers
    scene.handler.flush()
    sent = len(scene.server.sent)
    late.function()
    assert len(scene.server.sent) == sent


def test_the_next_prompt_hears_nothing_of_one_that_was_never_flushed(clock: Clock) -> None:
    old = Scene(OurProgress, clock, "old", nodes=400)
    run_chain(old, 300, 0)
    assert clock.timers
    sent = len(old.server.sent)
    new = Scene(OurProgress, clock, "new")
    new.play([("start", 0, 0, 3_600_000 * MS)])
    assert len(old.server.sent) == sent
    assert clock.timers == []


def test_an_old_prompt_s_states_are_let_go_and_late_ones_are_whole() -> None:
    scenes = []
    for kind in (HostProgress, OurProgress):
        old = Scene(kind, Clock(), "old")
        run_chain(old, 3, 0)
        Scene(kind, Clock(), "new")
        if kind is OurProgress:
            assert old.handler._entries == {}
        old.registry.register_handler(old.handler)
        old.play([("finish", 2, 0, 0)])  # a thread of the old prompt that has not heard
        scenes.append(old.server.sent)
    assert scenes[0] == scenes[1]


def test_a_pack_that_replaced_the_host_s_sender_is_asked(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        HostProgress, "_send_progress_state", lambda _self, _id, nodes: asked.append(len(nodes))
    )
    scene = Scene(OurProgress, clock, nodes=400)
    run_chain(scene, 300, 0)
    scene.handler.flush()
    assert scene.server.sent == []
    assert len(asked) > 400
    assert asked[-1] == 300


def test_a_message_does_not_change_after_it_was_sent(clock: Clock) -> None:
    scene = Scene(OurProgress, clock, nodes=400)
    kept: list[Any] = []
    scene.server.send_sync = lambda event, data, client: kept.append((data, copy.deepcopy(data)))  # type: ignore[method-assign]
    run_chain(scene, 300, 3 * MS)
    assert len(kept) > 401
    assert [now for now, _ in kept] == [then for _, then in kept]
