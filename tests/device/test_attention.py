"""Attention calls are counted by name, and torch.compile sees nothing of the counting."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from stagexec.host import attention, devices
from stagexec.record import live
from stagexec.record.run import Run
from tests.faults import faults_expected, fresh_recorder, no_fault_of_ours

__all__ = ["faults_expected", "fresh_recorder", "no_fault_of_ours"]


def attention_sage(q: Any, k: Any, v: Any, heads: int, **kwargs: Any) -> Any:
    return q * heads + k + v


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(live, "attention_facts", {})
    module = ModuleType(attention.ATTENTION)
    module.optimized_attention = attention_sage  # type: ignore[attr-defined]
    return attention.counting(module, attention_sage)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    one = Run("prompt", 0, lambda: 0)
    monkeypatch.setattr(live, "run", one)
    return one


ONE = torch.ones(2)


def test_calls_are_counted_by_the_name_of_the_function_that_ran(counted: Any, run: Run) -> None:
    assert torch.equal(counted(ONE, ONE, ONE, 2), ONE * 4)
    counted(ONE, ONE, ONE, heads=2, transformer_options={})
    counted(ONE, ONE, ONE, 2, transformer_options={"optimized_attention_override": print})
    assert run.attention == {"attention_sage": 2, "override of attention_sage": 1}


def test_outside_a_run_the_function_is_only_called(counted: Any) -> None:
    assert torch.equal(counted(ONE, ONE, ONE, 2), ONE * 4)


def test_the_wrapper_looks_like_the_function(counted: Any) -> None:
    assert counted.__name__ == "attention_sage"
    assert counted.__wrapped__ is attention_sage


def test_a_compiled_model_has_one_graph_and_no_break_and_no_recompile(counted: Any, run: Run) -> None:
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: counted(x, x, x, 2) + 1, backend=backend, fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(ONE), ONE * 5)
        run.attention["another"] = run.attention.get("another", 0) + 1
    assert len(graphs) == 1
    assert "attention_sage" not in run.attention


def test_the_offload_functions_are_traced_through_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_watching", False)
    get = devices.watched(True)(ModuleType("host"), lambda device: None)
    sync = devices.watched(False)(ModuleType("host"), lambda device, stream: None)

    def cast(x: Any) -> Any:
        stream = get(x.device)
        sync(x.device, stream)
        return x + 1

    torch._dynamo.reset()
    assert torch.equal(torch.compile(cast, backend="eager", fullgraph=True)(ONE), ONE + 1)


@pytest.mark.parametrize(
    ("flag", "name"),
    [("use_sage_attention", "attention_sage"), ("use_split_cross_attention", "attention_split")],
)
def test_what_the_command_line_asks_for_is_known(
    monkeypatch: pytest.MonkeyPatch, flag: str, name: str
) -> None:
    args = SimpleNamespace(**{flag: True})
    monkeypatch.setitem(sys.modules, "comfy.cli_args", SimpleNamespace(args=args))
    assert attention.asked() == name
    monkeypatch.setitem(sys.modules, "comfy.cli_args", SimpleNamespace(args=SimpleNamespace()))
    assert attention.asked() is None
