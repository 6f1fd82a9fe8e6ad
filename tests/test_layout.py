"""The layout holds: imports go one way, only host/ imports ComfyUI, and nothing heavy loads with us."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "stagexec"

HOST_MODULES = {
    "app", "comfy", "comfy_api", "comfy_api_nodes", "comfy_config", "comfy_execution", "comfy_extras",
    "comfyui_version", "cuda_malloc", "execution", "folder_paths", "hook_breaker_ac10a0", "latent_preview",
    "main", "middleware", "node_helpers", "nodes", "protocol", "server",
}  # fmt: skip
"""Top-level names that belong to a ComfyUI tree."""

TOOLS = {"addresses", "files", "printable"}
"""Modules that know nothing of the rest: addresses without secrets, paths, texts for a terminal."""

SHARED = {"stages", "format"}
"""What record and reading may both know."""

MAY_IMPORT = {
    "stages": set(),
    "format": set(),
    "resources": set(),
    **{name: set() for name in TOOLS},
    "public": {"record", "stages"},
    "record": SHARED,
    "executor": {"record", "stages", "host"},
    "delivery": {"record", "stages", "public"},
    "host": {"executor", "delivery", "record", "public", "stages", "format", "resources", "web"},
    "main": {"host", "executor", "delivery", "record", "stages", "format", "resources", "web"},
    "reading": SHARED,
    "answers": {"reading", "stages"},
    "views": {"answers", "reading", "stages", "format"},
    "cli": {
        "views",
        "answers",
        "reading",
        "bench",
        "stages",
        "format",
        "resources",
        "record",
        "host",
    },
    "web": {"views", "answers", "reading", "stages", "format", "resources", "record"},
    "bench": {"views", "answers", "reading", "stages", "format", "resources"},
    "__main__": {"cli"},
    "__init__": {"public"},
}
"""Folder or module of the package -> what of the package it may import, besides itself and TOOLS."""

NARROW = {
    ("executor", "host"): {"stagexec.host.api"},
    ("cli", "record"): {"stagexec.record.paths"},
    ("cli", "host"): {"stagexec.host.locate", "stagexec.host.doctor"},
    ("web", "record"): {"stagexec.record.paths"},
}
"""Where only certain modules of the other folder may be imported."""

BROUGHT = {"PIL", "av", "psutil"}
"""What every ComfyUI brings: what runs inside of one has it."""

INSIDE = {"delivery", "executor", "host", "record"}
"""What runs inside a ComfyUI."""

DISTRIBUTION = {
    "PIL": "pillow",
    "ffmpeg": "ffmpeg-python",
    "opentelemetry": "opentelemetry-sdk",
    "pynvml": "nvidia-ml-py",
    "requests": "opentelemetry-exporter-otlp-proto-http",
}
"""Module -> package, where the names differ."""

HEAVY = ("torch", "numpy", "aiohttp", "comfy", "duckdb", "rich", "transformers")
"""Must not be loaded by an import of ours before the host loads them (or before they are needed)."""


def modules() -> Iterator[tuple[str, Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        unit = relative.parts[0] if len(relative.parts) > 1 else relative.stem
        yield unit, path, ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path, tree: ast.Module) -> Iterator[str]:
    """Every module that a file imports, late imports too, by full name."""
    package = ("stagexec", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module or "")))
            # `from stagexec.record import clock` means the module stagexec.record.clock, if there is one.
            for alias in node.names:
                deeper = PACKAGE.parent.joinpath(*module.split("."), alias.name)
                is_module = deeper.with_suffix(".py").is_file() or deeper.is_dir()
                yield f"{module}.{alias.name}" if is_module else module


def test_every_folder_of_the_package_has_its_place_in_the_import_order() -> None:
    assert {unit for unit, _, _ in modules()} <= set(MAY_IMPORT)


def test_imports_inside_the_package_go_one_way() -> None:
    wrong = []
    for unit, path, tree in modules():
        for name in imported(path, tree):
            parts = name.split(".")
            if parts[0] != "stagexec" or len(parts) < 2 or parts[1] == unit:
                continue
            allowed = parts[1] in MAY_IMPORT[unit] | TOOLS or parts[1] == "__version__"
            narrow = NARROW.get((unit, parts[1]))
            if not allowed or (narrow is not None and name not in narrow):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_only_the_host_folder_imports_comfyui() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for unit, path, tree in modules()
        if unit != "host"
        for name in imported(path, tree)
        if name.split(".")[0] in HOST_MODULES
    ]
    assert not wrong, "\n".join(wrong)


def declared() -> dict[str, set[str]]:
    """Package -> where it is declared: "" for the core, else the names of extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, set[str]] = {}
    for place, wanted in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for requirement in wanted:
            name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), set()).add(place)
    return found


def test_every_package_that_is_imported_is_declared_for_the_core_or_an_extra() -> None:
    places = declared()
    undeclared = []
    for unit, path, tree in modules():
        for name in imported(path, tree):
            module = name.split(".")[0]
            known = {"stagexec", "__future__"} | HOST_MODULES | (BROUGHT if unit in INSIDE else set())
            if module in known or module in sys.stdlib_module_names or module == "tomllib":
                continue
            package = DISTRIBUTION.get(module, module.replace("_", "-")).lower()
            if not places.get(package, set()) - {"dev"}:
                undeclared.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not undeclared, "\n".join(undeclared)


@pytest.mark.parametrize("package", ["scipy", "pillow", "plotly", "ray", "fsspec"])
def test_what_only_an_extra_needs_is_not_asked_of_the_core(package: str) -> None:
    assert "" not in declared()[package]


@pytest.mark.parametrize(
    "module", ["stagexec", "stagexec.main", "stagexec.bench.lab", "stagexec.bench.setup"]
)
def test_importing_us_loads_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_files_and_functions_keep_their_size() -> None:
    long = []
    for _, path, tree in modules():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > 500:
            long.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > 70:
                    long.append(f"{path.relative_to(ROOT)}: {node.name} has {size} lines")
    assert not long, "\n".join(long)


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path.relative_to(ROOT)) for _, path, tree in modules() if not ast.get_docstring(tree)]
    assert not silent


def test_the_columns_of_the_format_are_listed_in_the_format_alone() -> None:
    from stagexec import format as journal_format

    lists = {value for name, value in vars(journal_format).items() if name.endswith("_COLUMNS")}
    assert ("stage", "part", "start_ns", "end_ns", "visit", "seam") in lists
    again = [
        f"{path.relative_to(ROOT)}: {node.lineno}"
        for _, path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Tuple, ast.List))
        and tuple(getattr(one, "value", None) for one in node.elts) in lists
    ]
    assert not again


def test_the_documentation_of_the_format_is_the_one_the_code_makes() -> None:
    from stagexec import format as journal_format

    written = (ROOT / "docs" / "journal-format.md").read_text(encoding="utf-8")
    assert written == journal_format.document(), "run `make docs`"
