"""Encode Video without a host, with the real ffmpeg: whole files, and every way to fail leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import av
import pytest
import torch

from stagexec.delivery import encode, ffmpeg, pending
from stagexec.delivery.errors import EncodeFailed
from stagexec.delivery.verify import verify

pytestmark = pytest.mark.usefixtures("ledger")
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")


def moving(count: int = 12, height: int = 48, width: int = 64, channels: int = 3) -> torch.Tensor:
    """Frames of a ramp that moves, 0 to 1."""
    ramp = torch.linspace(0, 1, width).expand(height, width)
    return torch.stack([(ramp + at / count).remainder(1.0) for at in range(count)])[..., None].repeat(
        1, 1, 1, channels
    )


def noise(count: int, height: int = 240, width: int = 320) -> torch.Tensor:
    return torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8)


def sound(seconds: float = 0.5, rate: int = 16000) -> dict:
    wave = torch.sin(torch.arange(int(seconds * rate)) * 0.2)
    return {"waveform": wave.reshape(1, 1, -1).repeat(1, 2, 1), "sample_rate": rate}


def left(folder: Path, ledger: Path) -> list[str]:
    """Files in the folder, and notes of temporary files."""
    return [one.name for one in folder.rglob("*") if one.is_file() and ledger not in one.parents] + [
        one.name for one in (ledger / "pending").glob("*")
    ]


class Watcher(encode.Quiet):
    def __init__(self, cancel_at: int | None = None) -> None:
        self.seen: list[int] = []
        self.cancel_at = cancel_at
        self.flag = False

    def progress(self, done: int, total: int) -> None:
        self.seen.append(done)
        self.flag = self.flag or (self.cancel_at is not None and len(self.seen) >= self.cancel_at)

    def cancelled(self) -> bool:
        return self.flag

    def raise_if_cancelled(self) -> None:
        if self.flag:
            raise KeyboardInterrupt


def test_every_frame_arrives_and_the_file_is_whole(tmp_path: Path, ledger: Path) -> None:
    target = tmp_path / "out" / "clip.mp4"
    made = encode.encode(moving(12), sound(), ffmpeg.Settings(fps=12), target)
    assert (made["path"], made["frames"]) == (str(target), 12)
    with av.open(str(target)) as opened:
        kinds = {stream.type: stream.codec_context.name for stream in opened.streams}
        assert sum(1 for _ in opened.decode(video=0)) == 12
    assert kinds == {"video": "h264", "audio": "aac"}
    assert verify(target).state == "verified"
    assert left(tmp_path, ledger) == ["clip.mp4"]


@pytest.mark.parametrize(
    ("codec", "container", "more"),
    [
        ("libx264", "mkv", {"preset": "ultrafast", "quality": 30}),
        ("libx265", "mp4", {"preset": "ultrafast"}),
        ("libvpx-vp9", "webm", {"preset": "realtime", "quality": 40}),
        ("libsvtav1", "mp4", {"preset": "12", "quality": 50}),
        ("prores_ks", "mov", {"pixel_format": "yuv422p10le"}),
        ("ffv1", "mkv", {"pixel_format": "yuv444p"}),
        ("mpeg4", "mp4", {"quality": 5, "threads": 1}),
        ("libx264", "mp4", {"filters": "hflip,scale=32:24"}),
    ],
)
def test_codecs_and_settings_that_are_offered_work(
    tmp_path: Path, codec: str, container: str, more: dict
) -> None:
    target = tmp_path / f"clip.{container}"
    settings = ffmpeg.Settings(codec=codec, container=container, **more)
    encode.encode(moving(5), None, settings, target)
    assert verify(target).state == "verified"


def test_pixels_survive_a_lossless_encode_exactly(tmp_path: Path) -> None:
    frames = noise(3, 24, 32)
    target = tmp_path / "exact.mkv"
    encode.encode(frames, None, ffmpeg.Settings(codec="ffv1", container="mkv", pixel_format="bgr0"), target)
    with av.open(str(target)) as opened:
        back = [torch.from_numpy(frame.to_ndarray(format="rgb24")) for frame in opened.decode(video=0)]
    assert torch.equal(torch.stack(back), frames)


def test_floats_are_rounded_as_their_bytes_were(tmp_path: Path) -> None:
    frames = noise(2, 24, 32)
    target = tmp_path / "exact.mkv"
    settings = ffmpeg.Settings(codec="ffv1", container="mkv", pixel_format="bgr0")
    encode.encode(frames.float() / 255, None, settings, target)
    with av.open(str(target)) as opened:
        back = [torch.from_numpy(frame.to_ndarray(format="rgb24")) for frame in opened.decode(video=0)]
    assert torch.equal(torch.stack(back), frames)


def test_odd_sizes_are_padded_for_formats_that_halve_colour(tmp_path: Path) -> None:
    target = tmp_path / "odd.mp4"
    encode.encode(moving(3, 33, 47), None, ffmpeg.Settings(), target)
    with av.open(str(target)) as opened:
        assert (opened.streams.video[0].width, opened.streams.video[0].height) == (48, 34)


def test_progress_ends_at_the_number_of_frames(tmp_path: Path) -> None:
    watcher = Watcher()
    encode.encode(moving(30), None, ffmpeg.Settings(), tmp_path / "clip.mp4", watcher)
    assert watcher.seen == sorted(watcher.seen)
    assert watcher.seen[-1] == 30


def test_no_second_copy_of_the_batch_is_made(tmp_path: Path) -> None:
    code = f"""
import torch, resource
from pathlib import Path
from stagexec.delivery import encode, ffmpeg
frames = torch.randint(0, 256, (60, 720, 1280, 3), dtype=torch.uint8)
settings = ffmpeg.Settings(preset="ultrafast")
encode.encode(frames[:2], None, settings, Path({str(tmp_path)!r}) / "warm.mp4")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
encode.encode(frames, None, settings, Path({str(tmp_path)!r}) / "clip.mp4")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    if sys.platform == "win32":
        pytest.skip("peak memory is read as POSIX tells it")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * (1 if sys.platform == "darwin" else 1024) <= 64 << 20


# --- the failure matrix ---


def refused(tmp_path: Path, ledger: Path, settings: ffmpeg.Settings, images=None, audio=None) -> EncodeFailed:
    """The failure of an encode, after a check that nothing is left of it."""
    with pytest.raises(EncodeFailed) as found:
        encode.encode(moving() if images is None else images, audio, settings, tmp_path / "clip.mp4")
    assert left(tmp_path, ledger) == []
    return found.value


def test_a_missing_binary_is_named(tmp_path: Path, ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEXEC_FFMPEG", str(tmp_path / "no-ffmpeg"))
    error = refused(tmp_path, ledger, ffmpeg.Settings())
    assert (error.phase, error.exit_code, error.stagexec_cause) == ("spawn", None, "encode_failed")


def test_an_unknown_encoder_fails_in_phase_open_with_ffmpeg_s_words(tmp_path: Path, ledger: Path) -> None:
    error = refused(tmp_path, ledger, ffmpeg.Settings(codec="no_such_encoder"))
    assert error.phase == "open"
    assert error.exit_code not in (0, None)
    assert "no_such_encoder" in str(error)


def test_a_bad_filter_fails_in_phase_open(tmp_path: Path, ledger: Path) -> None:
    assert refused(tmp_path, ledger, ffmpeg.Settings(filters="no_such_filter=1")).phase == "open"


@POSIX
def test_a_broken_pipe_midway_is_a_failure_with_its_exit_code(
    tmp_path: Path, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "ffmpeg"
    fake.write_text("#!/bin/sh\nhead -c 20000 >/dev/null\necho 'frame=1'\necho 'lost heart' >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setenv("STAGEXEC_FFMPEG", str(fake))
    with pytest.raises(EncodeFailed) as found:
        encode.encode(noise(60), None, ffmpeg.Settings(), tmp_path / "clip.mp4")
    assert (found.value.phase, found.value.exit_code) == ("encode", 3)
    assert "lost heart" in str(found.value)
    assert left(tmp_path, ledger) == ["ffmpeg"]


@POSIX
def test_a_killed_child_is_a_failure(tmp_path: Path, ledger: Path) -> None:
    class Killer(encode.Quiet):
        def progress(self, done: int, total: int) -> None:
            for number in children():
                os.kill(number, signal.SIGKILL)

    with pytest.raises(EncodeFailed) as found:
        encode.encode(noise(60), None, ffmpeg.Settings(), tmp_path / "clip.mp4", Killer())
    assert found.value.exit_code == -9
    assert left(tmp_path, ledger) == []


def children() -> list[int]:
    """Processes of this one that are called ffmpeg."""
    import psutil

    return [one.pid for one in psutil.Process().children() if "ffmpeg" in one.name()]


def test_a_cancel_ends_the_child_and_removes_its_file(tmp_path: Path, ledger: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        encode.encode(noise(200), None, ffmpeg.Settings(), tmp_path / "clip.mp4", Watcher(cancel_at=5))
    assert left(tmp_path, ledger) == []
    assert children() == []


@POSIX
def test_a_cancel_gets_through_when_ffmpeg_takes_no_more_frames(
    tmp_path: Path, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "ffmpeg"
    fake.write_text("#!/bin/sh\nexec sleep 600\n")
    fake.chmod(0o755)
    monkeypatch.setenv("STAGEXEC_FFMPEG", str(fake))
    watcher = Watcher()
    threading.Timer(0.5, lambda: setattr(watcher, "flag", True)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        encode.encode(noise(100), None, ffmpeg.Settings(), tmp_path / "clip.mp4", watcher)
    assert time.monotonic() - start < 20
    assert left(tmp_path, ledger) == ["ffmpeg"]


LIMITED = """
import resource, sys, torch
from pathlib import Path
from stagexec.delivery import encode, ffmpeg
from stagexec.delivery.errors import EncodeFailed
frames = torch.randint(0, 256, (40, 240, 320, 3), dtype=torch.uint8)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    encode.encode(frames, None, ffmpeg.Settings(), Path(sys.argv[1]) / "clip.mp4")
except EncodeFailed as error:
    print(error.stagexec_cause, error.exit_code)
"""


@POSIX
def test_a_limit_on_file_sizes_is_a_full_disk(tmp_path: Path, ledger: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith("disk_full"), (done.stdout, done.stderr)
    assert left(tmp_path, ledger) == []


def test_a_full_disk_is_named(small_disk: Path, ledger: Path) -> None:
    with pytest.raises(EncodeFailed) as found:
        encode.encode(noise(60), None, ffmpeg.Settings(quality=0), small_disk / "clip.mp4")
    assert found.value.stagexec_cause == "disk_full"
    assert list(small_disk.iterdir()) == []


def test_sound_that_is_not_finite_is_refused_before_ffmpeg_starts(tmp_path: Path, ledger: Path) -> None:
    bad = sound()
    bad["waveform"][0, 1, 77] = float("nan")
    error = refused(tmp_path, ledger, ffmpeg.Settings(), audio=bad)
    assert (error.phase, error.stagexec_cause) == ("input", "artifact_nonfinite")


def test_a_frame_that_is_not_finite_is_named(tmp_path: Path, ledger: Path) -> None:
    frames = moving(9)
    frames[7, 3, 3, 1] = float("inf")
    error = refused(tmp_path, ledger, ffmpeg.Settings(), images=frames)
    assert error.stagexec_cause == "artifact_nonfinite"
    assert "frame 7" in str(error)


def test_images_of_no_known_kind_are_refused(tmp_path: Path, ledger: Path) -> None:
    assert refused(tmp_path, ledger, ffmpeg.Settings(), images=torch.zeros(2, 8, 8, 5)).phase == "input"
    assert refused(tmp_path, ledger, ffmpeg.Settings(), images=torch.zeros(0, 8, 8, 3)).phase == "input"


@POSIX
def test_kill_9_in_an_encode_leaves_no_final_name_and_the_next_start_names_the_rest(
    tmp_path: Path, ledger: Path
) -> None:
    code = """
import sys, torch
from pathlib import Path
from stagexec.delivery import encode, ffmpeg
class Slow(encode.Quiet):
    def progress(self, done, total):
        print(done, flush=True)
frames = torch.randint(0, 256, (4000, 240, 320, 3), dtype=torch.uint8)
encode.encode(frames, None, ffmpeg.Settings(), Path(sys.argv[1]) / "clip.mp4", Slow())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "clip.mp4").exists()
    (one,) = [found for found in pending.left(ledger) if found.bytes is not None]
    assert one.target == str(tmp_path / "clip.mp4")
    assert Path(one.path).exists()
    removed, kept = pending.clean(ledger)
    assert ([r.path for r in removed], kept) == ([one.path], [])
    assert left(tmp_path, ledger) == []


def test_an_encode_does_without_a_wider_pipe_where_none_is_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "PIPE_BYTES", 0xFFFFFFFF)
    target = tmp_path / "x.mp4"
    encode.encode(moving(), None, ffmpeg.Settings(codec="mpeg4"), target)
    assert verify(target).state == "verified"
