"""What a bench that was killed has left behind, and the lock of a result folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stagexec.bench import leftover, plan, results

SLEEP = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def opened(tmp_path: Path) -> results.Results:
    wanted = plan.parse('name = "x"\n[[unit]]\nname = "u"\nstate = "recompute"\n')
    return results.create(tmp_path / "r", wanted, {}, {})


def sleeper(base: Path) -> tuple[subprocess.Popen[str], int]:
    """A process that looks like a server of ours, and the id of its child."""
    base.mkdir(parents=True)
    words = [sys.executable, "-c", SLEEP, leftover.BASE_OPTION, str(base)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def gone(pid: int) -> bool:
    import psutil

    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_servers_of_this_folder_are_stopped_with_their_children_and_others_are_not(
    opened: results.Results, tmp_path: Path
) -> None:
    ours, child = sleeper(opened.folder / "servers" / "server-a")
    other, bystander = sleeper(tmp_path / "elsewhere" / "servers" / "server-a")
    try:
        (opened.folder / "servers" / "server-a" / "server.log").write_text("hello")
        assert leftover.clear(opened) == [ours.pid]
        assert ours.wait(5) is not None
        end = time.monotonic() + 5
        while not gone(child) and time.monotonic() < end:
            time.sleep(0.05)
        assert gone(child)
        assert other.poll() is None
    finally:
        os.kill(bystander, signal.SIGTERM)
        for process in (ours, other):
            process.kill()
            process.communicate()
    assert (opened.folder / "logs" / "server-a.log").read_text() == "hello"
    assert list((opened.folder / "servers").iterdir()) == []
    assert [note["pids"] for note in opened.notes if note["kind"] == "left"] == [[ours.pid]]


def test_servers_of_a_worker_of_this_bench_are_stopped_too_and_its_folder_goes(
    opened: results.Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftover.tempfile, "gettempdir", lambda: str(tmp_path))
    worker = tmp_path / f"{opened.worker_prefix}x"
    ours, child = sleeper(worker / "result" / "servers" / "server-a")
    another = tmp_path / "stagexec-worker-0-x"
    another.mkdir()
    try:
        assert leftover.clear(opened) == [ours.pid]
    finally:
        ours.kill()
        ours.communicate()
    assert not worker.exists()
    assert another.exists()
    assert gone(child)


def test_where_nothing_was_left_nothing_is_said(opened: results.Results) -> None:
    assert leftover.clear(opened) == []
    assert opened.notes == []


def test_two_benches_never_write_into_one_folder(opened: results.Results) -> None:
    code = (
        "import sys, pathlib\nfrom stagexec.bench import leftover\n"
        "with leftover.alone(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    input()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(opened.folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(results.ResultError, match="another bench is still writing into"):
            leftover.alone(opened.folder).__enter__()
        holder.kill()  # a bench that was killed holds nothing
    with leftover.alone(opened.folder):
        pass
