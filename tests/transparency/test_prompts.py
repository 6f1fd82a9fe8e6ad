"""The same prompts on stock ComfyUI and under us: same messages, history, jobs, errors and file bytes.

Not compared, because the design wants them to differ: a node that raises SystemExit or KeyboardInterrupt, or
whose async task is cancelled (the worker lives on), a cancel that comes before the first visit (it counts),
and messages of ours named `stagexec.…`.

Of what packs see in the stack these differ: the ledger asks each class once for its types, from a function of
its own; functions by the host's name lie in files of ours, of which `execution.py` alone has the name of the
host's; the frame of `PromptExecutor.execute`, under the event loop's, is in none of that name; more than 64
linked nodes deep, validation is no deeper; INPUT_TYPES is asked once for each class where the host asks for
each link; and with the host's own executor `execute`, `execute_async` and `get_output_data` are there twice.
"""

from __future__ import annotations

import pytest

from stagexec.bench.client import Listener
from tests.host import graphs as g
from tests.transparency import scenes as s
from tests.transparency.observe import FlaggedListener, Observer
from tests.transparency.twins import Seen, Twins, messages

HOST_SUBSET = (
    "every hook's stack, near",
    "a switch that looks who asks",
    "inputs by the name that is asked for",
    "image saved, cached",
    "item 6 of 8 fails",
    "parallel async",
    "nested expansion",
    "blocked with a message",
    "lazy",
    "expansion into a cycle",
    "output in mid-graph",
    "node interrupts itself",
    "models loaded",
)


def ran(twins: Twins, name: str, listen: type[Listener] | None) -> Seen:
    """Run all prompts of a scene one after the other, on all servers."""

    def scene(at: Observer) -> None:
        for prompt in s.SCENES[name](at.prefix, at.color):
            at.run(prompt)
        at.jobs()

    return twins.same(f"{name}, {listen.__name__ if listen else 'no client'}", scene, listen)


@pytest.mark.parametrize("name", s.SCENES)
def test_a_connected_client_cannot_tell_us_from_stock(twins: Twins, name: str) -> None:
    seen = ran(twins, name, Listener)
    assert messages(seen, "execution_start"), "the scene ran nothing"


@pytest.mark.parametrize("name", s.SCENES)
def test_without_a_client_history_and_files_are_those_of_stock(twins: Twins, name: str) -> None:
    seen = ran(twins, name, None)
    assert any(what.startswith("GET /history") and answer["answer"] for what, answer in seen)


@pytest.mark.parametrize("name", HOST_SUBSET)
def test_the_hosts_own_executor_under_us_cannot_be_told_from_stock(host_executor: Twins, name: str) -> None:
    seen = ran(host_executor, name, Listener)
    assert messages(seen, "execution_start"), "the scene ran nothing"


@pytest.mark.parametrize("listen", [Listener, FlaggedListener])
@pytest.mark.parametrize("method", ["none", "latent2rgb"])
def test_text_to_image_is_the_same_with_and_without_previews(
    twins: Twins, method: str, listen: type[Listener]
) -> None:
    def scene(at: Observer) -> None:
        for seed in (1, 1, 2):
            at.run(g.txt2img(seed=seed, prefix=at.prefix), extra_data={"preview_method": method})

    seen = twins.same(f"txt2img {method} {listen.__name__}", scene, listen)
    assert len(messages(seen, "progress")) == 4
    assert bool(messages(seen, "binary")) == (method == "latent2rgb")


def test_a_feature_aware_client_gets_the_same_previews(twins: Twins) -> None:
    seen = ran(twins, "progress with previews", FlaggedListener)
    assert messages(seen, "binary")


def test_nodes_see_the_same_world_around_them(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        extra = {
            "extra_pnginfo": {"workflow": {"id": "a workflow", "nodes": []}},
            "auth_token_comfy_org": "a secret",
            "anything": [1, 2.5, None],
        }
        at.run(s.single("OddWorld", at.color, label=1), extra_data=extra)
        at.run(
            {**s.single("OddWorld", at.color, label=2), "3": g.save(["1", 0], at.prefix)}, extra_data=extra
        )
        at.run(s.single("OddWorld", at.color, label=3))
        at.jobs()

    seen = twins.same("world", scene)
    assert "a secret" in str(messages(seen, "executed"))


def test_only_the_targets_of_a_partial_execution_run(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        prompt = {**g.save_then_fail(at.prefix, 0.05, at.color), "6": g.node("PreviewImage", images=["1", 0])}
        for targets in (["2"], ["6", "2"], ["3"], [], ["2", "6"], ["no such node"]):
            prompt_id = at.submit(prompt, partial_execution_targets=targets)
            if at.seen[-1][1]["status"] == 200:
                at.finish(prompt_id)

    seen = twins.same("partial execution", scene)
    assert len(messages(seen, "execution_success")) >= 2


def test_a_run_after_a_failed_one_starts_afresh(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        good, bad = g.invert_save(at.prefix, at.color), g.fails(color=at.color)
        for prompt in (bad, good, bad, good, g.expand(at.prefix, 0.01, at.color, "StxExpandCycle"), good):
            at.run(prompt)

    seen = twins.same("failed, good", scene)
    assert [len(messages(seen, kind)) for kind in ("execution_error", "execution_success")] == [3, 3]
