"""POST /prompt: invalid prompts are refused with the same words, and partly valid ones run alike."""

from __future__ import annotations

from typing import Any

import pytest

from tests.host import graphs as g
from tests.transparency import scenes as s
from tests.transparency.observe import Observer
from tests.transparency.twins import Twins, messages

SAVE = g.save(["1", 0], "refused")
BAD_PROMPTS: dict[str, Any] = {
    "empty": {},
    "no output": {"1": g.empty()},
    "unknown class": {"1": g.node("NoSuchClass"), "2": SAVE},
    "no class": {"1": {"inputs": {}}, "2": SAVE},
    "no inputs": {"1": {"class_type": "EmptyImage"}, "2": SAVE},
    "missing input": {"1": g.node("EmptyImage", width=8, height=8), "2": SAVE},
    "too small": {"1": g.empty(size=0), "2": SAVE},
    "too large": {"1": g.empty(color=1 << 30), "2": SAVE},
    "not a number": {"1": {**g.empty(), "inputs": {**g.empty()["inputs"], "width": "wide"}}, "2": SAVE},
    "wrong type": {"1": g.node("StxListEight", start=0), "2": SAVE},
    "link to nothing": {"2": SAVE},
    "link of three": {"1": g.empty(), "2": g.save(["1", 0, 0], "refused")},
    "socket out of range": {"1": g.empty(), "2": g.save(["1", 5], "refused")},
    "cycle": {
        "1": g.node("ImageInvert", image=["2", 0]),
        "2": g.node("ImageInvert", image=["1", 0]),
        "3": SAVE,
    },
    "not in the list": {
        "4": g.node("CheckpointLoaderSimple", ckpt_name="none.safetensors"),
        **g.txt2img("none"),
    },
    "refused by the node": {"1": g.node("OddText", value="refuse me")},
}
BAD_BODIES: dict[str, Any] = {
    "no prompt": {},
    "id is no UUID": {"prompt": g.invert_save(), "prompt_id": "mine"},
    "id in capitals": {"prompt": g.invert_save(), "prompt_id": "AAAAAAAA-0000-4000-8000-000000000000"},
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_an_invalid_prompt_is_refused_alike(twins: Twins, name: str) -> None:
    seen = twins.same(f"invalid, {name}", lambda at: at.submit(BAD_PROMPTS[name]) and None)
    assert seen[0][1]["status"] >= 400


@pytest.mark.parametrize("name", BAD_BODIES)
def test_an_invalid_request_is_refused_alike(twins: Twins, name: str) -> None:
    seen = twins.same(f"request, {name}", lambda at: at.offer(BAD_BODIES[name]))
    assert seen[0][1]["status"] == 400


def test_the_valid_half_of_a_prompt_runs_and_the_other_half_is_reported(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        at.run(
            {
                **g.invert_save(at.prefix, at.color),
                "4": g.node("OddText", value="refuse me"),
                "5": SAVE | {"inputs": {}},
            }
        )

    seen = twins.same("half valid", scene)
    assert seen[0][1]["answer"]["node_errors"]
    assert messages(seen, "execution_success")


def test_a_cycle_next_to_a_valid_output_is_reported_alike(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        prompt = {
            **g.invert_save(at.prefix, at.color),
            "5": g.node("ImageInvert", image=["6", 0]),
            "6": g.node("ImageInvert", image=["5", 0]),
            "7": g.save(["6", 0], at.prefix),
        }
        prompt_id = at.submit(prompt)
        if at.seen[-1][1]["status"] == 200:
            at.finish(prompt_id)

    seen = twins.same("cycle beside", scene)
    assert seen[0][1]["answer"]["node_errors"]


def test_numbers_and_fronts_are_given_out_alike(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        at.run(g.invert_save(at.prefix, at.color), front=True)
        at.run(g.invert_save(at.prefix, at.color), number=2.5)
        at.run(g.invert_save(at.prefix, at.color), number=-4, front=True)
        at.run(g.invert_save(at.prefix, at.color))

    seen = twins.same("numbers", scene)
    assert len(messages(seen, "execution_success")) == 4


def test_what_a_prompt_says_of_its_nodes_beside_class_and_inputs_is_kept(twins: Twins) -> None:
    def scene(at: Observer) -> None:
        prompt = s.changed_text(at.prefix, at.color, 6)
        prompt["2"]["_meta"] = {"title": "Ünïcode ☃"}
        prompt["3"]["is_changed"] = "a value of the client's own"
        at.run(prompt, extra_data={"extra_pnginfo": {"workflow": {"id": "w", "ä": "☃"}, "more": [1]}})

    seen = twins.same("metadata", scene)
    assert len(messages(seen, "execution_success")) == 1
