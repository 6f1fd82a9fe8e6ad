import os
import subprocess
import sys
import time

import pytest
import torch

from stagexec.delivery import artifacts
from stagexec.delivery.artifacts import count_values, finite, from_history, orphans


@pytest.fixture
def folders(tmp_path):
    for kind in ("output", "temp", "input"):
        (tmp_path / kind).mkdir()
    return tmp_path


@pytest.fixture
def directory_of(folders):
    known = {kind: str(folders / kind) for kind in ("output", "temp", "input")}
    return known.get


def entry(name="a_00001_.png", subfolder="", kind="output", **more):
    return {"filename": name, "subfolder": subfolder, "type": kind, **more}


def test_images_become_absolute_paths_of_their_folder_type(folders, directory_of):
    outputs = {"9": {"images": [entry(), entry("b.png", "sub", "temp")]}, "7": {"audio": [entry("c.flac")]}}
    found = from_history(outputs, directory_of)
    assert [(p.node_id, p.key, p.type, p.path, p.state) for p in found] == [
        ("9", "images", "output", str(folders / "output" / "a_00001_.png"), None),
        ("9", "images", "temp", str(folders / "temp" / "sub" / "b.png"), None),
        ("7", "audio", "output", str(folders / "output" / "c.flac"), None),
    ]


def test_a_file_named_twice_is_promised_once_by_all_its_nodes(directory_of):
    outputs = {"1": {"images": [entry(), entry()], "gifs": [entry()]}, "2": {"images": [entry()]}}
    found = from_history(outputs, directory_of)
    assert [(p.node_id, p.key, p.node_ids) for p in found] == [("1", "images", ["1", "2"])]


@pytest.mark.parametrize(
    "bad",
    [entry("../secret.txt"), entry("x", "../../etc"), entry("x", "/etc"), entry("/etc/passwd")],
)
def test_a_path_outside_its_folder_is_kept_and_not_to_be_looked_at(directory_of, bad):
    (promise,) = from_history({"1": {"images": [bad]}}, directory_of)
    assert promise.state == "unverified"
    assert promise.reason == "it lies outside the folder that the host serves it from"


def test_a_folder_whose_name_begins_like_the_base_is_outside(directory_of):
    (promise,) = from_history({"1": {"images": [entry("x.png", "../output2")]}}, directory_of)
    assert promise.state == "unverified"


def test_an_unknown_folder_type_is_unverified_and_its_name_is_not_kept(directory_of):
    (promise,) = from_history({"1": {"images": [entry(kind="cloud")]}}, directory_of)
    assert (promise.state, promise.type) == ("unverified", None)
    assert "cloud" not in promise.reason


def test_a_full_path_names_its_own_folder_type(folders, directory_of):
    inside = str(folders / "temp" / "v.mp4")
    outputs = {"1": {"gifs": [{"fullpath": inside}, {"fullpath": str(folders / "elsewhere.mp4")}]}}
    found = from_history(outputs, directory_of)
    assert [(p.type, p.path, p.state) for p in found] == [
        ("temp", inside, None),
        (None, str(folders / "elsewhere.mp4"), "unverified"),
    ]


def test_a_name_and_a_full_path_of_one_video_are_one_promise(folders, directory_of):
    full = str(folders / "output" / "v.mp4")
    found = from_history(
        {"1": {"gifs": [entry("v.mp4", fullpath=full, format="video/h264-mp4")]}}, directory_of
    )
    assert [p.path for p in found] == [full]


def test_a_3d_viewers_files_are_found_in_the_folder_that_has_them(folders, directory_of):
    (folders / "input" / "given.obj").touch()
    results = [
        "3d/made.glb",
        "given.obj",
        "mine.stl [temp]",
        "temp/bg_1.png",
        {"camera": 1},
        None,
        "a caption",
    ]
    outputs = {"1": {"result": results}}
    found = {p.path: p.type for p in from_history(outputs, directory_of)}
    assert found == {
        str(folders / "output" / "3d" / "made.glb"): "output",
        str(folders / "input" / "given.obj"): "input",
        str(folders / "temp" / "mine.stl"): "temp",
        str(folders / "temp" / "bg_1.png"): "temp",
    }
    assert count_values(outputs, directory_of) == {"1": 2}


def test_text_numbers_and_booleans_are_values_and_no_files(directory_of):
    outputs = {
        "1": {"text": ["a.png", "b"], "value": [1, True]},
        "2": {"images": [entry()], "animated": [True]},
        "3": {},
    }
    assert count_values(outputs, directory_of) == {"1": 4}
    assert [p.node_id for p in from_history(outputs, directory_of)] == ["2"]


@pytest.mark.parametrize(
    "odd", [None, [], "text", {"images": None}, {"images": [{}, {"filename": 3}, {"filename": ""}]}]
)
def test_odd_history_promises_nothing_and_does_not_raise(directory_of, odd):
    assert from_history({"1": odd}, directory_of) == []


def write(path, age_ns=0):
    path.write_bytes(b"x")
    stamp = time.time_ns() - age_ns
    os.utime(path, ns=(stamp, stamp))
    return path


def test_orphans_are_files_of_the_prefix_written_since_and_not_named(tmp_path):
    start = time.time_ns() - 1_000_000_000
    left = write(tmp_path / "run_00002_.png")
    named = write(tmp_path / "run_00001_.png")
    write(tmp_path / "run_00000_.png", age_ns=5_000_000_001)
    write(tmp_path / "other_00001_.png")
    (tmp_path / "run_folder").mkdir()
    write(tmp_path / "run_folder" / "run_00003_.png")
    assert orphans(str(tmp_path), "run", start, {str(named)}) == [left]


def test_a_file_stamped_one_clock_tick_before_the_visit_is_its_orphan(tmp_path):
    path = tmp_path / "run_1.png"
    path.touch()
    os.utime(path, ns=(1_700_000_000_123_456_789,) * 2)
    assert orphans(str(tmp_path), "run", 1_700_000_000_123_456_789 + artifacts.TICK_NS, set()) == [path]
    assert orphans(str(tmp_path), "run", 1_700_000_000_123_456_790 + artifacts.TICK_NS, set()) == []


def test_a_stamp_of_whole_seconds_is_taken_for_a_coarse_file_system(tmp_path):
    path = tmp_path / "run_1.png"
    path.touch()
    os.utime(path, ns=(1_700_000_000_000_000_000,) * 2)
    assert orphans(str(tmp_path), "run", 1_700_000_001_900_000_000, set()) == [path]
    assert orphans(str(tmp_path), "run", 1_700_000_002_100_000_000, set()) == []


def test_a_folder_that_cannot_be_read_has_no_orphans(tmp_path):
    assert orphans(str(tmp_path / "gone"), "run", 0, set()) == []
    assert orphans("nul\0", "run", 0, set()) == []


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_bad_element_of_any_float_type_is_found(dtype, bad):
    tensor = torch.ones(4, 5, 6).to(dtype)
    assert finite([tensor]) is True
    tensor[3, 4, 5] = bad
    assert finite([tensor]) is False


def test_an_eight_bit_float_is_looked_at():
    tensor = torch.ones(8).to(torch.float8_e4m3fn)
    assert finite([tensor]) is True
    tensor.view(torch.uint8)[3] = 0x7F
    assert finite([tensor]) is False


def test_large_finite_values_whose_sum_overflows_are_finite():
    assert finite([torch.full((100,), 65_504.0, dtype=torch.float16)]) is True
    assert finite([torch.full((100,), 3e38)]) is True


def test_opposite_infinities_do_not_cancel_out():
    assert finite([torch.tensor([float("inf"), float("-inf")])]) is False


@pytest.mark.parametrize("where", [0, 1, -1])
def test_every_chunk_is_looked_at_and_no_layout_is_copied_whole(monkeypatch, where):
    monkeypatch.setattr(artifacts, "FINITE_CHUNK", 7)
    tensor = torch.zeros(5, 6, 3).permute(2, 0, 1)[:, ::2]
    assert not tensor.is_contiguous()
    assert finite([tensor]) is True
    tensor[where, where, where] = float("nan")
    assert finite([tensor]) is False


def test_a_check_of_a_large_tensor_allocates_little():
    tensor = torch.full((4096, 4096), 3e38)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        assert finite([tensor]) is True
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert 0 < largest <= 8 * artifacts.FINITE_CHUNK < tensor.nbytes


def test_integers_are_finite_and_no_tensor_is_no_answer():
    assert finite([torch.ones(3, dtype=torch.int64), torch.zeros(0)]) is True
    assert finite([]) is finite(["text", None]) is None


def test_a_tensor_that_cannot_be_read_here_leaves_the_answer_open_unless_another_is_bad():
    elsewhere = torch.ones(3, device="meta")
    assert finite([torch.ones(3), elsewhere]) is None
    assert finite([elsewhere, torch.tensor([float("nan")])]) is False
    assert finite([torch.ones(3).to_sparse()]) is None


def test_a_parameter_and_an_inference_tensor_are_looked_at():
    with torch.inference_mode():
        inner = torch.tensor([1.0, float("inf")])
    assert finite([torch.nn.Parameter(torch.ones(2))]) is True
    assert finite([inner]) is False


def test_a_process_without_torch_is_not_made_to_import_it():
    code = "import sys, stagexec.delivery.artifacts as a; print(a.finite([1.0]), 'torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["None", "False"]
