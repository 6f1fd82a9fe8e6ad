"""Runs inside a real ComfyUI tree: install the shipped seams, import the host, print what became of them."""

from __future__ import annotations

import functools
import importlib
import json
import sys


def main() -> None:
    tree = sys.argv.pop(1)
    sys.path.insert(0, tree)
    sys.argv = ["main.py", "--cpu"]

    from stagexec.delivery import children, programs, pyav
    from stagexec.host import attention, devices, weight_files
    from stagexec.host.seams import Seams
    from stagexec.host.tables import load

    def subclass(module, old):
        return type(f"Our{old.__name__}", (old,), {})

    def same(module, old):
        async def execute(*args, **kwargs):
            return await old(*args, **kwargs)

        return execute

    def stand_in(module, old):
        return subclass(module, old) if isinstance(old, type) else functools.partial(old)

    factories = {"prompt_executor": subclass, "prompt_queue": subclass, "execute_node": same}
    tables = load()
    places = {**children.POPEN, **programs.PLACES, "av:open": pyav.watched_open}
    places["safetensors:safe_open"] = weight_files.make_safe_open
    places |= {**attention.places(), **devices.offload_places("events")}
    for row in tables.seams.values():
        factories.update((row.id, places[target]) for target in row.target if target in places)
        if row.kind == "replace":  # what only the running executor can fill: does the host have it at all?
            factories.setdefault(row.id, stand_in)
    seams = Seams(tables, factories)
    seams.install_hooks()
    assert "torch" not in sys.modules, "the engine must not load torch"

    import comfy.options

    comfy.options.enable_args_parsing()
    import utils.extra_config  # noqa: F401 (main.py imports it first too: others have a module called utils)

    for name in ("execution", "nodes", "latent_preview", "spandrel", "comfy_api_nodes.util.client"):
        importlib.import_module(name)
    for name in ("comfy.audio_encoders.audio_encoders", "comfy_api.latest"):
        importlib.import_module(name)

    installed = seams.verify()
    calls = behaviour()
    undone = seams.undo()
    print(json.dumps({"installed": installed, "undone": undone, "left": left_over(), **calls}))


def behaviour() -> dict[str, object]:
    """A few real calls under a fake run: what do the seams make of them?"""
    import threading

    import comfy.clip_vision
    import comfy.model_management
    import comfy.sd
    import folder_paths
    import torch

    from stagexec.record import live
    from stagexec.record.run import Run

    counter = iter(range(10**9))
    run = Run("prompt", 0, lambda: next(counter))
    run.thread = threading.get_ident()
    entered: list[tuple[str, str | None, str | None]] = []
    enter = run.enter

    def spy(stage, part=None, seam=None):
        entered.append((stage, part, seam))
        return enter(stage, part, seam)

    run.enter = spy
    live.run = run
    try:
        comfy.model_management.load_models_gpu([])
        comfy.model_management.unload_all_models()
        vae = comfy.sd.VAE.__new__(comfy.sd.VAE)
        retried = out_of_memory_decode(vae, torch)
        saved = folder_paths.get_save_image_path("seam", folder_paths.get_temp_directory())
    finally:
        live.run = None
    return {
        "entered": entered,
        "retried": retried,
        "folders": run.save_folders,
        "saved": list(saved[:2]),
        "same_reader": comfy.clip_vision.load_torch_file is comfy.utils.load_torch_file,
        "spans": len(run.pending_spans),
    }


def out_of_memory_decode(vae, torch) -> bool:
    """VAE.decode whose plain way runs out of memory: the host itself falls back to its tiled way."""
    from types import SimpleNamespace

    def no_memory(*args, **kwargs):
        raise torch.cuda.OutOfMemoryError("no memory")

    vae.first_stage_model = SimpleNamespace(decode=lambda x, **kwargs: x.repeat(1, 1, 8, 8)[:, :3])
    vae.latent_dim, vae.handles_tiling, vae.extra_1d_channel = 2, False, None
    vae.vae_dtype, vae.device, vae.output_device = torch.float32, torch.device("cpu"), torch.device("cpu")
    vae.upscale_ratio, vae.output_channels, vae.disable_offload = 8, 3, False
    vae.process_output = lambda image: image
    vae.throw_exception_if_invalid = lambda: None
    vae.memory_used_decode = no_memory
    vae.not_video = True
    return tuple(vae.decode(torch.zeros(1, 4, 8, 8)).shape) == (1, 64, 64, 3)


def left_over() -> list[str]:
    """Names of host attributes that are still wrappers of ours and not inert."""
    from stagexec.host.wrap import SeamWrapper

    left = []
    for name, module in list(sys.modules.items()):
        if name.startswith("stagexec") or module is None:
            continue
        for owner in [module, *(one for one in vars(module).values() if isinstance(one, type))]:
            left += [
                f"{name}.{key}"
                for key, value in list(vars(owner).items())
                if type(value) is SeamWrapper and not value._self_switch.off
            ]
    return left


if __name__ == "__main__":
    main()
