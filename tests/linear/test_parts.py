"""Our keys, scheduler, validation and progress against the host's own classes, in a process of their own.

Importing the host takes seconds and changes the process, so all checks of `inside/` run in one more pytest;
each of them is one test here.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSIDE = Path(__file__).with_name("inside")

pytestmark = [pytest.mark.host, pytest.mark.timeout(900)]


def checks() -> list[str]:
    """`check_keys.test_…` for each test function of the check files, without importing them."""
    found = []
    for file in sorted(INSIDE.glob("check_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = [one.name for one in tree.body if isinstance(one, ast.FunctionDef)]
        found += [f"{file.stem}.{name}" for name in names if name.startswith("test_")]
    return found


@lru_cache
def results(tree: Path, folder: Path) -> tuple[dict[str, list[str]], str]:
    """For each check the failures of its cases (empty: all passed), and what the process printed."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(INSIDE / "pytest.ini"), f"--junitxml={report}"]
    done = subprocess.run(
        [*command, f"--confcutdir={INSIDE}", str(INSIDE)],
        cwd=folder,
        env=os.environ
        | {"STAGEXEC_TEST_TREE": str(tree), "PYTHONPATH": os.pathsep.join((str(ROOT), str(INSIDE)))},
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=840,
    )
    assert report.is_file(), done.stdout[-4000:] + done.stderr[-4000:]
    told: dict[str, list[str]] = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name', '').partition('[')[0]}"
        bad = [*case.iter("failure"), *case.iter("error"), *case.iter("skipped")]
        told.setdefault(name, []).extend(f"{case.get('name')}\n{one.text}" for one in bad)
    return told, done.stdout[-4000:]


@pytest.fixture(scope="module")
def told(host_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[str]], str]:
    return results(host_tree, tmp_path_factory.mktemp("inside"))


@pytest.mark.parametrize("check", checks())
def test_against_the_hosts_own(check: str, told: tuple[dict[str, list[str]], str]) -> None:
    failures, printed = told
    assert check in failures, printed
    assert failures[check] == [], "\n\n".join(failures[check])
