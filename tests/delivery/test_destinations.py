"""Where a delivery may go: what is allowed is what is meant, no password is shown, and nothing is lost."""

from __future__ import annotations

import http.server
import os
import sys
import threading
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


LISTED = "webdav://cloud.local/films;sftp://nas.local/films;s3://reels/out;webdav://[2001:db8::1]/films"


@pytest.mark.parametrize(
    "same",
    [
        "webdav://cloud.local/films",
        "webdav://cloud.local/films/",
        "webdav://cloud.local/films/a b",
        "webdav://cloud.local/films/a%20b/100%25",
        "WebDAV://Cloud.LOCAL./films/x",
        "davs://cloud.local:443/films/x",
        "webdav+https://studio:s3cret@cloud.local/films/x",
        "webdav://cloud.local/%66ilms/x",
        "ssh://nas.local:22/films/x",
        "sftp://nas.local/films/caf\u00e9",
        "s3://reels/out/2024",
        "webdav://[2001:0db8:0:0:0:0:0:1]/films/x",
    ],
)
def test_another_spelling_of_what_is_allowed_is_allowed(monkeypatch: pytest.MonkeyPatch, same: str) -> None:
    monkeypatch.setenv(nodes.DESTINATIONS_VARIABLE, LISTED)
    assert nodes.allowed(Folders(), same) is None  # type: ignore[arg-type,func-returns-value]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_folder_counts_as_the_one_that_its_links_lead_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("films", "elsewhere", "real"):
        (tmp_path / name).mkdir()
    (tmp_path / "films" / "way_out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "shortcut").symlink_to(tmp_path / "real")
    monkeypatch.setenv(nodes.DESTINATIONS_VARIABLE, f"{tmp_path}/films;{tmp_path}/shortcut")
    nodes.allowed(Folders(), f"{tmp_path}/films/today")  # type: ignore[arg-type]
    nodes.allowed(Folders(), f"{tmp_path}/real/x")  # type: ignore[arg-type]
    for refused in ("films/way_out", "films/way_out/deep", "films/../elsewhere", "elsewhere"):
        with pytest.raises(DeliveryFailed, match="not allowed"):
            nodes.allowed(Folders(), f"{tmp_path}/{refused}")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["/srv/\0films", "/srv/\ud800", "file://host/films"])
def test_a_folder_that_cannot_be_one_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv(nodes.DESTINATIONS_VARIABLE, "*")
    with pytest.raises(DeliveryFailed):
        nodes.allowed(Folders(), wrong)  # type: ignore[arg-type]


def test_an_entry_that_cannot_be_read_allows_nothing_and_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(nodes.DESTINATIONS_VARIABLE, "webdav://cloud.local/films/..;https://cloud.local")
    with pytest.raises(DeliveryFailed):
        nodes.allowed(Folders(), "webdav://cloud.local/films")  # type: ignore[arg-type]
    assert caplog.text.count("allows nothing") == 2


def test_a_redirect_is_not_followed(tmp_path: Path, clip: Path) -> None:
    asked: list[str] = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_response(307)
            self.send_header("Location", "/elsewhere" + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_PROPFIND = do_HEAD = do_MKCOL = do_OPTIONS = do_PUT  # noqa: N815 (the library's names)

        def log_message(self, *_args: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"webdav+http://127.0.0.1:{server.server_port}/in"
        with pytest.raises(DeliveryFailed, match="redirect"):
            commit.deliver(clip, tmp_path / "out" / "final.mp4", address)
        server.shutdown()
    assert asked
    assert not [one for one in asked if "elsewhere" in one]


def test_a_file_name_that_a_server_would_undo_is_not_uploaded(
    tmp_path: Path, clip: Path, shelf: Path
) -> None:
    final = tmp_path / "out" / "x%2f..%2f..%2fy.mp4"
    with servers.webdav(shelf) as address, pytest.raises(DeliveryFailed, match="% signs"):
        commit.deliver(clip, final, f"{address}/in")
    assert [one.name for one in shelf.rglob("*")] == ["in"]
    assert final.is_file()


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
        "webdav://cloud.local/films/%252e%252e/private",
        "webdav://cloud.local/films/%25252e%25252e/private",
        "webdav://cloud.local/films/%252525252e%252525252e/private",
        "webdav://cloud.local/films/%2e./private",
        "webdav://cloud.local/films/..%2fprivate",
        "webdav://cloud.local/films%2f..%2fprivate",
        "webdav://cloud.local/films/x%2fy",
        "webdav://cloud.local/films/x%252fy",
        "webdav://cloud.local/films/%5c..%5cprivate",
        "webdav://cloud.local/films/\uff0e\uff0e/private",
        "webdav://cloud.local/films/\u2025/private",
        "webdav://cloud.local/films/..\uff0fprivate",
        "webdav://cloud.local/films/.. /private",
        "webdav://cloud.local/films/. ./private",
        "webdav://cloud.local/films/.../private",
        "webdav://cloud.local/films/x%00y",
        "webdav://cloud.local/films/x\ny",
        "webdav://cloud.local/films/x%0d%0ay",
        "webdav://cloud.local/films/\u202ex",
        "webdav://cloud.local/filmsmore",
        "webdav://cloud.local/film",
        "webdav://cloud.local/Films",
        "webdav://cloud.local//films",
        "webdav://cloud.local",
        "webdav://cloud.local:444/films",
        "webdav+http://cloud.local/films",
        "webdav://cloud.local.evil.example/films",
        "webdav://cloud.local@evil.example/films",
        "webdav://evil.example\\@cloud.local/films",
        "webdav://a@b@cloud.local/films",
        "webdav://cloud.local%2eevil.example/films",
        "webdav://cl\u043eud.local/films",
        "webdav://cloud\u3002local/films",
        "webdav:///cloud.local/films",
        "sftp://nas.local/films::file:///etc",
        "sftp://[::1]/films",
        "sftp://nas.local:2222/films",
        "s3://Reels/out",
        "s3://reels2/out",
        "s3://reels/outside",
        "s3://reels/out%2fx/../y",
        "s3://reels/%6fut",
        "s3://key@reels/out",
        "s3://reels:443/out",
        "http://cloud.local/films",
        "https://cloud.local/films",
        "local:///srv/films",
        "://cloud.local/films",
    ],
)
def test_no_spelling_of_an_address_leads_out_of_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, way_out: str
) -> None:
    monkeypatch.setenv(nodes.DESTINATIONS_VARIABLE, LISTED)
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
