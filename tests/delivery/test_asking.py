"""What our bookkeeping asks of a disk on a run's way holds the run up for a moment only."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from stagexec.delivery import asking, children, pending, pyav
from stagexec.delivery.asking import ask
from stagexec.record import paths

PATIENCE_S = 60.0


@pytest.fixture
def alive(monkeypatch):
    """Set: the dead disk answers. It is set when the test is over."""
    monkeypatch.setattr(asking, "WAIT_S", 0.05)
    event = threading.Event()
    yield event
    event.set()
    wait(lambda: asking._hanging == 0)


def wait(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_an_answer_and_an_error_come_back_as_they_are():
    assert ask(lambda: 5, 0) == 5
    with pytest.raises(FileNotFoundError):
        ask(lambda: os.stat("/nowhere/at/all"), None)
    assert asking._hanging == 0


def test_where_no_answer_comes_the_other_is_taken_and_the_late_one_handed_over(alive):
    late = []
    assert ask(lambda: alive.wait() and "there", "not known", late=late.append) == "not known"
    alive.set()
    wait(lambda: late == ["there"])


def test_while_several_questions_hang_no_further_one_is_asked(alive):
    for _ in range(asking.MOST_HANGING):
        ask(alive.wait, None)
    asked = []
    assert ask(lambda: asked.append(1), "not known") == "not known"
    assert asked == []
    alive.set()
    wait(lambda: asking._hanging == 0)
    assert ask(lambda: asked.append(1), "not known") is None


def test_without_a_further_thread_nothing_is_asked(monkeypatch):
    def none_left(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    assert ask(lambda: 5, 0) == 0
    assert asking._hanging == 0


def test_a_delivery_goes_on_where_its_note_cannot_be_written_and_the_late_note_is_struck_out(
    alive, tmp_path, monkeypatch
):
    monkeypatch.setattr(paths, "used_folder", tmp_path)
    encode = pending.msgspec.json.encode
    monkeypatch.setattr(pending.msgspec.json, "encode", lambda note: alive.wait() and encode(note))
    part = tmp_path / "part"
    with pending.noted(part, None):
        part.write_bytes(b"x")
        part.unlink()
    assert list((tmp_path / "pending").iterdir()) == []
    alive.set()
    wait(lambda: asking._hanging == 0 and not pending._mine)
    assert list((tmp_path / "pending").iterdir()) == []


def test_a_start_goes_on_where_the_disk_with_the_notes_gives_no_answer(alive, tmp_path, monkeypatch):
    monkeypatch.setattr(pending, "LOOK_S", 0.05)
    monkeypatch.setattr(pending, "_left", lambda ledger: alive.wait() and ["a note"])
    assert pending.left(tmp_path) == []


def test_the_end_of_a_text_file_on_a_dead_disk_is_nothing(alive, tmp_path, monkeypatch):
    (tmp_path / "said.txt").write_text("the end")
    assert children.tail_of_file(str(tmp_path / "said.txt")) == b"the end"
    monkeypatch.setattr(children, "_tail", lambda name: alive.wait() and b"late")
    assert children.tail_of_file(str(tmp_path / "said.txt")) == b""


def test_the_size_of_a_container_on_a_dead_disk_is_not_known(alive, tmp_path, monkeypatch):
    (tmp_path / "a.mp4").write_bytes(b"four")
    assert pyav._size(str(tmp_path / "a.mp4")) == 4
    monkeypatch.setattr(pyav.os, "stat", lambda _: alive.wait())
    assert pyav._size(str(tmp_path / "a.mp4")) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_nothing_is_taken_out_of_a_pipe_that_an_encoder_writes_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    number = os.open(pipe, os.O_RDWR)
    try:
        os.write(number, b"for the node")
        assert children.tail_of_file(str(pipe)) == b""
        assert os.read(number, 100) == b"for the node"
    finally:
        os.close(number)


def test_a_thread_that_hangs_does_not_keep_the_process_from_ending():
    code = """
import threading
from stagexec.delivery import asking, hands
asking.ask(threading.Event().wait, None, 0.05)
pool = hands.Hands("test")
pool.start()
def steps():
    yield [hands.Task(threading.Event().wait, lambda reason: reason, "dead")]
pool.submit(hands.Job("job", steps()))
print(pool.drain(0.2))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.returncode, done.stderr) == ("['job']", 0, "")
