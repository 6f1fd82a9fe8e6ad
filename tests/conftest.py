"""What all tests share: the host tree, the tiny checkpoint, and servers that are stopped when a test ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench import checkpoint as checkpoints
from stagexec.bench import lab, setup
from tests.host.witness import Witness

ROOT = Path(__file__).resolve().parents[1]
NODES_PACK = ROOT / "tests" / "host" / "nodes_pack"
SCENARIOS_PACK = ROOT / "tests" / "scenarios" / "pack"
SHARED_PACKS = (NODES_PACK, SCENARIOS_PACK)
"""What the servers of a session have: the nodes of all tests that share them."""

FAULT_WORDS = "a fault in our own bookkeeping"
"""What the guard logs in production; a test that did not ask for a fault fails when a server says so."""

FOLDER_MARKS = {
    "host": ("host",),
    "transparency": ("host",),
    "conformance": ("host", "conformance"),
    "gpu": ("gpu",),
    "scenarios": ("host", "alone"),
}
"""Folder under tests/ -> the marks that everything in it carries."""

LONGEST = (
    "conformance/", "host/test_bench_plans", "host/test_bench_cut", "chaos/test_small", "linear/test_parts",
    "host/test_bench.", "host/test_bench_ray", "transparency/",
)  # fmt: skip
"""What takes minutes starts first, so that none of it runs by itself at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stagexec-comfyui", metavar="DIR", help="the ComfyUI tree to test in")


@pytest.hookimpl(tryfirst=True)  # before -m selects by the marks that are given here
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in FOLDER_MARKS.get(place(item).partition("/")[0], ()):
            item.add_marker(mark)
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=turn)
    if any(item.get_closest_marker("gpu") for item in items):
        reason = gpu_missing()
        for item in items:
            if reason and item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))


def place(item: pytest.Item) -> str:
    """The item's file under tests/, as `folder/file.py`."""
    return item.path.relative_to(ROOT / "tests").as_posix()


def group(item: pytest.Item) -> str:
    """Tests that share a fixture stay in one process: of a file, of a shipped plan, of the twins' folder."""
    name = place(item)
    if name.startswith("transparency/"):
        return "transparency"
    callspec = getattr(item, "callspec", None)
    if callspec is None or not name.endswith("test_bench_plans.py"):
        return name
    return f"{name}:{callspec.params['ran']}"


def turn(item: pytest.Item) -> tuple[bool, int]:
    """The fast tests first: a broken unit shows before the first server has started. Then the longest."""
    slow = any(item.get_closest_marker(name) for name in ("host", "conformance", "gpu"))
    name = place(item)
    early = next((number for number, part in enumerate(LONGEST) if name.startswith(part)), len(LONGEST))
    return slow, early if slow else 0


def gpu_missing() -> str | None:
    """Why the gpu tests cannot run here; None when they can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "this machine has no CUDA device"


@pytest.fixture(scope="session")
def host_tree(pytestconfig: pytest.Config) -> Path:
    """The real ComfyUI. Missing set-up fails the test: a skip would look like a pass."""
    try:
        return setup.find_host(pytestconfig.getoption("--stagexec-comfyui"), fetch=False)
    except setup.SetupError as problem:
        pytest.fail(f"{problem}\nrun `make test`, which sets up what the tests need", pytrace=False)


@pytest.fixture(scope="session")
def old_host_tree() -> Callable[[str], Path]:
    """`old_host_tree("0.20.1")`: the fetched tree of an older version."""

    def find(version: str) -> Path:
        folder = setup.host_folder(version)
        if not setup.is_host_tree(folder):
            pytest.fail(f"no tree at {folder}: run `make test`, which fetches it", pytrace=False)
        return folder

    return find


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The tiny checkpoint's file."""
    path = checkpoints.checkpoint_path()
    if not path.is_file():
        pytest.fail(f"no checkpoint at {path}: run `make test`, which makes it", pytrace=False)
    return path


class Servers:
    """Starts servers in folders of their own, and stops all of them at the end."""

    def __init__(self, folder: Path, host: Path, checkpoint: Path) -> None:
        self._folder = folder
        self._host = host
        self._checkpoint = checkpoint
        self._all: list[tuple[lab.Server, bool]] = []

    def __call__(
        self, *args: str, ready: bool = True, faults_expected: bool = False, **launch: Any
    ) -> lab.Server:
        """A started server, ready unless `ready` is false. `args` are the host's and our further arguments;
        `launch` is any field of lab.Launch (`launcher=lab.STOCK`, `ledger=…`, `hash_seed=0`, `env={…}`)."""
        base = launch.pop("base", None) or self._folder / f"server{len(self._all)}"
        launch.setdefault("comfyui", self._host)
        launch.setdefault("checkpoints", self._checkpoint.parent)
        launch.setdefault("custom_nodes", (NODES_PACK,))
        launch.setdefault("python", sys.executable)
        launch.setdefault("ledger", base / "ledger")
        server = lab.Server(lab.Launch(base=base, args=("--cpu", *args), **launch))
        self._all.append((server, faults_expected))
        server.start()
        return server.wait_ready() if ready else server

    def stop_all(self) -> None:
        """Stop every server; fail the test if one of them noted a fault of ours that was not expected."""
        noted = []
        for server, faults_expected in self._all:
            server.stop()
            if not faults_expected:
                noted += [line for line in server.log().splitlines() if FAULT_WORDS in line]
        if noted:
            pytest.fail("stagexec noted faults of its own:\n" + "\n".join(noted), pytrace=False)


@pytest.fixture
def server(tmp_path: Path, host_tree: Path, checkpoint: Path) -> Iterator[Servers]:
    """A factory of servers that live as long as the test: `server("--cache-none", ledger=folder)`."""
    servers = Servers(tmp_path, host_tree, checkpoint)
    try:
        yield servers
    finally:
        servers.stop_all()


@pytest.fixture(scope="session")
def shared_servers(
    tmp_path_factory: pytest.TempPathFactory, host_tree: Path, checkpoint: Path
) -> Iterator[Servers]:
    """The same factory for a whole session: a start takes seconds, and most tests can share one."""
    servers = Servers(tmp_path_factory.mktemp("servers"), host_tree, checkpoint)
    try:
        yield servers
    finally:
        servers.stop_all()


@pytest.fixture(scope="session")
def ours(shared_servers: Servers) -> lab.Server:
    """A running server of ours with the test nodes; its ledger is `ours.launch.ledger`."""
    return shared_servers(custom_nodes=SHARED_PACKS, hash_seed=0)


@pytest.fixture(scope="session")
def witness(ours: lab.Server) -> Iterator[Witness]:
    """The server that most tests share, in the native loop, beside the reader of its ledger."""
    one = Witness(ours)
    yield one
    one.close()


@pytest.fixture(scope="session")
def host_witness(shared_servers: Servers) -> Iterator[Witness]:
    """A server whose prompts run in the host's own loop, with the ledger around it."""
    one = Witness(shared_servers("--stagexec-executor", "host", custom_nodes=SHARED_PACKS, hash_seed=0))
    yield one
    one.close()


@pytest.fixture(scope="session")
def stock(shared_servers: Servers) -> lab.Server:
    """A running stock ComfyUI with the same nodes, for comparison."""
    return shared_servers(launcher=lab.STOCK, hash_seed=0)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No STAGEXEC_ variable and no COMFYUI_PATH from outside."""
    for name in list(os.environ):
        if name.startswith("STAGEXEC_") or name == "COMFYUI_PATH":
            monkeypatch.delenv(name)
