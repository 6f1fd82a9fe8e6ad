"""Hosts that we do not know: what is missing makes facts false, and what cannot be read is said aloud."""

from __future__ import annotations

import logging
import types
from typing import Any

import pytest

from stagexec.host import facts, hooks
from stagexec.host.tables import Tables


def bare_host(**names: Any) -> types.ModuleType:
    """An `execution` module that has lost everything but these names."""
    module = types.ModuleType("execution")
    vars(module).update(names)
    return module


def test_a_host_without_the_names_that_we_ask_about_has_no_such_facts() -> None:
    comfy = types.SimpleNamespace(model_management=types.SimpleNamespace())
    found = facts.facts_of(bare_host(comfy=comfy))
    assert set(found) == set(facts.FACTS)
    assert not any(value for name, value in found.items())


def test_a_host_that_cannot_be_read_is_named_once_and_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = hooks.Hooks(Tables(), None, "baseline", False, {})
    nothing = bare_host()
    with caplog.at_level(logging.WARNING, "stagexec"):
        for _ in range(2):
            with pytest.raises(AttributeError):
                one._executor_class(nothing, type("PromptExecutor", (), {}))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "cannot be read" in line
    assert "no run is recorded" in line
    assert one.api is None
