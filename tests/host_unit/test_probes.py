"""Probes look at host calls, file a fact, and change nothing."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from stagexec.host.tables import SeamRow
from stagexec.record import guard, interrupts, live

HOST = """
    flag = []

    def interrupt_current_processing(value=True):
        flag.append(value)

    def get_save_image_path(prefix, folder, width=0, height=0):
        return folder, prefix, 1, "", prefix

    def is_oom(e):
        return isinstance(e, MemoryError)

    def load_models_gpu(models, memory_required=0):
        return "loaded"

    class VAE:
        def decode(self, retry=False):
            return self.tiles() if retry else 0

        def decode_tiled(self):
            return self.tiles()

        def tiles(self):
            return 1
"""


def probing(seam: str, target: str, probe: str) -> SeamRow:
    return SeamRow(id=seam, target=(target,), kind="probe", probe=probe, why="a test", hosts="the test")


@pytest.mark.parametrize(("arguments", "told"), [((), 1), ((True,), 1), ((False,), 0)])
def test_only_setting_the_interrupt_flag_is_a_cancel(
    host_module, load, seams, monkeypatch, arguments, told
) -> None:
    asked = []
    monkeypatch.setattr(live, "cancel_requested", lambda: asked.append(threading.get_ident()))
    name = host_module(HOST)
    seams(probing("interrupt", f"{name}:interrupt_current_processing", "cancel"))
    load(name).interrupt_current_processing(*arguments)
    assert len(asked) == told
    assert len(load(name).flag) == 1


def test_an_interrupt_from_a_thread_outside_of_every_request_is_codes(
    host_module, load, seams, monkeypatch, run
) -> None:
    asked, pressed = [], []
    monkeypatch.setattr(live, "cancel_requested", lambda: asked.append(1))
    monkeypatch.setattr(interrupts, "pressed_by_code", pressed.append)
    name = host_module(HOST)
    seams(probing("interrupt", f"{name}:interrupt_current_processing", "cancel"))
    thread = threading.Thread(target=load(name).interrupt_current_processing)
    thread.start()
    thread.join()
    assert (asked, pressed) == ([], ["thread"])


def test_a_saver_s_folder_and_prefix_reach_the_run(host_module, load, seams, run) -> None:
    name = host_module(HOST)
    seams(probing("save", f"{name}:get_save_image_path", "save_folder"))
    assert load(name).get_save_image_path("pic", "/out") == ("/out", "pic", 1, "", "pic")
    assert run.folders == [("/out", "pic")]


def test_an_exception_judged_out_of_memory_is_marked_by_type(host_module, load, seams, run) -> None:
    name = host_module(HOST)
    seams(probing("oom", f"{name}:is_oom", "oom_seen"))
    assert load(name).is_oom(e=MemoryError("secret")) is True
    assert load(name).is_oom(ValueError()) is False
    assert run.marks == [("oom_seen", {"type": "MemoryError"})]


def test_models_that_can_be_listed_only_once_are_left_to_the_host(host_module, load, seams, run) -> None:
    name = host_module("def load_models_gpu(models, memory_required=0): return list(models)")
    seams(probing("upload", f"{name}:load_models_gpu", "model_load"))
    assert load(name).load_models_gpu(iter(["a", "b"])) == ["a", "b"]
    assert run.marks == []


def test_a_missing_argument_refuses_a_probe(host_module, load, seams) -> None:
    name = host_module("def is_oom(*args, **kwargs): return True")
    ours = seams(probing("oom", f"{name}:is_oom", "oom_seen"))
    load(name)
    assert ours.states()[0]["state"] == "refused"
    assert ours.states()[0]["reason"] == "the signature has no argument e"


def test_a_stage_without_its_probe_s_argument_is_installed_and_says_so(
    host_module, load, seams, row, run
) -> None:
    name = host_module("def load_models_gpu(*args): return 1")
    ours = seams(row("upload", f"{name}:load_models_gpu", stage="model_load_residency", probe="model_load"))
    load(name).load_models_gpu([])
    assert ours.states()[0]["state"] == "installed"
    assert "without its probe model_load" in ours.states()[0]["reason"]
    assert run.entered == [("model_load_residency", None, "upload")]


class Patcher:
    def __init__(self, size: int, loaded: int) -> None:
        self.model = SimpleNamespace()
        self._size, self._loaded = size, loaded

    def model_size(self) -> int:
        return self._size

    def loaded_size(self) -> int:
        return self._loaded


def test_a_model_load_names_models_sizes_and_residency(
    host_module, load, seams, row, run, monkeypatch
) -> None:
    here, new = Patcher(100, 100), Patcher(50, 0)
    management = SimpleNamespace(current_loaded_models=[SimpleNamespace(model=here)])
    monkeypatch.setitem(sys.modules, "comfy.model_management", management)
    name = host_module(HOST)
    seams(row("upload", f"{name}:load_models_gpu", stage="model_load_residency", probe="model_load"))
    assert load(name).load_models_gpu([here, new], memory_required=1) == "loaded"
    ((mark, detail),) = run.marks
    assert mark == "model_load"
    assert (detail["count"], detail["resident"]) == (2, 1)
    assert detail["models"][0] == {
        "class": "SimpleNamespace",
        "id": id(here.model),
        "bytes": 100,
        "loaded_bytes": 100,
        "resident": True,
        "dynamic": False,
        "dtype": None,
    }
    assert detail["models"][1]["resident"] is False


def test_dynamic_vram_marks_a_run_once(host_module, load, seams, row, run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "comfy.memory_management", SimpleNamespace(aimdo_enabled=True))
    name = host_module(HOST)
    seams(row("upload", f"{name}:load_models_gpu", stage="model_load_residency", probe="model_load"))
    load(name).load_models_gpu([])
    load(name).load_models_gpu([])
    names = [one[0] for one in run.marks]
    assert names.count("dynamic_vram") == 1
    assert ("dynamic_vram", {"lower_bound": "model_load_residency"}) in run.marks


def vae_rows(row, name: str) -> list[SeamRow]:
    from stagexec.host.tables import PartInside

    return [
        row("vae_decode", f"{name}:VAE.decode", stage="vae_decode", part="decode"),
        row("vae_decode_tiled", f"{name}:VAE.decode_tiled", stage="vae_decode", part="tiled"),
        row(
            "vae_tiles", f"{name}:VAE.tiles", stage="vae_decode", part="tiled", probe="tiled_retry",
            part_inside=PartInside("vae_decode", "tiled_retry"), not_inside=("vae_decode_tiled",),
        ),
    ]  # fmt: skip


def test_tiles_inside_a_plain_decode_are_a_retry_and_marked(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(*vae_rows(row, name))
    load(name).VAE().decode(retry=True)
    assert [one[1] for one in run.entered] == ["decode", "tiled_retry"]
    assert run.marks == [("tiled_retry", {"inside": "vae_decode"})]


def test_tiles_that_were_asked_for_are_no_retry(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(*vae_rows(row, name))
    load(name).VAE().decode_tiled()
    load(name).VAE().tiles()
    assert [one[1] for one in run.entered] == ["tiled", "tiled"]
    assert run.marks == []


def test_a_probe_that_fails_leaves_the_call_alone_and_is_noted(host_module, load, seams, row, run) -> None:
    name = host_module(HOST)
    seams(row("upload", f"{name}:load_models_gpu", stage="model_load_residency", probe="model_load"))
    assert load(name).load_models_gpu(None) == "loaded"  # not a list: the probe cannot iterate it
    assert "model_load" in guard.faults.pop()[0]
    assert run.stack == []
