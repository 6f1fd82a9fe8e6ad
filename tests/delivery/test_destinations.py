"""Where a delivery may go: what is allowed is what is meant, no password is shown, and nothing is lost."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import pytest
import servers

from stagexec.delivery import commit, nodes, pending, remote
from stagexec.delivery.errors import DeliveryFailed

pytestmark = pytest.mark.usefixtures("ledger")


class Folders:
    """The folders of a host, and nothing else of it."""

    def folder(self, kind: str) -> str:
        return os.path.abspath(f"/srv/comfyui/{kind}")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    (tmp_path / "shelf" / "in").mkdir(parents=True)
    return tmp_path / "shelf"


@pytest.mark.parametrize(
    "way_out",
    [
        "webdav://cloud.local/films/%2e%2e/%2E%2E/private",
        "webdav://cloud.local/films/..",
        "sftp://nas.local/films/#/../../etc",
        "sftp://nas.local/films#more/x",
        "sftp://nas.local/films?/../../etc",
        "sftp://nas.local/films\\..\\x",
        "filecache::sftp://nas.local/films",
    ],
)
def test_no_spelling_of_an_address_leads_out_of_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, way_out: str
) -> None:
    monkeypatch.setenv(nodes.DESTINATIONS_VARIABLE, "webdav://cloud.local/films;sftp://nas.local/films")
    nodes.allowed(Folders(), "sftp://nas.local/films/today")  # type: ignore[arg-type]
    with pytest.raises(DeliveryFailed):
        nodes.allowed(Folders(), way_out)  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_folder_is_the_one_that_was_allowed_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "films").mkdir()
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "films" / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    assert remote.parse(f"{tmp_path}/films/link/../x") == tmp_path / "films" / "x"


@pytest.mark.parametrize("wrong", ["sftp://u:s3/cret@nas.local/x", "sftp://u:s3cret@nas:no/x", "sftp://[x/y"])
def test_an_address_that_cannot_be_read_is_refused_without_showing_it(wrong: str) -> None:
    with pytest.raises(DeliveryFailed) as found:
        remote.parse(wrong)
    shown = "".join(traceback.format_exception(found.value))
    assert "is no address" in str(found.value)
    assert "s3" not in shown


class Telling:
    """A file system whose errors quote the address, as those of some libraries do."""

    def __init__(self, address: str) -> None:
        self.address = address

    def exists(self, path: str) -> bool:
        raise FileNotFoundError(f"{self.address}: no such share")


def test_what_a_library_says_is_shown_without_the_password(
    tmp_path: Path, clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "sftp://studio:s3%20cret@nas.local/films"
    monkeypatch.setattr(remote, "open_place", lambda place, timer: (Telling(f"{address} (s3 cret)"), "films"))
    with pytest.raises(DeliveryFailed, match="no such share") as found:
        commit.deliver(clip, tmp_path / "out" / "final.mp4", address)
    logged = "".join(traceback.format_exception(found.value))
    assert "s3%20cret" not in logged
    assert "s3 cret" not in logged


class Cancelled(Exception):
    """As hosts before 0.20 raise it: a plain exception."""


def test_a_cancel_in_an_upload_stays_the_hosts_own_exception(
    tmp_path: Path, clip: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[None] = []

    def check() -> None:
        if asked:
            raise Cancelled

    read = remote.digest_of

    def digest_of(system, path, check_now):
        asked.append(None)
        return read(system, path, check_now)

    monkeypatch.setattr(remote, "digest_of", digest_of)
    with servers.webdav(shelf) as address, pytest.raises(Cancelled):
        commit.deliver(clip, tmp_path / "out" / "final.mp4", f"{address}/in", check=check)
    assert list((shelf / "in").iterdir()) == []


def test_a_replacement_that_fails_leaves_the_file_that_was_there(
    tmp_path: Path, clip: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from webdav4.fsspec import WebdavFileSystem

    theirs = shelf / "in" / "final.mp4"
    theirs.write_bytes(b"theirs")
    move = WebdavFileSystem.mv

    failed: list[str] = []

    def fail_once(system, path1, path2, **options):
        if path2.endswith("/final.mp4") and not failed:
            failed.append(path1)
            raise OSError("the server went away")
        return move(system, path1, path2, **options)

    monkeypatch.setattr(WebdavFileSystem, "mv", fail_once)
    with servers.webdav(shelf) as address, pytest.raises(DeliveryFailed, match="went away"):
        commit.deliver(clip, tmp_path / "out" / "final.mp4", f"{address}/in", overwrite=True)
    assert failed
    assert [(one.name, one.read_bytes()) for one in (shelf / "in").iterdir()] == [("final.mp4", b"theirs")]


def test_a_file_that_appears_during_an_upload_is_not_replaced(
    tmp_path: Path, clip: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = remote.digest_of

    def digest_of(*args):
        (shelf / "in" / "final.mp4").write_bytes(b"theirs")
        return read(*args)

    monkeypatch.setattr(remote, "digest_of", digest_of)
    with servers.sftp(shelf) as address, pytest.raises(DeliveryFailed, match="already"):
        commit.deliver(clip, tmp_path / "out" / "final.mp4", f"{address}/in")
    assert [(one.name, one.read_bytes()) for one in (shelf / "in").iterdir()] == [("final.mp4", b"theirs")]


def test_a_temporary_file_that_cannot_be_removed_stays_noted(tmp_path: Path, ledger: Path) -> None:
    part = pending.part_name(tmp_path / "x.mp4")
    with pending.noted(part, None):
        part.write_bytes(b"half")
    assert len(list((ledger / "pending").iterdir())) == 1
