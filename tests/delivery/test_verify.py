import hashlib
import itertools
import json
import os
import struct
import subprocess
import sys
import time
import zlib

import pytest
import samples
from PIL import Image, ImageFile

from stagexec.delivery import media, structure
from stagexec.delivery.verify import Verifier, verify

IMAGES = [
    ("still.png", {}),
    ("moving.png", {"frames": 3}),
    ("still.jpg", {}),
    ("still.webp", {}),
    ("moving.webp", {"frames": 3}),
    ("moving.gif", {"frames": 3}),
    ("still.bmp", {}),
    ("pages.tiff", {"frames": 3}),
]
VIDEOS = [
    ("plain.mp4", "libx264", {}),
    ("moov_first.mp4", "libx264", {"movflags": "faststart"}),
    ("fragments.mp4", "libx264", {"movflags": "frag_keyframe+empty_moov"}),
    ("plain.webm", "libvpx", {}),
    ("plain.mkv", "libx264", {}),
    ("plain.mov", "libx264", {}),
    ("plain.avi", "mpeg4", {}),
]
SOUNDS = [
    ("plain.flac", "flac"),
    ("plain.mp3", "libmp3lame"),
    ("plain.opus", "libopus"),
    ("plain.ogg", "libopus"),
    ("plain.wav", "pcm_s16le"),
    ("plain.m4a", "aac"),
]
CUTS = (0.2, 0.5, 0.9, 0.99)


def states_of_cuts(path):
    data = path.read_bytes()
    states = []
    # The last byte of a TIFF belongs to a tag, not to the picture: without it every page decodes.
    last = () if path.suffix == ".tiff" else (len(data) - 1,)
    for end in (48, *(int(len(data) * share) for share in CUTS), *last):
        path.write_bytes(data[:end])
        states.append(verify(path).state)
    return states


@pytest.mark.filterwarnings("ignore:Truncated File Read", "ignore:Corrupt EXIF data")
@pytest.mark.parametrize(("name", "options"), IMAGES)
def test_a_whole_image_is_verified_with_every_frame_and_a_cut_one_is_corrupt(tmp_path, name, options):
    path = samples.image(tmp_path / name, **options)
    check = verify(path)
    assert (check.state, check.reason, check.media) == ("verified", None, "image")
    assert (check.facts["width"], check.facts["height"]) == (32, 24)
    assert check.facts["frames"] == options.get("frames", 1)
    assert set(states_of_cuts(path)) == {"corrupt"}


@pytest.mark.parametrize(("name", "codec", "options"), VIDEOS)
def test_a_whole_video_is_verified_by_its_packets_and_a_cut_one_is_corrupt(tmp_path, name, codec, options):
    path = samples.video(tmp_path / name, codec, **options)
    check = verify(path)
    assert (check.state, check.reason, check.media) == ("verified", None, "video")
    assert (check.facts["packets"], check.facts["width"], check.facts["height"]) == (48, 64, 48)
    assert check.facts["duration_ns"] == 2_000_000_000
    assert set(states_of_cuts(path)) == {"corrupt"}


@pytest.mark.parametrize(("name", "codec"), SOUNDS)
def test_a_whole_sound_is_verified_and_a_cut_one_is_corrupt(tmp_path, name, codec):
    path = samples.sound(tmp_path / name, codec)
    check = verify(path)
    assert (check.state, check.reason, check.media) == ("verified", None, "audio")
    assert check.facts["packets"] > 1
    assert set(states_of_cuts(path)) == {"corrupt"}


def test_a_video_without_its_moov_is_corrupt(tmp_path):
    path = samples.video(tmp_path / "killed.mp4", "libx264")
    data = path.read_bytes()
    start = data.index(b"moov") - 4
    path.write_bytes(data[:start])
    check = verify(path)
    assert check.state == "corrupt"
    assert check.reason.startswith("does not open or read")


def test_a_video_that_was_never_finished_is_never_verified(tmp_path):
    path = samples.video(tmp_path / "live.webm", "libvpx", live="1")
    check = verify(path)
    assert (check.state, check.facts["packets"]) == ("unverified", 48)
    assert "never finished" in check.reason
    assert verify(samples.cut(path, 0.5)).state == "unverified"


def test_a_duration_far_beyond_the_packets_is_corrupt(tmp_path):
    path = samples.video(tmp_path / "lies.webm", "libvpx")
    data = path.read_bytes()
    at = data.index(b"\x44\x89\x88")
    path.write_bytes(data[: at + 3] + struct.pack(">d", 60_000.0) + data[at + 11 :])
    check = verify(path)
    assert (check.state, check.facts["duration_ns"]) == ("corrupt", 60_000_000_000)
    assert "before the duration it declares" in check.reason


def test_one_frame_a_second_is_not_taken_for_a_cut(tmp_path):
    assert verify(samples.video(tmp_path / "slow.mp4", "libx264", frames=3, rate=1)).state == "verified"
    assert verify(samples.video(tmp_path / "single.webm", "libvpx", frames=1, rate=8)).state == "verified"


def test_a_playlist_under_a_videos_name_is_not_followed(tmp_path):
    path = tmp_path / "list.mp4"
    path.write_text("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/part.ts\n#EXT-X-ENDLIST\n")
    check = verify(path)
    assert check.state == "corrupt"
    assert "does not open" in check.reason


def test_text_under_an_images_name_is_corrupt(tmp_path):
    path = tmp_path / "note.png"
    path.write_text("not a picture at all")
    assert verify(path).state == "corrupt"


def test_a_flipped_bit_in_a_png_is_corrupt(tmp_path):
    path = samples.image(tmp_path / "bit.png")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert verify(path).reason == "PNG has a wrong checksum in a IDAT chunk"


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("a.png", "corrupt"),
        ("a.jpg", "corrupt"),
        ("a.webp", "corrupt"),
        ("a.gif", "corrupt"),
        ("a.bmp", "unverified"),
    ],
)
def test_pillow_told_to_accept_truncated_images_fools_nobody(tmp_path, monkeypatch, name, state):
    path = samples.cut(samples.image(tmp_path / name), 0.9)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert verify(path).state == state
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_an_image_beyond_pillows_pixel_limit_is_unverified_and_the_limit_stays(tmp_path):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    limit = Image.MAX_IMAGE_PIXELS
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path = tmp_path / "bomb.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    )
    check = verify(path)
    assert check.state == "unverified"
    assert check.reason.startswith("larger than Pillow's pixel limit")
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(
    ("name", "module", "reason"),
    [("a.png", "PIL", "Pillow is not installed"), ("a.mp4", "av", "PyAV is not installed")],
)
def test_without_its_library_a_whole_file_is_unverified(tmp_path, monkeypatch, name, module, reason):
    path = samples.image(tmp_path / name) if name == "a.png" else samples.video(tmp_path / name, "libx264")
    monkeypatch.setitem(sys.modules, module, None)
    check = verify(path)
    assert (check.state, check.reason, len(check.sha256)) == ("unverified", reason, 64)


def safetensors(offsets=(0, 8), data=8, cut=0):
    header = json.dumps(
        {"__metadata__": {"a": "b"}, "x": {"dtype": "F32", "shape": [2], "data_offsets": offsets}}
    )
    raw = struct.pack("<Q", len(header)) + header.encode() + bytes(data)
    return raw[: len(raw) - cut]


@pytest.mark.parametrize(
    ("raw", "state"),
    [
        (safetensors(), "verified"),
        (safetensors(cut=1), "corrupt"),
        (safetensors(data=9), "corrupt"),
        (safetensors(cut=20), "corrupt"),
        (safetensors(offsets=(8, 0)), "corrupt"),
        (safetensors(offsets="ab"), "corrupt"),
        (b"\xff" * 100, "corrupt"),
        (b"short", "corrupt"),
        (struct.pack("<Q", 2) + b"[]", "corrupt"),
        (struct.pack("<Q", 2) + b"{}", "verified"),
    ],
)
@pytest.mark.parametrize("suffix", [".safetensors", ".latent"])
def test_a_tensor_file_is_as_long_as_its_header_says(tmp_path, raw, state, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(raw)
    assert verify(path).state == state


@pytest.mark.parametrize(
    ("name", "raw", "state"),
    [
        ("a.txt", "grüß dich".encode(), "verified"),
        ("a.txt", "grüß dich".encode()[:3], "corrupt"),
        ("a.txt", b"\xff\xfe", "corrupt"),
        ("a.json", b'{"a": [1]}', "verified"),
        ("a.json", b"\xef\xbb\xbf{}", "verified"),
        ("a.json", b'{"a": [1', "corrupt"),
        ("a.svg", b'<svg xmlns="http://www.w3.org/2000/svg"><g/></svg>', "verified"),
        ("a.svg", b'<svg xmlns="http://www.w3.org/2000/svg"><g/>', "corrupt"),
        ("a.svg", b"<html></html>", "corrupt"),
        ("a.glb", b"glTF", "unverified"),
        ("a", b"x", "unverified"),
    ],
)
def test_text_is_parsed_and_what_has_no_check_is_never_verified(tmp_path, name, raw, state):
    path = tmp_path / name
    path.write_bytes(raw)
    assert verify(path).state == state


@pytest.mark.parametrize("name", ["a.png", "a.mp4", "a.txt", "a.glb"])
def test_an_empty_file_is_corrupt(tmp_path, name):
    (tmp_path / name).touch()
    check = verify(tmp_path / name)
    assert (check.state, check.reason, check.bytes) == ("corrupt", "the file is empty", 0)


def test_a_file_that_is_not_there_is_missing(tmp_path):
    assert verify(tmp_path / "gone.png").state == "missing"
    (tmp_path / "file").touch()
    assert verify(tmp_path / "file" / "below.png").state == "missing"


def test_a_folder_and_an_impossible_name_are_unverified(tmp_path):
    assert verify(tmp_path).reason == "a folder"
    assert verify(tmp_path / "nul\0.png").state == "unverified"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_named_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    assert verify(tmp_path / "pipe.png").reason == "not a regular file"


def test_the_hash_is_that_of_the_whole_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab" * (1 << 20))
    check = verify(path)
    assert (check.bytes, check.sha256) == (2 << 20, hashlib.sha256(path.read_bytes()).hexdigest())


def test_beyond_the_budget_a_file_is_hashed_and_not_decoded(tmp_path):
    path = samples.cut(samples.image(tmp_path / "a.png"), 0.5)
    check = verify(path, budget_bytes=100)
    assert (check.state, check.reason) == ("unverified", "larger than the verification budget")
    assert check.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_that_changes_while_it_is_read_is_not_judged(tmp_path, monkeypatch):
    path = samples.image(tmp_path / "a.png")
    decode = media.image

    def rewrite(probed):
        answer = decode(probed)
        path.write_bytes(path.read_bytes() + b"more")
        return answer

    monkeypatch.setattr("stagexec.delivery.verify.PROBES", {".png": rewrite})
    check = verify(path)
    assert (check.state, check.reason, check.sha256) == ("unverified", "it changed while it was read", None)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "not enough memory to decode it"),
        (AttributeError("gone"), "the check itself failed: AttributeError: gone"),
        (OSError(5, "Input/output error"), "it could not be read: Input/output error"),
    ],
)
def test_a_check_that_fails_says_so_and_blames_no_file(tmp_path, monkeypatch, error, reason):
    def fail(_):
        raise error

    path = samples.image(tmp_path / "a.png")
    monkeypatch.setattr("stagexec.delivery.verify.PROBES", {".png": fail})
    check = verify(path)
    assert (check.state, check.reason) == ("unverified", reason)


def aged(path):
    """The file as if it had been written an hour ago."""
    stamp = path.stat().st_mtime_ns - 3_600_000_000_000
    os.utime(path, ns=(stamp, stamp))
    return path


@pytest.fixture
def reads(monkeypatch):
    seen = []
    hashing = verify.__globals__["_sha256"]
    monkeypatch.setitem(verify.__globals__, "_sha256", lambda path: seen.append(path.name) or hashing(path))
    return seen


def test_an_unchanged_file_is_read_once(tmp_path, reads):
    path = aged(samples.image(tmp_path / "a.png"))
    verifier = Verifier()
    assert verifier.check(path) == verifier.check(path)
    assert reads == ["a.png"]


def test_a_changed_file_is_read_again(tmp_path, reads):
    path = aged(samples.image(tmp_path / "a.png"))
    verifier = Verifier()
    first = verifier.check(path)
    size, stamp = path.stat().st_size, path.stat().st_mtime_ns
    path.write_bytes(bytes(size))
    os.utime(path, ns=(stamp, stamp))
    assert first.state == "verified"
    assert verifier.check(path).state == "corrupt"
    assert len(reads) == 2


def test_a_file_just_written_is_read_again_because_its_stamp_proves_nothing(tmp_path, reads):
    path = samples.image(tmp_path / "a.png")
    verifier = Verifier()
    assert verifier.check(path).state == verifier.check(path).state == "verified"
    assert len(reads) == 2


def test_a_deleted_file_is_missing_although_it_was_verified(tmp_path):
    path = aged(samples.image(tmp_path / "a.png"))
    verifier = Verifier()
    assert verifier.check(path).state == "verified"
    path.unlink()
    assert verifier.check(path).state == "missing"


def test_the_verifier_forgets_the_least_recently_asked_for(tmp_path, reads):
    paths = [aged(samples.image(tmp_path / f"{name}.png")) for name in "abc"]
    verifier = Verifier(capacity=2)
    for path in (paths[0], paths[1], paths[0], paths[2], paths[0], paths[1]):
        verifier.check(path)
    assert reads == ["a.png", "b.png", "c.png", "b.png"]


def test_the_check_imports_no_decoder_before_it_needs_one():
    code = "import sys, stagexec.delivery.verify; print(sorted({'PIL', 'av', 'torch'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_a_file_that_says_nothing_of_its_end_has_no_shortfall(tmp_path):
    (tmp_path / "a.txt").write_text("plain")
    assert structure.shortfall(tmp_path / "a.txt") is None


def test_a_hollow_file_of_a_terabyte_is_not_read(tmp_path, reads):
    path = tmp_path / "a.mp4"
    path.touch()
    try:
        os.truncate(path, 1 << 40)
    except OSError:  # this file system has no such sizes
        os.truncate(path, 8 << 30)
    check = verify(path)
    assert (check.state, check.bytes) == ("unverified", path.stat().st_size)
    assert "nearly all of it a hole" in check.reason
    assert reads == []


def test_a_link_that_leads_to_itself_is_unverified(tmp_path):
    (tmp_path / "a.png").symlink_to("b.png")
    (tmp_path / "b.png").symlink_to("a.png")
    assert verify(tmp_path / "a.png").state == "unverified"


def test_a_drawing_whose_entities_multiply_is_never_verified(tmp_path):
    names = [f"e{number}" for number in range(12)]
    entities = ['<!ENTITY e0 "a lot of laughs">']
    entities += [f'<!ENTITY {name} "{f"&{below};" * 10}">' for below, name in itertools.pairwise(names)]
    path = tmp_path / "a.svg"
    path.write_text(f"<!DOCTYPE svg [{''.join(entities)}]><svg>&e11;</svg>")
    assert verify(path).state != "verified"


def test_a_decoder_that_does_not_come_to_an_end_is_ended(tmp_path, monkeypatch):
    path = samples.video(tmp_path / "a.mp4", "mpeg4")
    assert verify(path).state == "verified"
    monkeypatch.setattr(media, "DECODER_S", 1e-9)
    check = verify(path)
    assert (check.state, check.reason) == ("unverified", "PyAV did not come to an end with it within 1e-09 s")


def test_the_decoders_limit_is_one_for_each_packet_not_for_all(tmp_path, monkeypatch):
    path = samples.video(tmp_path / "a.mp4", "mpeg4")
    monkeypatch.setattr(media, "DECODER_S", 0.3)
    monkeypatch.setattr(media.pulse, "beat", lambda: time.sleep(0.02))
    assert verify(path).state == "verified"  # 48 packets


def test_every_reader_of_a_file_says_that_it_goes_on(tmp_path, monkeypatch):
    beats = []
    monkeypatch.setattr("stagexec.delivery.pulse.beat", lambda: beats.append(1))
    (tmp_path / "a.txt").write_text("plain")
    (tmp_path / "a.svg").write_text("<svg/>")
    for path in (
        samples.image(tmp_path / "a.png"),
        samples.image(tmp_path / "a.gif", frames=3),
        samples.video(tmp_path / "a.mp4", "mpeg4"),
        samples.video(tmp_path / "a.mkv", "mpeg4"),
        samples.sound(tmp_path / "a.ogg", "libopus"),
        tmp_path / "a.txt",
        tmp_path / "a.svg",
    ):
        beats.clear()
        media.pulse.beat()
        hashing = len(beats)
        verify.__globals__["_sha256"](path)
        hashing = len(beats) - hashing
        beats.clear()
        assert verify(path).state == "verified"
        assert len(beats) > hashing, path.name
