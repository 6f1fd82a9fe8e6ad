"""The built wheel, in an environment that has never seen the checkout, finds what is not code."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    return next(folder.glob("stagexec-*.whl"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with the wheel in it; its dependencies are seen through a path file."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    windows = sys.platform == "win32"
    interpreter = folder / ("Scripts/python.exe" if windows else "bin/python")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(interpreter),
        "install",
        "--quiet",
        "--no-deps",
        str(wheel),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return interpreter


def ask(python: Path, code: str, *path: str, cwd: Path) -> str:
    """What `code` prints under `python`, with `path` behind its own packages."""
    behind = f"import sys; sys.path.extend({list(path)!r})\n"
    done = subprocess.run(
        [str(python), "-c", behind + code], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def dependencies() -> str:
    """The folder that holds msgspec: the packages of the environment the tests run in."""
    import msgspec

    return str(Path(msgspec.__file__).parents[1])


def test_the_wheel_carries_seam_tables_and_workflows_but_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "stagexec/data/patches/comfyui.toml" in names
    assert "stagexec/data/bench/workflows/tiny_txt2img.json" in names
    assert not [name for name in names if name.startswith(("tests/", "patches/", "bench/"))]


def test_the_installed_wheel_finds_both_folders_in_itself(python: Path, tmp_path: Path) -> None:
    code = "import stagexec.resources as r\n"
    code += "print(r.patches_folder(), r.bench_folder(), r.checkout_root(), sep='|')"
    patches, bench, checkout = ask(python, code, dependencies(), cwd=tmp_path).split("|")
    inside = Path(sysconfig.get_path("purelib", vars={"base": str(python.parents[1])})) / "stagexec" / "data"
    assert (Path(patches), Path(bench)) == (inside / "patches", inside / "bench")
    assert checkout == "None"
    assert list(Path(patches).glob("*.toml"))


def test_the_installed_command_answers_to_help(python: Path, tmp_path: Path) -> None:
    code = (
        "import runpy; sys.argv = ['stagexec', '--help']; runpy.run_module('stagexec', run_name='__main__')"
    )
    assert "demo" in ask(python, code, dependencies(), cwd=tmp_path)
    script = python.with_name("stagexec.exe" if sys.platform == "win32" else "stagexec")
    assert script.is_file()
