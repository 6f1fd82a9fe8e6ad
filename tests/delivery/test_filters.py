"""Filters that a workflow may ask for, and those that would open files of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stagexec.delivery import encode, ffmpeg, filters, nodes
from stagexec.delivery.errors import EncodeFailed


@pytest.fixture(autouse=True)
def nothing_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(filters.FILTERS_VARIABLE, raising=False)
    monkeypatch.setenv("STAGEXEC_LEDGER", str(tmp_path / "ledger"))


@pytest.mark.parametrize(
    "graph",
    [
        "",
        "scale=640:-2:flags=lanczos,unsharp",
        "[in]split[a][b];[a]hflip[c];[c][b]hstack[out]",
        "fps=30,select='between(n,1,20)',setpts=N/30/TB",
        "sws_flags=bicubic;scale@small=iw/2:ih/2",
    ],
)
def test_filters_that_open_nothing_are_taken(graph: str) -> None:
    filters.check(graph)


@pytest.mark.parametrize(
    "graph",
    [
        "metadata=mode=print:file=/tmp/x",
        "scale=64:64,movie=/etc/passwd[a]",
        "[in]'movie'=/etc/passwd[out]",
        "hflip , mo\\vie=/etc/passwd",
        "[1,2]movie=/etc/passwd",
        "movie@scale=/etc/passwd",
        "zmq",
        "scale=w='64,movie=/etc/passwd'",
        "scale=/w=/etc/passwd",
        "scale=h=64:'/'w=/etc/passwd",
    ],
)
def test_filters_that_open_files_are_refused_in_every_spelling(graph: str) -> None:
    with pytest.raises(EncodeFailed):
        filters.check(graph)


def test_whoever_starts_the_server_allows_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(filters.FILTERS_VARIABLE, "subtitles; lut3d")
    filters.check("subtitles=a.srt,lut3d=b.cube")
    with pytest.raises(EncodeFailed, match="movie"):
        filters.check("movie=x")
    monkeypatch.setenv(filters.FILTERS_VARIABLE, "*")
    filters.check("movie=x")


class Host(encode.Quiet):
    def __init__(self, folder: Path) -> None:
        self.root = folder

    def folder(self, kind: str) -> str:
        return str(self.root / kind)


def test_the_node_writes_no_file_that_a_filter_names(tmp_path: Path) -> None:
    stolen = tmp_path / "written_by_a_filter"
    settings = ffmpeg.Settings(
        codec="mpeg4", filters=f"metadata=add:key=a:value=b,metadata=print:file={stolen}"
    )
    with pytest.raises(EncodeFailed, match="metadata"):
        nodes.encode_video(Host(tmp_path), torch.rand(4, 32, 32, 3), None, settings)  # type: ignore[arg-type]
    assert not stolen.exists()


def test_a_filter_that_ends_early_is_no_failure_however_many_frames_are_left(tmp_path: Path) -> None:
    import av

    target = tmp_path / "x.mp4"
    settings = ffmpeg.Settings(codec="mpeg4", filters="trim=end_frame=5")
    encode.encode(torch.zeros(400, 240, 320, 3, dtype=torch.uint8), None, settings, target)
    with av.open(str(target)) as opened:
        assert sum(1 for _ in opened.decode(video=0)) == 5
