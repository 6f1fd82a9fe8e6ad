"""Validation without recursion gives the host's own answer, word for word."""
# ruff: noqa: N802 (the host asks for these names)

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from world import examples, execution, register

from stagexec.executor.validation import Path, make_validate_inputs

HOST = execution.validate_inputs
OURS = make_validate_inputs(HOST, True)

Prompt = dict[str, dict[str, Any]]


class Typed:
    """Every kind of input the host's validation knows."""

    RETURN_TYPES = ("INT", "STRING", "THING")
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {"number": ("INT", {"default": 0, "min": -2, "max": 5})},
            "optional": {
                "text": ("STRING", {}),
                "flag": ("BOOLEAN",),
                "real": ("FLOAT", {"min": 0.5}),
                "choice": (["x", "y"], {}),
                "thing": ("THING", {}),
                "lazy": ("INT", {"lazy": True}),
                "any": ("*", {}),
            },
        }


class TypedOutput(Typed):
    OUTPUT_NODE = True


def judged(value: Any) -> Any:
    """What a node's own validation says of a value."""
    value = value[0] if isinstance(value, list) else value
    if value == 1:
        return "one is too few"
    if value == 2:
        return False
    if value == 3:
        raise ValueError("three is right out")
    if value == 4:
        raise RecursionError("four goes round")
    return True


class Judging(Typed):
    @classmethod
    def VALIDATE_INPUTS(cls, number, text=None):
        return judged(number)


class JudgingAll(TypedOutput):
    @classmethod
    async def VALIDATE_INPUTS(cls, **kwargs):
        for _ in range(len(kwargs)):
            await asyncio.sleep(0)
        return judged(kwargs.get("number"))


class JudgingTypes(Typed):
    @classmethod
    async def VALIDATE_INPUTS(cls, input_types):
        await asyncio.sleep(0)
        return True if len(input_types) < 3 else f"too many: {sorted(input_types)}"


class NoTypes(Typed):
    @classmethod
    def INPUT_TYPES(cls):
        raise OSError("the models folder is gone")


register(Typed, TypedOutput, Judging, JudgingAll, JudgingTypes, NoTypes)

CLASSES = ("Typed", "Typed", "TypedOutput", "TypedOutput", "Judging", "JudgingAll", "JudgingTypes", "NoTypes")
NAMES = ("number", "text", "flag", "real", "choice", "thing", "lazy", "any", "undeclared")
CONSTANTS = (
    0,
    1,
    2,
    3,
    4,
    9,
    -7,
    1.5,
    "5",
    "x",
    "z",
    None,
    True,
    {},
    {"__value__": ["x"]},
    {"__value__": 4},
    [1],
    [],
)


@st.composite
def prompts(draw: Any) -> Prompt:
    ids = [str(at) for at in range(draw(st.integers(1, 9)))]
    loose = draw(st.integers(0, 3)) == 0
    prompt: Prompt = {}
    for at, node_id in enumerate(ids):
        sources = ids if loose else ids[:at]
        inputs: dict[str, Any] = (
            {} if draw(st.integers(0, 9)) == 0 else {"number": draw(st.sampled_from(CONSTANTS[:5]))}
        )
        for name in draw(st.permutations(NAMES)):
            kind = draw(st.integers(0, 11))
            if kind < 4 and sources:
                socket = {"text": 1, "thing": 2}.get(name, 0)
                inputs[name] = [draw(st.sampled_from(sources)), socket]
            elif kind == 4:
                inputs[name] = draw(st.sampled_from(CONSTANTS))
            elif kind == 5 and loose:
                sockets = st.sampled_from((0, 1, 2, 3, -1, 0.0, True, "0", None))
                inputs[name] = [draw(st.sampled_from([*ids, "missing"])), draw(sockets)]
        prompt[node_id] = {"class_type": draw(st.sampled_from(CLASSES)), "inputs": inputs}
    return {node_id: prompt[node_id] for node_id in draw(st.permutations(ids))}


def plain(value: Any) -> Any:
    """Without tracebacks' lines, which name our own; with the order of all keys."""
    if isinstance(value, dict):
        return [(key, "…" if key == "traceback" else plain(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return repr(value)


async def answer(prompt: Prompt, targets: list[str] | None) -> Any:
    mine = copy.deepcopy(prompt)
    return plain(await execution.validate_prompt("prompt", mine, targets)), plain(mine)


class Swapped:
    """`execution.validate_inputs` is this function, as a pack or as we would put it there."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __enter__(self) -> None:
        execution.validate_inputs = self.function

    def __exit__(self, *_: Any) -> None:
        execution.validate_inputs = HOST


def counting(function: Callable[..., Any], seen: list[Any]) -> Callable[..., Any]:
    """As a pack wraps it: every call, and what it was answered."""

    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        seen.append(args[2])
        result = await function(*args, **kwargs)
        seen.append(plain(result))
        return result

    return wrapper


def by(function: Callable[..., Any], prompt: Prompt, targets: list[str] | None) -> Any:
    with Swapped(function):
        return asyncio.run(answer(prompt, targets))


@examples(600)
@given(prompts(), st.none() | st.lists(st.sampled_from("0123")))
def test_the_answer_and_the_prompt_are_the_host_s(prompt: Prompt, targets: list[str] | None) -> None:
    assert by(OURS, prompt, targets) == by(HOST, prompt, targets)


@examples(300)
@given(prompts())
def test_a_wrapper_of_a_pack_sees_each_nested_call_as_on_the_host(prompt: Prompt) -> None:
    host_calls: list[Any] = []
    our_calls: list[Any] = []
    expected = by(counting(HOST, host_calls), prompt, None)
    assert by(counting(OURS, our_calls), prompt, None) == expected
    assert our_calls == host_calls


@examples(200)
@given(st.lists(prompts(), min_size=2, max_size=4))
def test_validations_that_run_at_the_same_time_do_not_meet(some: list[Prompt]) -> None:
    async def together() -> list[Any]:
        return await asyncio.gather(*(answer(prompt, None) for prompt in some))

    with Swapped(OURS):
        found = asyncio.run(together())
    assert found == [by(HOST, prompt, None) for prompt in some]


def chain(length: int, **last: Any) -> Prompt:
    prompt: Prompt = {"0": {"class_type": "Judging", "inputs": {"number": 0} | last}}
    for at in range(1, length):
        prompt[str(at)] = {"class_type": "Typed", "inputs": {"number": 0, "lazy": [str(at - 1), 0]}}
    prompt["end"] = {"class_type": "JudgingAll", "inputs": {"number": 0, "lazy": [str(length - 1), 0]}}
    return prompt


def test_a_chain_of_20000_is_valid() -> None:
    with Swapped(OURS):
        valid, error, outputs, errors = asyncio.run(execution.validate_prompt("p", chain(20_000), None))
    assert (valid, error, outputs, errors) == (True, None, ["end"], {})


def test_the_host_alone_fails_at_that_depth() -> None:
    valid, *_ = asyncio.run(execution.validate_prompt("p", chain(1_500), None))
    assert not valid


@pytest.mark.parametrize("bad", [{"choice": "z"}, {"number": 3}, {"number": 1}, {"lazy": ["gone", 0]}])
def test_an_error_at_the_far_end_of_a_long_chain_is_told_as_on_a_short_one(bad: dict[str, Any]) -> None:
    with Swapped(OURS):
        *_, short = asyncio.run(execution.validate_prompt("p", chain(3, **bad), None))
        valid, _, _, long = asyncio.run(execution.validate_prompt("p", chain(5_000, **bad), None))
    assert not valid
    assert plain(long) == plain(short)


def test_a_ring_of_5000_is_one_cycle() -> None:
    prompt = chain(5_000)
    prompt["0"]["inputs"]["lazy"] = ["4999", 0]
    with Swapped(OURS):
        valid, _, _, errors = asyncio.run(execution.validate_prompt("p", prompt, None))
    assert not valid
    assert len(errors) == 5_000
    assert {one["type"] for node in errors.values() for one in node["errors"]} == {"dependency_cycle"}


def without_path(original: Callable[..., Any]) -> Callable[..., Any]:
    """A host of before 0.20, whose own finds a cycle only by running out of stack."""

    async def validate_inputs(prompt_id: str, prompt: Prompt, item: str, validated: dict[str, Any]) -> Any:
        for value in prompt[item]["inputs"].values():
            if isinstance(value, list) and value[0] not in validated:
                try:
                    await execution.validate_inputs(prompt_id, prompt, value[0], validated)
                except Exception as error:  # noqa: BLE001 (as the host does)
                    validated[value[0]] = (False, [{"type": type(error).__name__}], value[0])
        validated.setdefault(item, (True, [], item))
        return validated[item]

    return validate_inputs


def test_a_cycle_ends_on_a_host_that_hands_down_no_path() -> None:
    prompt = chain(50)
    prompt["0"]["inputs"]["lazy"] = ["49", 0]
    validated: dict[str, Any] = {}
    with Swapped(make_validate_inputs(without_path(HOST), False)):
        asyncio.run(execution.validate_inputs("p", prompt, "end", validated))
    assert [one for one in validated.values() if not one[0]] == [(False, [{"type": "RecursionError"}], "49")]


def test_a_validation_that_is_cancelled_ends_and_the_next_one_is_whole() -> None:
    gone: list[str] = []

    class Hanging(Typed):
        @classmethod
        async def VALIDATE_INPUTS(cls, number):
            try:
                await asyncio.sleep(60)
            finally:
                gone.append("cleaned up")

    register(Hanging)
    prompt = chain(30)
    prompt["0"]["class_type"] = "Hanging"

    async def cancelled() -> Any:
        task = asyncio.ensure_future(answer(prompt, None))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await answer(chain(30), None)

    with Swapped(OURS):
        after = asyncio.run(cancelled())
    assert gone == ["cleaned up"]
    assert after == by(HOST, chain(30), None)


def test_a_validator_may_validate_another_prompt_in_a_task_of_its_own() -> None:
    class Nesting(Typed):
        @classmethod
        async def VALIDATE_INPUTS(cls, number):
            task = asyncio.ensure_future(execution.validate_prompt("other", chain(5), None))
            return (await task)[0]

    register(Nesting)
    prompt = chain(30)
    prompt["0"]["class_type"] = "Nesting"
    assert by(OURS, prompt, None) == by(HOST, prompt, None)


def test_the_path_knows_what_it_holds() -> None:
    path = Path()
    for node_id in "abc":
        path.append(node_id)
    assert path.pop() == "c"
    assert [one in path for one in "abc"] == [True, True, False]
    assert path == ["a", "b"]


def test_input_types_are_asked_once_a_node() -> None:
    asked: list[str] = []

    class Asked(Typed):
        @classmethod
        def INPUT_TYPES(cls):
            asked.append(cls.__name__)
            return super().INPUT_TYPES()

    register(Asked)
    prompt = chain(40)
    for at in range(1, 40):
        prompt[str(at)] = {
            "class_type": "Asked",
            "inputs": {name: [str(at - 1), 0] for name in ("number", "lazy", "any")},
        }
    with Swapped(OURS):
        assert asyncio.run(execution.validate_prompt("p", prompt, None))[0]
    assert len(asked) == 39
