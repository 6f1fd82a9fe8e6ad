"""A tour of everything our bookkeeping does in a process: good and bad prompts on the miniature host."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import stagexec
from stagexec.delivery import late
from stagexec.delivery.closing import Closer
from stagexec.executor import queue as queue_view
from stagexec.host import api as host_api
from stagexec.host import conformance, hooks, restart, seams
from stagexec.host.probes import PROBES
from stagexec.host.tables import PartInside, SeamRow, Tables
from stagexec.host.wrap import wrap
from stagexec.record import live
from tests.executor.fake_host import Blocker, Host

Log = list[Any]

PROCESS = {
    "pid_started": None,
    "format_version": 1,
    "pid": 1,
    "hostname": "elsewhere",
    "stagexec_version": "0",
    "python": "3",
    "platform": "any",
    "host_path": None,
    "argv": [],
    "timing": "baseline",
    "executor_asked": None,
}


def row(seam: str, kind: str = "stage", **fields: Any) -> SeamRow:
    if kind == "stage":
        fields.setdefault("stage", "sampling")
    return SeamRow(id=seam, target=("pretend:" + seam,), kind=kind, why="a test", hosts="all", **fields)  # type: ignore[arg-type]


def host_module(log: Log) -> Any:
    """The host's functions, each with its seam; every call of the real one goes into `log`."""

    def called(name: str, result: Any = None) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            log.append((name, repr(args), tuple(kwargs)))
            if isinstance(result, Exception):
                raise result
            return args[0] if result is None and args else result

        return function

    async def fetch(x: Any) -> Any:
        log.append(("fetch", (x,), ()))
        await asyncio.sleep(0.001)
        return x

    def interrupt(value: bool) -> Any:
        return called("interrupt")(value)

    def is_oom(e: Any) -> Any:
        return called("is_oom", True)(e)

    def load_models(models: Any) -> Any:
        return called("load_models")(models)

    def save_animation(images: Any, fps: float) -> Any:
        return called("save_animation")(images, fps)

    module = {
        "sample": (called("sample"), row("sample", inside=("vae_decode",))),
        "decode": (
            called("decode"),
            row("vae_decode", stage="vae_decode", part_inside=PartInside("vae_decode", "tiled_retry")),
        ),
        "upscale": (called("upscale"), row("upscale", stage="postprocess", part="<node class>")),
        "broken": (called("broken", ValueError("the host's own")), row("broken")),
        "fetch": (fetch, row("fetch", stage="external_wait")),
        "interrupt": (interrupt, row("interrupt", "probe", probe="cancel")),
        "save_path": (
            called("save_path", ("/nowhere", "name", 1, "", "p")),
            row("save_path", "probe", probe="save_folder"),
        ),
        "is_oom": (is_oom, row("is_oom", "probe", probe="oom_seen")),
        "tiled": (called("tiled"), row("tiled", "probe", probe="tiled_retry")),
        "load_models": (load_models, row("load_models", "probe", probe="model_load")),
    }
    if "encoding" in PROBES:
        module["save_animation"] = (save_animation, row("save_animation", "probe", probe="encoding"))
    wrapped = {name: wrap(f, f, seam)[0] for name, (f, seam) in module.items()}
    return SimpleNamespace(**{"save_animation": save_animation, **wrapped})


def node_classes(host: Any, log: Log) -> dict[str, Any]:  # noqa: C901 (a list of small classes)
    """Node classes that call the host's functions and our public ones."""

    class Node:
        RETURN_TYPES: tuple[str, ...] = ("X",)
        FUNCTION = "go"

        @classmethod
        def INPUT_TYPES(cls) -> Any:  # noqa: N802 (the host's name)
            return {"required": {"x": ("X",)}}

    class Load(Node):
        """Pixels in and out: its place in the graph is asked for."""

        INPUT_TYPES = classmethod(lambda cls: {"required": {"x": ("IMAGE",)}})  # type: ignore[assignment]
        RETURN_TYPES = ("IMAGE",)

        def go(self, x: int) -> Any:
            host.load_models([SimpleNamespace(model=None)])
            return (host.upscale(x),)

    class Staged(Node):
        def go(self, x: int) -> Any:
            with stagexec.stage("vae_decode"):
                thread = threading.Thread(target=host.decode, args=(x,), name="worker")
                thread.start()
                thread.join()
            stagexec.artifact("/nowhere/file.bin")
            host.save_path()
            host.save_animation([x], 24.0)
            return (x + 1,)

    class Remote(Node):
        async def go(self, x: int) -> Any:
            with stagexec.stage("external_wait"):
                return (await host.fetch(x),)

    class Grow(Node):
        def go(self, x: int) -> Any:
            grown = {"g1": {"class_type": "Load", "inputs": {"x": x}}}
            return {"expand": grown, "result": (["g1", 0],)}

    class Block(Node):
        def go(self, x: int) -> Any:
            return (Blocker("not today"),)

    class Boom(Node):
        def go(self, x: int) -> Any:
            try:
                return (host.broken(x),)
            except ValueError as error:
                host.is_oom(error)
                raise

    class Retry(Node):
        def go(self, x: int) -> Any:
            return (wrapped_decode(x),)

    class Cancel(Node):
        def go(self, x: int) -> Any:
            host.interrupt(True)
            return (x,)

    class Save(Node):
        RETURN_TYPES = ()
        OUTPUT_NODE = True

        def go(self, x: Any) -> Any:
            log.append(("Save", (x,), ()))
            return {"ui": {"x": [x]}}

    inner = SimpleNamespace()

    def plain_decode(x: Any) -> Any:
        host.tiled(x)
        return host.sample(inner.again(x) if x < 5 else x)

    wrapped_decode = wrap(plain_decode, plain_decode, row("vae_decode", stage="vae_decode"))[0]
    inner.again = host.decode
    kinds = (Load, Staged, Remote, Grow, Block, Boom, Retry, Cancel, Save)
    return {kind.__name__: kind for kind in kinds}


def chain(*classes: str) -> dict[str, Any]:
    """A graph in which each node takes the output of the one before."""
    inputs = [{"x": 1}] + [{"x": [str(number), 0]} for number in range(1, len(classes))]
    both = zip(classes, inputs, strict=True)
    return {str(n): {"class_type": one, "inputs": given} for n, (one, given) in enumerate(both, 1)}


WITH_EVENTS = {"plain"}
"""Taken in the timing mode `events`; there is no device here, so what is recorded is why."""

NATIVE_ONLY = {"good"}
"""The miniature host's own loop does not know how to let a graph grow."""

PROMPTS: dict[str, dict[str, Any]] = {
    "good": chain("Load", "Staged", "Remote", "Grow", "Retry", "Save"),
    "plain": chain("Load", "Staged", "Remote", "Retry", "Save"),
    "cancelled": chain("Cancel", "Save"),
    "blocked": chain("Block", "Save"),
    "failing": chain("Staged", "Boom", "Save"),
    "unknown": chain("Load", "Nowhere", "Save"),
    "cycle": {
        "1": {"class_type": "Load", "inputs": {"x": ["2", 0]}},
        "2": {"class_type": "Load", "inputs": {"x": ["1", 0]}},
        "3": {"class_type": "Save", "inputs": {"x": ["2", 0]}},
    },
    "defeated": {
        "1": {"class_type": "Load", "inputs": {"x": 1}, "is_changed": [float("nan")]},
        "2": {"class_type": "Save", "inputs": {"x": ["1", 0]}},
    },
}


async def validate_prompt(prompt_id: str) -> None:
    """Stands for the host's."""


def travel(ledger: Path) -> Any:
    """Go everywhere once; what the host and its clients saw of it: calls, messages, history."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late, "COMES_S", 0.0)  # no file of the tour is there, and none will come
        return _travel(ledger)


def _travel(ledger: Path) -> Any:
    log: Log = []
    process(ledger, log)
    classes = node_classes(host_module(log), log)
    closer = Closer(lambda _kind: None)
    live.after_execution = closer.close
    seen = []
    for native in (True, False):
        host = Host(classes, native)
        for prompt_id, graph in PROMPTS.items():
            if prompt_id in NATIVE_ONLY and not native:
                continue
            asyncio.run(queue_view.TimedValidation(validate_prompt)(prompt_id))
            live.timing = "events" if prompt_id in WITH_EVENTS else "baseline"
            host.submit(graph, [max(graph)], prompt_id)
            host.work()
        host.submit(chain("Load", "Save"), ["2"], "deleted")
        host.queue.delete_queue_item(lambda item: item[1] == "deleted")
        host.submit(chain("Load", "Save"), ["2"], "wiped")
        host.queue.wipe_queue()
        host.submit(chain("Load", "Save"), ["2"], "put back")
        item, item_id = host.queue.get()
        host.queue.put(host.queue.currently_running.pop(item_id))
        host.queue.queue[0] = (*item[:3], {"client_id": "client"}, ["2"], "a pack's own")
        host.work()
        host.executor.execute(chain("Load", "Save"), "direct", {"client_id": "client"}, ["2"])
        entry = host.queue.get_history("deleted")
        seen += [entry, host.queue.get_history()]
        seen += [host.server.messages, host.queue.history, host.queue.queue, host.executor.history_result]
    return log, seen


def process(ledger: Path, log: Log) -> None:
    """What happens once: the journal, the host's facts, the seams' states, a restart."""
    execution = ModuleType("execution")
    with pytest.MonkeyPatch.context() as patch:
        nothing = SimpleNamespace(start=lambda: None)
        api = SimpleNamespace(
            facts={}, fingerprint="f", executor_used="native", directory_of=lambda _: None, conditions=nothing
        )
        patch.setattr(host_api, "HostApi", lambda *_: api)
        patch.setattr(conformance, "choose", lambda *_: ("native", "a test"))
        patch.setattr(hooks, "Closer", lambda *_: nothing)
        patch.setattr(seams.Seams, "install_late", lambda _self: None, raising=False)
        one = hooks.Hooks(Tables(), None, "baseline", False, {**PROCESS, "ledger": str(ledger)})
        assert one._known(execution) is api
        queue_class = type("Queue", (), {"get": lambda *_a, **_k: log.append("waited")})
        original = queue_class
        getter = one._get_with_states(original)
        mixed = type("Q", (queue_view.QueueView, original), {"get": getter})
        mixed().get()
    main_file = ledger / "main.py"
    argv = ("python", str(main_file), "--cpu")
    changed = restart.ours_instead((sys.executable, argv), ["-m", "stagexec.main"], main_file)
    assert changed in (None, (sys.executable, ["python", "-m", "stagexec.main", "--cpu"]))
