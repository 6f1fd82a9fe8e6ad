"""How long a node's class takes to answer is measured by node, and a fault in that changes no answer."""

from __future__ import annotations

import asyncio
import contextvars
import time
from types import SimpleNamespace
from typing import Any

import pytest

from stagexec.executor import asked
from stagexec.record import live
from stagexec.record.run import Run

MS = 1_000_000


class Slow:
    FUNCTION = "run"


async def map_over(
    prompt_id: str, unique_id: str, obj: Any, inputs: Any, func: str, seconds: float = 0.0
) -> Any:
    """Stands for the host's function that calls a node or asks its class."""
    time.sleep(seconds)
    return [func]


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """(what, node, class, when, ns) of each mark `asked`, and (name, nodes) of others."""
    told: list[tuple[Any, ...]] = []

    def keep(_of: Any, _type: str, *, name: str, detail: dict[str, Any], **fields: Any) -> None:
        if name == "asked":
            told.append(
                (detail["what"], fields["node_id"], fields["node_class"], detail["when"], detail["ns"])
            )
        else:
            told.append((name, detail["nodes"]))

    monkeypatch.setattr(live, "journal_event", keep)
    monkeypatch.setattr(asked, "LEAST_NS", 15 * MS)  # what a loaded machine takes for nothing is less
    monkeypatch.setattr(asked, "_validations", type(asked._validations)())
    return told


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The run that this thread executes."""
    one = Run("prompt", 0, time.perf_counter_ns)
    one.class_of = {"2": "SlowNode"}
    monkeypatch.setattr(live, "current_for_thread", lambda: one)
    return one


def ask(what: str, seconds: float = 0.02, obj: Any = Slow) -> Any:
    async def question() -> Any:
        return await asked.WatchedMap(map_over)("prompt", "2", obj, {}, what, seconds=seconds)

    return asyncio.run(question())


def test_a_long_answer_in_a_run_is_marked_with_the_node_and_the_class_of_the_prompt(marks, run) -> None:
    assert ask("IS_CHANGED") == ["IS_CHANGED"]
    ((*told, ns),) = marks
    assert told == ["IS_CHANGED", "2", "SlowNode", "run"]
    assert 20 * MS <= ns < 5000 * MS


def test_a_quick_answer_and_the_nodes_own_function_are_not(marks, run, monkeypatch) -> None:
    ask("run")
    with monkeypatch.context() as patched:
        patched.setattr(asked, "LEAST_NS", 1000 * MS)
        ask("IS_CHANGED")
    ask("check_lazy_status", obj=SimpleNamespace(FUNCTION="check_lazy_status"))
    assert marks == []


def test_the_tasks_of_an_async_answer_count_as_well(marks, run) -> None:
    async def resolve(results: list[Any]) -> Any:
        return [await one for one in results]

    async def question() -> Any:
        await asked.WatchedMap(map_over)("prompt", "2", Slow, {}, "fingerprint_inputs")
        return await asked.WatchedResults(resolve)([asyncio.create_task(asyncio.sleep(0.03, "answer"))])

    assert asyncio.run(question()) == ["answer"]
    assert {tuple(told) for *told, _ in marks} == {("fingerprint_inputs", "2", "SlowNode", "run")}
    assert sum(ns for *_, ns in marks) >= 29 * MS


def validate(prompt: dict[str, Any], seconds: dict[str, float]) -> None:
    """Validates node "2" and before that its input "1", as the host does: by recursion."""

    async def validate_inputs(prompt_id: str, prompt: Any, item: str, validated: dict[str, Any]) -> None:
        if item == "2":
            await watched(prompt_id, prompt, "1", validated)
        time.sleep(seconds[item])
        validated[item] = True

    watched = asked.WatchedValidateInputs(validate_inputs)

    async def whole() -> None:
        asked.validation_begins("prompt")
        validated: dict[str, Any] = {}
        await watched("prompt", prompt, "2", validated)
        await watched("prompt", prompt, "1", validated)

    asyncio.run(whole())


def test_what_a_node_takes_in_validation_is_its_own_and_not_that_of_its_inputs(marks, run) -> None:
    prompt = {"1": {"class_type": "First"}, "2": {"class_type": "SlowNode"}}
    validate(prompt, {"1": 0.06, "2": 0.02})
    asked.accepted(run, "prompt", prompt)
    told = {node: ns for what, node, _, when, ns in marks if (what, when) == ("INPUT_TYPES", "validation")}
    assert list(told) == ["1", "2"]
    assert told["1"] >= 60 * MS
    assert 20 * MS <= told["2"] < told["1"]


def test_a_prompt_that_is_never_accepted_leaves_nothing_for_ever(marks) -> None:
    for number in range(asked.MOST_PROMPTS + 5):
        asked.validation_begins(str(number))
    assert len(asked._validations) == asked.MOST_PROMPTS


def test_answers_that_came_with_the_prompt_are_marked(marks, run) -> None:
    asked.accepted(run, "prompt", {"1": {"inputs": {}}, "2": {"is_changed": ["x"]}})
    assert marks == [("is_changed_brought", ["2"])]


def test_prompt_handlers_are_timed_one_by_one_and_stay_a_list(marks, run) -> None:
    def quick(data: Any) -> Any:
        return data

    def slow(data: Any) -> Any:
        time.sleep(0.02)
        return data

    server = SimpleNamespace(on_prompt_handlers=[quick])
    asked.watch_handlers(server)
    server.on_prompt_handlers.append(slow)
    assert server.on_prompt_handlers == [quick, slow]

    def request() -> None:
        for handler in server.on_prompt_handlers:
            handler({})
        asked.validation_begins("prompt")
        asked.accepted(run, "prompt", {})

    contextvars.Context().run(request)
    assert [(what, node, when) for what, node, _, when, _ in marks] == [("on_prompt", None, "validation")]
    assert marks[0][-1] >= 20 * MS


@pytest.mark.parametrize(
    "name", ["_ask", "_wait", "tell_in_run", "watch_node", "watch_handlers", "accepted", "validation_begins"]
)
def test_a_fault_changes_no_answer(name, marks, run, monkeypatch, faults_expected) -> None:
    def faulty(*_: Any) -> Any:
        raise ValueError("a fault of ours")

    from stagexec.record.guard import GUARDED

    monkeypatch.setattr(GUARDED[f"stagexec.executor.asked.{name}"], "body", faulty)
    assert ask("IS_CHANGED") == ["IS_CHANGED"]
    test_the_tasks_of_an_async_answer_answers()
    validate({"1": {}, "2": {}}, {"1": 0.0, "2": 0.0})
    asked.accepted(run, "prompt", {})
    asked.watch_handlers(SimpleNamespace(on_prompt_handlers=[]))
    assert name.rpartition(".")[2] in {where.rpartition(".")[2] for where, _ in faults_expected}


def test_the_tasks_of_an_async_answer_answers() -> None:
    async def resolve(results: list[Any]) -> Any:
        return [await one for one in results]

    async def question() -> Any:
        await asked.WatchedMap(map_over)("prompt", "2", Slow, {}, "IS_CHANGED")
        return await asked.WatchedResults(resolve)([asyncio.create_task(asyncio.sleep(0, "answer"))])

    assert asyncio.run(question()) == ["answer"]


@pytest.mark.parametrize("kind", ["Question", "Node"])
def test_a_fault_at_the_end_of_an_answer_is_noted(kind, marks, run, monkeypatch, faults_expected) -> None:
    from stagexec.record.guard import GUARDED

    def faulty(*_: Any) -> Any:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(GUARDED[f"stagexec.executor.asked.{kind}.ended"], "body", faulty)
    assert ask("IS_CHANGED") == ["IS_CHANGED"]
    validate({"1": {}, "2": {}}, {"1": 0.0, "2": 0.0})
    assert {where for where, _ in faults_expected} == {f"{kind}.ended"}
