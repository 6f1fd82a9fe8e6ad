"""What the guard swallows in production fails a test. Import these fixtures into a folder's conftest."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest

from stagexec.record import guard, interrupts, live, paths, pauses
from stagexec.record.waiting import Waiting

Faults = list[tuple[str, str]]


@pytest.fixture
def faults_expected(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Ask for this in a test that provokes faults: the list of those noted meanwhile, (where, error)."""
    return fresh_faults(monkeypatch)


@pytest.fixture(autouse=True)
def no_fault_of_ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails the test when the guard noted a fault that was not expected."""
    noted = fresh_faults(monkeypatch)
    yield
    if "faults_expected" not in request.fixturenames:
        assert noted == []


@pytest.fixture(autouse=True)
def fresh_recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No run, no journal and no callback of another test; a journal that the test began is stopped."""
    monkeypatch.setattr(guard, "on_fault", None)
    monkeypatch.setattr(live, "run", None)
    monkeypatch.setattr(live, "running", {})
    monkeypatch.setattr(live, "_cancel_asked_ns", None)
    monkeypatch.setattr(interrupts, "_by_code", None)
    monkeypatch.setattr(live, "journal", None)
    monkeypatch.setattr(paths, "used_folder", None)
    monkeypatch.setattr(live, "waiting", Waiting())
    monkeypatch.setattr(live, "_started", 0)
    monkeypatch.setattr(live, "timing", "baseline")
    monkeypatch.setattr(live, "record_text", False)
    monkeypatch.setattr(live, "after_execution", None)
    monkeypatch.setattr(live, "closed_callbacks", [])
    if pauses._pause in gc.callbacks:  # else a long collection in this test is an event in its journal
        gc.callbacks.remove(pauses._pause)
    yield
    if live.journal is not None:
        live.journal.stop("the test is over")


def fresh_faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """An empty list in place of the process's: a full one would hide what comes after."""
    noted: Faults = []
    monkeypatch.setattr(guard, "faults", noted)
    monkeypatch.setattr(guard, "_seen", Counter())
    return noted
