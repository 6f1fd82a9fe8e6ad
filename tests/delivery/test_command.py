"""Command lines of encoder processes, and what such processes say."""

from __future__ import annotations

import io
import os

import pytest

from stagexec.delivery import command, ffmpeg, saying
from stagexec.delivery.listen import Heard, listen

RAW = ["ffmpeg", "-v", "error", "-f", "rawvideo", "-s", "64x64", "-i", "-"]


@pytest.mark.parametrize(
    ("words", "role", "target"),
    [
        ([*RAW, "-c:v", "libx264", "/a/b.mp4"], "encode", "/a/b.mp4"),
        ([*RAW, "-c:v", "libx264", "b.mp4", "-progress", "pipe:1", "-y"], "encode", "b.mp4"),
        ([*RAW, "-f", "yuv4mpegpipe", "-"], "encode", "-"),
        (["ffmpeg", "-i", "a.mp4", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], "decode", "-"),
        (["ffmpeg", "-i", "a.mp4", "-f", "f32le", "pipe:1"], "decode", "pipe:1"),
        (["ffmpeg", "-i", "a.mp4", "-f", "null", "-"], "analyse", "-"),
        (["ffmpeg", "-i", "a.mp4"], "query", None),
        (["ffmpeg", "-version"], "query", None),
        ("ffmpeg -hide_banner -encoders", "query", None),
        ("ffmpeg -i in.mp4 -c copy 'my film.mkv'", "encode", "my film.mkv"),
        ([b"/opt/ffmpeg-linux-x86_64-v7.1", b"-i", b"a.wav", b"b.flac"], "encode", "b.flac"),
        (["C:\\tools\\FFMPEG.EXE", "-i", "a.wav", "b.flac"], "encode", "b.flac"),
        (["gifski", "-q", "-o", "x.gif", "-"], "encode", "x.gif"),
    ],
)
def test_the_role_of_a_process_is_read_off_its_command(words, role: str, target: str | None) -> None:
    found = command.read(words)
    assert found is not None
    assert (found.role, found.target) == (role, target)


@pytest.mark.parametrize("words", [["ls", "ffmpeg"], ["ffprobe", "a.mp4"], [], "", ["python", "-m", "x"]])
def test_other_programs_are_not_watched(words) -> None:
    assert command.read(words) is None


def test_arguments_that_can_be_read_only_once_are_left_to_the_caller() -> None:
    words = iter(["ffmpeg", "-i", "a.wav", "b.flac"])
    assert command.read(words) is None
    assert list(words) == ["ffmpeg", "-i", "a.wav", "b.flac"]


def test_the_executable_counts_and_not_the_first_word() -> None:
    assert command.read(["encoder", "-i", "a", "b.mp4"], executable="/usr/bin/ffmpeg") is not None
    assert command.read(["ffmpeg", "-i", "a", "b.mp4"], executable="/bin/true") is None


def test_copying_packets_is_the_part_mux() -> None:
    found = command.read(["ffmpeg", "-i", "a.mp4", "-i", "-", "-c:v", "copy", "-c:a", "aac", "b.mp4"])
    assert found is not None
    assert found.part == "mux"


def test_the_command_of_our_own_node_is_read_as_an_encode(tmp_path) -> None:
    words = ffmpeg.command(
        "ffmpeg", ffmpeg.Settings(), ffmpeg.Frames("rgb24", 64, 64), None, tmp_path / "x.mp4"
    )
    found = command.read(words)
    assert found is not None
    assert (found.role, found.target, found.progress) == ("encode", str(tmp_path / "x.mp4"), "stdout")


def test_a_template_knows_settings_and_neither_names_nor_texts() -> None:
    one = command.template_of([*RAW, "-metadata", "comment=secret", "-crf", "23", "/home/me/a.mp4"])
    same = command.template_of([*RAW, "-metadata", "comment=other", "-crf", "23", "/tmp/b.mp4"])
    other = command.template_of([*RAW, "-metadata", "comment=secret", "-crf", "24", "/home/me/a.mp4"])
    assert one == same != other


SAID = b"""Input #0, matroska, from '/home/me/private film.mkv':
    prompt          : {"text": "a secret place"}
[vost#0:0/libfoo @ 0x55d0c0ffee] Unknown encoder 'libfoo'
[out#0/mp4 @ 0x55d0c0ffef] Error opening output file /home/me/out.mp4.
"""


def test_lines_are_kept_without_metadata_paths_and_texts() -> None:
    kept = "\n".join(saying.lines_of(SAID))
    assert "Unknown encoder" in kept
    assert not [word for word in ("libfoo", "secret", "/home", "private", "0x55") if word in kept]


def test_names_of_files_without_a_slash_are_left_out_too() -> None:
    names = saying.file_names(["ffmpeg", "-i", "holiday.mp4", "-crf", "23"])
    assert saying.lines_of(b"Error opening input file holiday.mp4.", names) == [
        "Error opening input file <name>."
    ]


def test_with_leave_to_keep_texts_lines_are_kept_as_they_are() -> None:
    assert "/home/me/out.mp4" in "\n".join(saying.lines_of(SAID, keep_text=True))


def test_progress_is_the_last_that_was_told() -> None:
    told = b"frame=3\nspeed=0.5x\nprogress=continue\nframe=9\ntotal_size=700\nspeed=1.5x\nprogress=end\n"
    assert saying.progress_of(told) == {"frames": 9, "speed": "1.5x", "bytes": 700}
    assert saying.progress_of(b"frame=   12 fps=0.0 q=-1.0 size=  10KiB speed=  3x\r") == {
        "frames": 12,
        "speed": "3x",
    }
    assert saying.progress_of(b"frame=N/A\n") == {}


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_listened_pipe_gives_its_owner_every_byte_and_remembers_the_end(text: bool, buffering: int) -> None:
    reading, writing = os.pipe()
    stream = open(reading, "rb", buffering)  # noqa: SIM115 (closed through what listens)
    if text and buffering:
        stream = io.TextIOWrapper(stream, encoding="utf-8")
    heard = Heard()
    heard_stream = listen(stream, heard)
    data = b"".join(b"line %d\n" % at for at in range(200))
    os.write(writing, data)
    os.close(writing)
    with heard_stream:
        assert heard_stream.fileno() == reading
        got = heard_stream.read()
    assert (got.encode() if isinstance(got, str) else got) == data
    assert heard.tail == data
    assert heard.ended
    with pytest.raises(OSError):
        os.fstat(reading)


def test_a_stream_of_another_kind_is_left_alone() -> None:
    stream = io.BytesIO(b"x")
    assert listen(stream, Heard()) is stream
