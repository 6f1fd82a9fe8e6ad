"""Runs of the recorder on a scripted device, with a clock that both share."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from stagexec.reading import rows, store
from stagexec.record import live
from stagexec.record.devices import clock_for
from stagexec.record.run import Run
from tests.device.fake_device import FakeGpu
from tests.faults import faults_expected, fresh_recorder, no_fault_of_ours

__all__ = ["faults_expected", "fresh_recorder", "no_fault_of_ours"]

PROCESS: dict[str, Any] = {
    "format_version": 1,
    "pid": 1,
    "hostname": "here",
    "stagexec_version": "0",
    "python": "3",
    "platform": "fake",
    "host_path": None,
    "argv": [],
    "timing": "events",
    "executor_asked": None,
}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The device that the recorder takes for torch's."""
    made = FakeGpu()
    monkeypatch.setitem(sys.modules, "torch", made.torch)
    return made


class Recorder:
    """Begins runs in `events` mode on a fake device, and reads them back from the journal."""

    def __init__(self, gpu: FakeGpu, ledger: Path) -> None:
        self.gpu = gpu
        self.ledger = ledger
        live.begin_process(ledger, **PROCESS)

    def begin(self, prompt_id: str = "prompt", timing: str = "events") -> Run:
        run = Run(prompt_id, self.gpu.clock(), self.gpu.clock)
        run.timing = timing
        assert live.journal is not None
        live.journal.open_run(run)
        live.begin(run)
        assert run.thread == threading.get_ident()
        return run

    def finish(self, run: Run, outcome: str = "success", **error: Any) -> dict[str, Any]:
        """The run as `show --json` prints it."""
        if error:
            run.error = error
        live.finish(run, {"host_status": "success"}, {})
        return self.shown(run)

    def shown(self, run: Run) -> dict[str, Any]:
        assert live.journal is not None
        assert live.journal.flush()
        return rows.detail(store.load(self.ledger).find(run.run_id))


@pytest.fixture
def recorder(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(live, "device_kind", lambda: "cuda")
    monkeypatch.setattr(live, "unseen", None)
    clock = clock_for("cuda")
    clock._backend.elsewhere = everywhere  # type: ignore[attr-defined] (there is no driver to ask here)
    monkeypatch.setattr(live, "device_clock", clock)
    monkeypatch.setattr("stagexec.record.clock.now_ns", gpu.clock)
    return Recorder(gpu, tmp_path)


def everywhere() -> Any:
    """Resolving is safe on any thread."""
    import contextlib

    return contextlib.nullcontext(True)
