"""ComfyUI's own execution suite, unchanged, against our launcher: as many tests pass as against stock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stagexec.bench import lab

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PASSED, SKIPPED = 266, 7
"""What stock ComfyUI 0.30.0 reaches on the CPU; the skipped ones want a server with SDXL."""


def copy_of_tree(tree: Path, target: Path) -> Path:
    """A scratch copy: the suite runs in the tree's folder and writes into it. Models are not needed."""
    big = {str(tree / name) for name in (".git", ".venv", "venv", "models", "output", "temp", "user")}

    def ignore(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if str(Path(folder) / name) in big or name == "__pycache__"]

    shutil.copytree(tree, target, ignore=ignore)
    for name in ("models", "output"):
        (target / name).mkdir()
    return target


def run_suite(folder: Path, report: Path, launcher: str, ledger: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "stagexec_conformance", "-p", "no:cacheprovider", "-q"]
    command += ["tests/execution", "--skip-timing-checks", "--port", str(lab.free_port())]
    command += ["--output_dir", str(folder / "output"), "--junitxml", str(report)]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(HERE), str(ROOT))),
        "STAGEXEC_CONFORMANCE_LAUNCHER": launcher,
        "STAGEXEC_LEDGER": str(ledger),
    }
    return subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1500
    )


@pytest.mark.timeout(1600)
def test_comfyuis_own_execution_suite_passes_as_on_stock(host_tree: Path, tmp_path: Path) -> None:
    launcher = os.environ.get("STAGEXEC_CONFORMANCE_LAUNCHER", "ours")
    folder = copy_of_tree(host_tree, tmp_path / "ComfyUI")
    report = tmp_path / "report.xml"
    done = run_suite(folder, report, launcher, tmp_path / "ledger")
    closing = done.stdout.strip().splitlines()[-40:]
    assert report.is_file(), "the suite gave no report:\n" + "\n".join([*closing, done.stderr[-2000:]])
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    counts = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = [
        f"{case.attrib['classname']}::{case.attrib['name']}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    print(f"against {launcher}: {passed} passed, {counts['skipped']} skipped, {len(failed)} failed")
    assert not failed, "\n".join([*failed, "", *closing])
    assert passed >= PASSED
    assert counts["skipped"] <= SKIPPED
    assert done.returncode == 0
    if launcher != "stock":
        assert list((tmp_path / "ledger" / "journal").rglob("*.jsonl")), "our launcher kept no journal"
