"""Probes: what is read off a host call as it happens. They look, file a fact, and change nothing."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stagexec.host import doors, sockets, used_models, weight_files
from stagexec.record import interrupts, live, words
from stagexec.record.guard import guarded

Before = Callable[[Any, dict[str, Any]], None]
After = Callable[[Any, dict[str, Any], Any], None]
Around = Callable[[Any, dict[str, Any]], "Callable[[], None] | None"]


@dataclass(frozen=True)
class Probe:
    """What to call round a host call: `before(run, arguments)`, `after(run, arguments, result)`.

    `needs` are the host's argument names that it reads, found once when the seam is installed.
    `around(run, arguments)` of a stage seam gives what is called when the host's call is over, however.
    `anywhere`: also on threads other than the run's; `idle`: also while no run is in execution.
    """

    needs: tuple[str, ...] = ()
    before: Before | None = None
    after: After | None = None
    around: Around | None = None
    anywhere: bool = False
    idle: bool = False


@guarded
def cancel(_run: Any, arguments: dict[str, Any]) -> None:
    """The interrupt flag is raised or lowered: by a person's request, or by code in this process."""
    management = sys.modules.get("comfy.model_management")
    if not arguments["value"] or not getattr(management, "interrupt_processing", True):
        interrupts.lowered()
    if arguments["value"]:
        by, door = doors.asked_by()
        if by == doors.USER:
            live.cancel_requested()
        else:
            interrupts.pressed_by_code(door)


@guarded
def save_folder(run: Any, _arguments: dict[str, Any], result: Any) -> None:
    """A saver was told where to write: (folder, file name, counter, subfolder, prefix)."""
    run.save_folder(result[0], result[1], result[2] if len(result) > 2 else None)


@guarded
def written_image(run: Any, arguments: dict[str, Any]) -> None:
    """A picture is about to be saved, to a path or into a buffer."""
    run.writes(arguments["fp"])


@guarded
def written_tensors(run: Any, arguments: dict[str, Any]) -> None:
    """Tensors are about to be saved."""
    run.writes(arguments["ckpt"])


@guarded
def oom_seen(run: Any, arguments: dict[str, Any], result: Any) -> None:
    """The host judged an exception to be an out-of-memory error."""
    if result:
        run.mark("oom_seen", {"type": words.short_name(type(arguments["e"]))})


@guarded
def tiled_retry(run: Any, _arguments: dict[str, Any]) -> None:
    """A tiled decode or encode that was not asked for: the plain one ran out of memory."""
    for seam in ("vae_decode", "vae_encode"):
        if run.inside(seam):
            run.mark("tiled_retry", {"inside": seam})
            return


@guarded
def model_load(run: Any, arguments: dict[str, Any]) -> None:
    """Models are asked onto the device: which, how large, and how much of each is there already.

    Detail: `models` (list of {class, id, bytes, loaded_bytes, resident, dynamic, dtype}), `count`,
    `resident` (how many the host already lists as loaded). The mark's stage is the one that asks. Under
    dynamic VRAM also marks the run, once, because weights are then paged in during the forward pass and
    the stage's time is a lower bound.
    """
    _mark_dynamic_vram(run)
    if isinstance(arguments["models"], Iterator):  # looking would use it up: it is the host's
        return
    used_models.note(run, arguments["models"])
    described = [_describe(model) for model in arguments["models"]]
    resident = sum(one["resident"] for one in described)
    run.mark(
        "model_load",
        {"models": described, "count": len(described), "resident": resident},
        stage_id=run.stage,
        visit=run.visit,
    )


def _describe(patcher: Any) -> dict[str, Any]:
    management = sys.modules.get("comfy.model_management")
    listed = getattr(management, "current_loaded_models", ())
    model = getattr(patcher, "model", patcher)
    return {
        "class": type(model).__name__,
        "id": id(model),
        "bytes": _ask(patcher, "model_size"),
        "loaded_bytes": _ask(patcher, "loaded_size"),
        "resident": any(one.model is patcher for one in listed),
        "dynamic": bool(_ask(patcher, "is_dynamic")),
        "dtype": _dtype(model),
    }


def _ask(patcher: Any, method: str) -> Any:
    found = getattr(patcher, method, None)
    return found() if callable(found) else None


def _dtype(model: Any) -> str | None:
    """dtype of the model's first weight, as it is now; None where it has none."""
    weights = _ask(model, "parameters")
    first = next(iter(weights), None) if weights is not None else None
    return None if first is None else str(first.dtype).removeprefix("torch.")


_dynamic_runs: weakref.WeakSet[Any] = weakref.WeakSet()


def _mark_dynamic_vram(run: Any) -> None:
    memory = sys.modules.get("comfy.memory_management")
    if getattr(memory, "aimdo_enabled", False) and run not in _dynamic_runs:
        _dynamic_runs.add(run)
        run.mark("dynamic_vram", {"lower_bound": "model_load_residency"})


@guarded
def encoding(run: Any, arguments: dict[str, Any]) -> None:
    """Frames are about to be written as one animated picture."""
    detail = {"frames": len(arguments["images"]), "fps": arguments["fps"]}
    run.mark("encoding", detail, visit=run.visit, node_id=run.node[0] if run.node else None)


PROBES: dict[str, Probe] = {
    "cancel": Probe(needs=("value",), before=cancel, anywhere=True, idle=True),
    "save_folder": Probe(after=save_folder, anywhere=True),
    "written_image": Probe(needs=("fp",), before=written_image),
    "written_tensors": Probe(needs=("ckpt",), before=written_tensors),
    "sent": Probe(needs=("event", "data", "sid"), before=sockets.sent),
    "sent_picture": Probe(needs=("image_data", "sid"), before=sockets.sent_picture),
    "oom_seen": Probe(needs=("e",), after=oom_seen),
    "tiled_retry": Probe(before=tiled_retry),
    "encoding": Probe(needs=("images", "fps"), before=encoding),
    "model_load": Probe(needs=("models",), before=model_load),
    **{
        f"weights_{argument}": Probe(needs=(argument,), around=weight_files.probe_of(argument))
        for argument in ("ckpt", "filename", "f", "path")
    },
}
