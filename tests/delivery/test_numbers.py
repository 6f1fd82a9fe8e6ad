"""Several servers and one folder: each file gets a name of its own, and none takes another's."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import servers

from stagexec.delivery import commit, numbers, remote
from stagexec.delivery.errors import DeliveryFailed

pytestmark = pytest.mark.usefixtures("ledger")

SERVER = """
import errno, os, re, sys
from pathlib import Path
from stagexec.delivery import nodes

base, count, links = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "links"

def no_link(*_):
    raise OSError(errno.EPERM, "no links here")

if not links:
    os.link = no_link

class Host:
    def folder(self, kind):
        return str(base / kind)

    def save_path(self, prefix, folder):
        taken = [int(m[1]) for m in (re.match(prefix + r"_(\\d+)_", n) for n in os.listdir(folder)) if m]
        return folder, prefix, max(taken, default=0) + 1, ""

    def raise_if_cancelled(self):
        pass

for number in range(count):
    source = base / "temp" / f"{os.getpid()}-{number}.txt"
    source.write_text(source.name)
    done, shown = nodes.deliver_file(Host(), str(source), "film", str(base / "output" / "copies"), False)
    (entry,) = shown["files"]
    print(done.path, done.remote, entry["filename"], source.name, flush=True)
"""


@pytest.mark.parametrize("links", ["links", "no links"])
def test_deliveries_of_several_servers_to_one_folder_all_get_a_name(tmp_path: Path, links: str) -> None:
    for kind in ("output/copies", "temp", "input"):
        (tmp_path / kind).mkdir(parents=True)
    line = [sys.executable, "-c", SERVER, str(tmp_path), "15", links]
    running = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    told = [row.split() for one in running for row in one.communicate()[0].splitlines()]
    assert [one.returncode for one in running] == [0] * 4
    assert len(told) == 60
    for path, copy, shown, source in told:
        assert Path(path).read_text() == Path(copy).read_text() == source
        assert Path(path).name == shown
    assert len({row[0] for row in told}) == len({row[1] for row in told}) == 60
    there = sorted(one.name for one in (tmp_path / "output").iterdir() if one.is_file())
    assert there == sorted({row[2] for row in told})
    assert len(list((tmp_path / "output" / "copies").iterdir())) == 60


@pytest.mark.parametrize("kind", [servers.webdav, servers.sftp])
def test_uploads_of_one_name_at_once_all_get_a_name(tmp_path: Path, kind: Any) -> None:
    shelf = tmp_path / "shelf"
    (shelf / "in").mkdir(parents=True)
    (shelf / "in" / "film_00001_.txt").write_text("theirs")
    with kind(shelf) as address:
        shown = upload_at_once(tmp_path, f"{address}/in", threads=3, each=2)
    assert len(set(shown)) == 6
    found = sorted((one.name, one.read_text()) for one in (shelf / "in").iterdir())
    assert [name for name, _ in found] == [f"film_{n:05}_.txt" for n in range(1, 8)]
    assert found[0] == ("film_00001_.txt", "theirs")
    assert sorted(text for _, text in found[1:]) == sorted(f"{n}" for n in range(6))


def test_where_no_step_refuses_a_name_it_is_claimed_first(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    shown = upload_at_once(tmp_path, "memory://numbers", threads=4, each=4)
    assert len(set(shown)) == 16
    names = [Path(one).name for one in memory.ls("/numbers", detail=False)]
    assert [name for name in names if not re.fullmatch(r"film_\d{5}_\.txt", name)] == []
    texts = sorted(memory.cat_file(f"/numbers/{name}").decode() for name in names)
    assert texts == sorted(f"{n}" for n in range(16))
    memory.rm("/numbers", recursive=True)


def upload_at_once(tmp_path: Path, destination: str, threads: int, each: int) -> list[str]:
    """Each thread uploads `each` files of the name film_00001_.txt; where they were put."""
    shown: list[str] = []
    place = remote.parse(destination)
    assert isinstance(place, remote.Place)
    start = threading.Barrier(threads)

    def work(first: int) -> None:
        start.wait()
        for number in range(first, first + each):
            file = tmp_path / "from" / str(number) / "film_00001_.txt"
            file.parent.mkdir(parents=True)
            file.write_text(str(number))
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            shown.append(remote.upload(file, place, digest, commit.Timer(), False, numbered=True))

    running = [threading.Thread(target=work, args=(at * each,)) for at in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return shown


def test_a_name_without_a_number_has_none_after_it() -> None:
    with pytest.raises(DeliveryFailed, match="already"):
        numbers.Row(list).after("final.mp4")


def test_names_are_tried_no_more_often_than_makes_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "MOST", 3)
    row = numbers.Row(lambda: ["x_00007_.mp4", "x_y_00009_.mp4", ".x_00011_.mp4", "x_00003_.png"])
    assert [row.after("x_00001_.mp4"), row.after("x_00008_.mp4"), row.after("x_99999_.mp4")] == [
        "x_00008_.mp4",
        "x_00009_.mp4",
        "x_100000_.mp4",
    ]
    with pytest.raises(DeliveryFailed, match="no free name"):
        row.after("x_00010_.mp4")


def test_a_claim_that_a_killed_process_left_costs_its_number_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_link)
    source = tmp_path / "x.txt"
    source.write_text("whole")
    claim = tmp_path / ".film_00001_.txt.stagexec-part"
    claim.write_text("")
    done = commit.deliver(source, tmp_path / "film_00001_.txt", numbered=True)
    assert Path(done.path).name == "film_00002_.txt"
    assert sorted(one.name for one in tmp_path.iterdir() if one.suffix == ".txt") == [
        "film_00002_.txt",
        "x.txt",
    ]
