"""A pretend host module, a fake run, and the proof that no patch is left behind."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stagexec.host import seams as engine
from stagexec.host.tables import SeamRow, Tables
from stagexec.record import guard, live

_numbers = itertools.count()


class FakeRun:
    """What a seam sees of a run: an exclusive stack, spans, marks and a clock that counts its readings."""

    def __init__(self) -> None:
        self.thread: int | None = threading.get_ident()
        self.task: Any = None
        self.visit: int | None = 1
        self.node: tuple[str, str] | None = ("7", "SomeNode")
        self.visit_no_of = {"7": 1}
        self.stack: list[tuple[str, str | None, str | None]] = []
        self.entered: list[tuple[str, str | None, str | None]] = []
        self.spans: list[tuple[Any, ...]] = []
        self.marks: list[tuple[str, dict[str, Any]]] = []
        self.folders: list[tuple[str, str]] = []
        self.failures: list[tuple[BaseException, str]] = []
        self._time = itertools.count()

    def clock(self) -> int:
        return next(self._time)

    def enter(self, stage: str, part: str | None = None, seam: str | None = None) -> int:
        self.stack.append((stage, part, seam))
        self.entered.append((stage, part, seam))
        return len(self.stack) - 1

    def leave(self, depth: int) -> None:
        assert depth == len(self.stack) - 1, "segments are left in the order they were entered"
        self.stack.pop()

    def inside(self, seam: str) -> bool:
        return any(one[2] == seam for one in self.stack)

    def inside_any(self, seams: Any) -> bool:
        return any(one[2] in seams for one in self.stack)

    def enter_again(self, stage: str, part: str | None, seam: str, _within_ns: int) -> int:
        return self.enter(stage, part, seam)

    @property
    def stage(self) -> str | None:
        return self.stack[-1][0] if self.stack else None

    @property
    def part(self) -> str | None:
        return self.stack[-1][1] if self.stack else None

    def span(self, *fields: Any) -> None:
        self.spans.append(fields)

    def mark(self, name: str, detail: dict[str, Any], **_fields: Any) -> None:
        self.marks.append((name, detail))

    def save_folder(self, folder: str, prefix: str, counter: int | None = None) -> None:
        self.folders.append((folder, prefix))

    def failed_in(self, error: BaseException, stage: str) -> None:
        self.failures.append((error, stage))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    """A run in execution on the test's thread."""
    fake = FakeRun()
    monkeypatch.setattr(live, "run", fake)
    return fake


@pytest.fixture
def host_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """`name = host_module(source)`: a module that can be imported, and has not been yet."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def make(source: str) -> str:
        name = f"pretend_host_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        importlib.invalidate_caches()
        made.append(name)
        return name

    yield make
    for name in made:
        sys.modules.pop(name, None)


def row(seam: str, target: str | list[str], **fields: Any) -> SeamRow:
    """A seam row with the fields that every row needs."""
    spelled = (target,) if isinstance(target, str) else tuple(target)
    base = {"kind": "stage", "why": "a test", "hosts": "the test"} | fields
    if base["kind"] == "stage":
        base.setdefault("stage", "sampling")
    return SeamRow(id=seam, target=spelled, **base)


@pytest.fixture
def seams() -> Iterator[Callable[..., engine.Seams]]:
    """`seams(row(...), ...)`: an engine with its hooks installed; undone when the test ends."""
    made: list[engine.Seams] = []

    def make(*rows: SeamRow, strict: bool = False, **replacements: Any) -> engine.Seams:
        tables = Tables(seams={one.id: one for one in rows})
        one = engine.Seams(tables, replacements, strict)
        made.append(one)
        one.install_hooks()
        return one

    yield make
    for one in made:
        one.undo()
    assert not engine._places, "a patch was left behind"


@pytest.fixture(name="row")
def row_fixture() -> Callable[..., SeamRow]:
    return row


@pytest.fixture
def load() -> Callable[[str], ModuleType]:
    return importlib.import_module


@pytest.fixture(autouse=True)
def no_fault_of_ours() -> Iterator[None]:
    """What the guard swallowed in production fails the test here."""
    before = len(guard.faults)
    yield
    assert guard.faults[before:] == []
