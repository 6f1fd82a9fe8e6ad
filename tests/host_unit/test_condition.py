"""The condition is what was in use: read back from the host, and null only with a reason."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stagexec.host import condition as conditions
from stagexec.host import content_hash, packs, prompt_fields, used_models
from stagexec.host.node_stage import NodeStages
from stagexec.host.tables import load
from stagexec.record import condition, fingerprint, live
from tests.host_unit.test_node_stage import core_node

STAGES = {
    "CheckpointLoaderSimple": "model_load_residency",
    "KSampler": "sampling",
    "ImageScale": "postprocess",
    "ImageInvert": "postprocess",
    "SaveVideo": "encode_mux",
    "StagexecEncodeVideo": "encode_mux",
}


CLASSES = ("KSampler", "VAEDecode", "VAEEncode", "ImageScale", "ImageInvert", "LoadImage", "SaveImage")


def prompt(**changed: Any) -> dict[str, Any]:
    """A prompt; `changed` are inputs of the sampler."""
    return {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "tiny.safetensors"}},
        "2": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 32, "batch_size": 2}},
        "3": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["1", 0],
                "latent_image": ["2", 0],
                "seed": 5,
                "steps": 4,
                "cfg": 7.0,
                "sampler_name": "euler",
                "scheduler": "normal",
                **changed,
            },
        },
        "4": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["1", 2]}},
        "5": {"class_type": "ImageScale", "inputs": {"image": ["4", 0]}},
        "6": {"class_type": "SaveImage", "inputs": {"images": ["5", 0]}},
        "9": {"class_type": "KSampler", "inputs": {"steps": 99}},
    }


class Weights:
    """A model as the host holds it."""

    def __init__(self, dtype: str = "torch.float16", compute: str = "torch.float32") -> None:
        self.dtype, self.compute = dtype, compute
        self.model_config = SimpleNamespace(quant_config=None)

    def get_dtype(self) -> str:
        return self.dtype

    def get_dtype_inference(self) -> str:
        return self.compute


class Patcher:
    def __init__(self, model: Weights, **options: Any) -> None:
        self.model, self.model_options = model, options


class FakeRun:
    def __init__(self, cached: tuple[str, ...] = ()) -> None:
        self.attention: dict[str, int] = {}
        self.timing = "baseline"
        self.cached = set(cached)
        self.run_id = "r"
        self.condition_id: str | None = None


class FakeJournal:
    """Keeps what is put into it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[dict[str, Any]] = []
        self.manifests: list[Any] = []

    def put(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def put_condition(self, manifest: Any) -> None:
        self.manifests.append(manifest)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A host's modules, as far as a condition looks at them."""
    models = tmp_path / "models"
    for kind, name in (("checkpoints", "tiny.safetensors"), ("loras", "lora.safetensors"), ("vae", "v.pt")):
        (models / kind).mkdir(parents=True)
        header = json.dumps({"w": {"dtype": "F16", "data_offsets": [0, 4], "shape": [2]}}).encode()
        (models / kind / name).write_bytes(len(header).to_bytes(8, "little") + header + name.encode())
    (tmp_path / "custom_nodes" / "pack").mkdir(parents=True)
    (tmp_path / "custom_nodes" / "pack" / "__init__.py").write_text("NODES = {}\n")
    table = {kind: ([str(models / kind)], set()) for kind in ("checkpoints", "loras", "vae")}
    folders = SimpleNamespace(
        folder_names_and_paths=table, get_folder_paths=lambda kind: [str(tmp_path / "custom_nodes")]
    )
    monkeypatch.setitem(sys.modules, "folder_paths", folders)
    management = SimpleNamespace(
        vram_state="VRAMState.NORMAL_VRAM", cpu_state="CPUState.CPU", total_ram=1024, current_loaded_models=[]
    )
    management.get_torch_device = lambda: SimpleNamespace(type="cpu")
    monkeypatch.setitem(sys.modules, "comfy.model_management", management)
    args = SimpleNamespace(preview_method="none")
    monkeypatch.setitem(sys.modules, "latent_preview", SimpleNamespace(args=args))
    api = SimpleNamespace(
        model_management=management,
        execution=SimpleNamespace(args=args, __file__=str(tmp_path / "execution.py")),
        torch=SimpleNamespace(__version__="2.9.1", version=SimpleNamespace(cuda=None)),
        nodes=SimpleNamespace(NODE_CLASS_MAPPINGS={name: core_node(name) for name in CLASSES}),
        executor_used="native",
        version=lambda: "0.30.0",
        directory_of=lambda kind: str(tmp_path),
        stage_of=lambda name, _class: (STAGES.get(name, "node_other"), None, "table"),
        node_stages=NodeStages(load().nodes),
    )
    monkeypatch.setattr(live, "journal", FakeJournal(tmp_path / "ledger"))
    monkeypatch.setattr(live, "attention_facts", {"configured": "attention_pytorch"})
    return SimpleNamespace(api=api, args=args, models=models, journal=live.journal, folder=tmp_path)


def run_of(
    made: conditions.Conditions,
    asked: dict[str, Any],
    models: tuple[Patcher, ...] = (),
    outputs: tuple[str, ...] = ("6",),
    cached: tuple[str, ...] = (),
    extra: Any = None,
) -> tuple[str, dict[str, Any]]:
    """(id, fields) of a run from acceptance to its condition, without the thread."""
    run: Any = FakeRun(cached)
    _, known = made.of(asked, extra or {}, list(outputs))
    told = conditions.Accepted(asked, extra or {}, list(outputs), known["prompt_hash"], known["seeds"])
    used_models.note(run, models)
    if models:
        run.attention["attention_sub_quad"] = 3
    used = conditions.Used(used_models.read(run), sorted(run.attention), run.timing, None, bool(cached))
    made.finish(run, told, used)
    whole = live.journal.manifests[-1] if live.journal else None
    return str(run.condition_id), made.manifest(told, used).fields if whole else {}


def test_fields_are_what_the_prompt_its_files_and_its_models_say(host: SimpleNamespace) -> None:
    model = Patcher(Weights(), torch_compile_kwargs={"backend": "inductor"})
    _, fields = run_of(conditions.Conditions(host.api), prompt(), (model,))
    assert (fields["width"], fields["height"], fields["batch"], fields["frames"]) == (64, 32, 2, 1)
    assert (fields["steps"], fields["sampler"], fields["scheduler"], fields["cfg"]) == (
        4,
        "euler",
        "normal",
        7,
    )
    assert fields["precision"] == {"Weights": "float16 weights, float32 compute"}
    assert fields["compile_mode"] == {"Weights": "torch.compile inductor"}
    assert fields["attention_backend"] == ["attention_sub_quad"]
    assert fields["postprocess_chain"] == ["ImageScale"]
    assert len(fields["model_hash"]) == 64
    assert fields["vram_mode"] == "NORMAL_VRAM"


def test_work_on_a_picture_before_the_sampler_is_none_of_the_chain_of_postprocessing(
    host: SimpleNamespace,
) -> None:
    asked = prompt(latent_image=["12", 0])
    asked["10"] = {"class_type": "LoadImage", "inputs": {"image": "a.png"}}
    asked["11"] = {"class_type": "ImageScale", "inputs": {"image": ["10", 0]}}
    asked["12"] = {"class_type": "VAEEncode", "inputs": {"pixels": ["11", 0], "vae": ["1", 2]}}
    asked["13"] = {"class_type": "ImageInvert", "inputs": {"image": ["5", 0]}}
    asked["6"]["inputs"]["images"] = ["13", 0]
    asked["14"] = {"class_type": "ImageInvert", "inputs": 7}  # not asked for, so never validated
    made = conditions.Conditions(host.api)
    assert run_of(made, asked)[1]["postprocess_chain"] == ["ImageScale", "ImageInvert"]
    asked["11"]["class_type"] = "ImageInvert"
    assert run_of(made, asked)[1]["postprocess_chain"] == ["ImageScale", "ImageInvert"]


def test_equal_runs_have_equal_ids_whatever_their_seed_and_order_of_keys(host: SimpleNamespace) -> None:
    made, model = conditions.Conditions(host.api), Patcher(Weights())
    first, _ = run_of(made, prompt(seed=1), (model,))
    second, _ = run_of(made, dict(reversed(prompt(seed=2).items())), (model,))
    other, _ = run_of(conditions.Conditions(host.api), prompt(seed=3), (model,))
    assert first == second == other


def test_a_run_in_execution_has_a_condition_that_claims_nothing_that_is_not_read_back(
    host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, run, journal = conditions.Conditions(host.api), FakeRun(), host.journal
    asked = prompt()
    made.keep(run, asked, {}, ["6"], made.of(asked, {}, ["6"])[1])  # type: ignore[arg-type]
    monkeypatch.setattr(live, "running", {1: run})
    made.look()
    assert run.condition_id is None
    made.look()
    provisional = run.condition_id
    (manifest,) = journal.manifests
    assert condition.condition_id(manifest) == provisional
    for field in ("precision", "attention_backend", "custom_nodes_hash", "model_hash", "compile_mode"):
        assert manifest.fields[field] is None
        assert manifest.reasons[field] == conditions.NOT_ENDED
    assert (manifest.fields["steps"], manifest.fields["torch"]) == (4, "2.9.1")
    (mark,) = journal.events
    assert (mark["name"], mark["condition_id"]) == ("provisional_condition", provisional)
    assert set(mark["detail"]["missing"]) == set(manifest.reasons)
    made.look()
    assert len(journal.events) == 1
    made.executed(run)  # type: ignore[arg-type]
    assert run.condition_id is None
    taken = [made._queue.get_nowait() for _ in range(2)]
    assert taken[1] is not None
    made.finish(*taken[1])
    assert run.condition_id not in (None, provisional)
    assert len(journal.manifests) == 2
    monkeypatch.setattr(live, "running", {})


def test_a_content_hash_that_is_known_already_is_in_the_provisional_condition(
    host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, run = conditions.Conditions(host.api), FakeRun()
    _, fields = run_of(made, prompt(), (Patcher(Weights()),))
    asked = prompt()
    made.keep(run, asked, {}, ["6"], made.of(asked, {}, ["6"])[1])  # type: ignore[arg-type]
    monkeypatch.setattr(live, "running", {1: run})
    made.look()
    made.look()
    told = host.journal.manifests[-1].fields
    assert condition.condition_id(host.journal.manifests[-1]) == run.condition_id
    assert (told["model_hash"], told["custom_nodes_hash"]) == (
        fields["model_hash"],
        fields["custom_nodes_hash"],
    )
    assert told["precision"] is None


def test_a_graph_that_takes_long_to_look_through_waits_for_its_end(
    host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, run = conditions.Conditions(host.api), FakeRun()
    asked = prompt()
    made.keep(run, asked, {}, ["6"], made.of(asked, {}, ["6"])[1])  # type: ignore[arg-type]
    monkeypatch.setattr(live, "running", {1: run})
    monkeypatch.setattr(conditions, "MOST_NODES", len(asked) - 1)
    for _ in range(3):
        made.look()
    assert run.condition_id is None


@pytest.mark.parametrize("large", [True, False])
def test_a_large_graph_s_condition_is_begun_when_its_client_has_been_told_of_the_end(
    host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    made, run, order = conditions.Conditions(host.api), FakeRun(), []
    asked = prompt()
    monkeypatch.setattr(conditions, "QUICK_NODES", len(asked) - large)
    waits = SimpleNamespace(wait=lambda seconds: order.append(f"waited {seconds}"))
    monkeypatch.setattr(conditions.wire, "told", waits)
    monkeypatch.setattr(made, "finish", lambda *_: order.append("made"))
    made.keep(run, asked, {}, ["6"], made.of(asked, {}, ["6"])[1])  # type: ignore[arg-type]
    made._queue.get()
    made.executed(run)  # type: ignore[arg-type]
    item = made._queue.get()
    assert item is not None
    made._finish_fenced(*item)
    assert order == ([f"waited {conditions.TOLD_S}"] if large else []) + ["made"]


def test_a_run_that_had_its_models_from_the_cache_is_of_the_same_condition(host: SimpleNamespace) -> None:
    made, unet, clip = conditions.Conditions(host.api), Patcher(Weights()), Patcher(Weights("torch.float32"))
    first, _ = run_of(made, prompt(), (unet, clip))
    some, _ = run_of(made, prompt(seed=9), (unet,), cached=("1",))
    none, _ = run_of(made, prompt(seed=9), cached=tuple(prompt()))
    assert first == some == none


def other_file(host: SimpleNamespace) -> None:
    path = host.models / "checkpoints" / "tiny.safetensors"
    path.write_bytes(path.read_bytes() + b"x")


def other_pack(host: SimpleNamespace) -> None:
    (host.folder / "custom_nodes" / "pack" / "__init__.py").write_text("NODES = {1: 2}\n")


CHANGES: dict[str, Any] = {
    "a file's content": ("model_hash", other_file),
    "a pack's code": ("custom_nodes_hash", other_pack),
    "the memory mode": (
        "vram_mode",
        lambda host: setattr(host.api.model_management, "vram_state", "VRAMState.LOW_VRAM"),
    ),
    "the cache": ("cache_mode", lambda host: setattr(host.args, "cache_none", True)),
    "torch": ("torch", lambda host: setattr(host.api.torch, "__version__", "2.10")),
    "the executor": ("executor", lambda host: setattr(host.api, "executor_used", "host")),
    "the host": ("host_version", lambda host: setattr(host.api, "version", lambda: "0.31")),
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_process_with_one_thing_changed_makes_another_condition(
    host: SimpleNamespace, what: str
) -> None:
    field, change = CHANGES[what]
    model = Patcher(Weights())
    before, fields = run_of(conditions.Conditions(host.api), prompt(), (model,))
    change(host)
    after, fields_after = run_of(conditions.Conditions(host.api), prompt(), (model,))
    assert before != after
    assert [name for name in fields if fields[name] != fields_after[name]] == [field]


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("codec", "libx264", "libx264"),
        ("container", "video/h264-mp4", "video/h264-mp4"),
        ("container", "a song about my secret", None),
        ("quality", 23, 23),
        ("quality", {"a": "secret"}, None),
        ("filters", "scale=1280:-2,fps=24", "scale=1280:-2,fps=24"),
        ("filters", "fps=24,drawtext=text=secret:fontsize=24,secret2", None),
        ("filters", "scale=w='secret'", None),
        ("filters", "scale=secret:2", None),
        ("filters", "[secret]fps=24[out]", None),
        ("preset", "slow", "slow"),
        ("preset", "secret", None),
        ("pixel_format", "yuv420p", "yuv420p"),
    ],
)
def test_an_encoder_s_settings_are_kept_and_words_in_them_are_a_digest(
    field: str, value: Any, kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"1": {"class_type": "SaveVideo", "inputs": {prompt_fields.ENCODER[field][0]: value}}}

    def found() -> Any:
        return prompt_fields.read(asked, ["1"], lambda _name: "encode_mux").fields[field]

    shown = found()
    assert "secret" not in str(shown)
    assert shown == kept if kept is not None else "text:" in str(shown)
    monkeypatch.setattr(live, "record_text", True)
    assert found() == value


FREE = [
    (field, name)
    for table in (prompt_fields.NAMES, prompt_fields.ENCODER)
    for field, names in table.items()
    for name in names
]


@pytest.mark.parametrize(("field", "name"), FREE)
@pytest.mark.parametrize("text", ["secret", "a secret wish", ["secret"], {"secret": 1}, "secret.safetensors"])
def test_a_text_in_an_input_of_any_name_is_a_digest(field: str, name: str, text: Any) -> None:
    asked = {"1": {"class_type": "Own", "inputs": {name: text}}}
    found = prompt_fields.read(asked, ["1"], lambda _name: "encode_mux").fields[field]
    assert "secret" not in str(found)
    assert str(found).startswith("text:")


def test_a_choice_is_kept_that_the_class_lists_unless_it_is_a_file_s_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret_preset").write_text("")
    folders = SimpleNamespace(
        folder_names_and_paths={},
        get_directory_by_type=lambda kind: str(tmp_path) if kind == "user" else None,
    )
    monkeypatch.setitem(sys.modules, "folder_paths", folders)
    choices = {"Own": {"scheduler": frozenset(("flow/one", "secret_preset", "a secret.json")),
                       "preset": frozenset(("secret",))}}  # fmt: skip

    def kept(name: str, value: str) -> Any:
        asked = {"1": {"class_type": "Own", "inputs": {name: value}}}
        return prompt_fields.read(asked, ["1"], lambda _name: "encode_mux", choices).fields[name]

    assert kept("scheduler", "flow/one") == "flow/one"
    assert kept("scheduler", "flow/two").startswith("text:")
    assert kept("scheduler", "secret_preset").startswith("text:")
    assert kept("preset", "secret").startswith("text:")
    assert kept("preset", "slow") == "slow"


def test_tile_sizes_and_strengths_are_numbers(host: SimpleNamespace) -> None:
    asked = {
        "1": {"class_type": "VAEDecodeTiled", "inputs": {"tile_size": "secret", "overlap": 64}},
        "2": {"class_type": "Lora", "inputs": {"lora_name": "lora.safetensors", "strength_model": "secret"}},
    }
    found = prompt_fields.read(asked, ["1", "2"], lambda _name: "node_other")
    assert "secret" not in str((found.fields, found.files))
    assert found.fields["vae_tiling"][0][1]["overlap"] == 64


def test_filters_with_other_texts_are_other_conditions() -> None:
    one, two = (prompt_fields.without_text("filters", f"fps=24,drawtext=text={word}") for word in "ab")
    assert one != two
    assert one.startswith("fps text:")


@pytest.mark.parametrize(
    ("inputs", "field"),
    [
        ({"steps": 5}, "steps"),
        ({"cfg": 8}, "cfg"),
        ({"sampler_name": "heun"}, "sampler"),
        ({"scheduler": "karras"}, "scheduler"),
    ],
)
def test_another_input_is_another_condition(host: SimpleNamespace, inputs: Any, field: str) -> None:
    made, model = conditions.Conditions(host.api), Patcher(Weights())
    first, fields = run_of(made, prompt(), (model,))
    second, other = run_of(made, prompt(**inputs), (model,))
    assert first != second
    assert [n for n in fields if fields[n] != other[n]] == sorted(
        ["api_prompt_hash", field], key=list(fields).index
    )


def test_precision_is_read_back_not_believed(host: SimpleNamespace) -> None:
    first, _ = run_of(conditions.Conditions(host.api), prompt(), (Patcher(Weights()),))
    second, fields = run_of(
        conditions.Conditions(host.api), prompt(), (Patcher(Weights("torch.float8_e4m3fn")),)
    )
    assert first != second
    assert fields["quantization"] == {"Weights": "float8_e4m3fn"}


def test_a_lora_counts_with_its_strengths(host: SimpleNamespace) -> None:
    def with_lora(strength: float) -> dict[str, Any]:
        lora = {"lora_name": "lora.safetensors", "strength_model": strength, "strength_clip": 1.0}
        return {
            **prompt(model=["7", 0]),
            "7": {"class_type": "LoraLoader", "inputs": {**lora, "model": ["1", 0]}},
        }

    made = conditions.Conditions(host.api)
    _, half = run_of(made, with_lora(0.5))
    _, full = run_of(made, with_lora(1.0))
    assert half["lora_hashes"][0][0] == full["lora_hashes"][0][0]
    assert half["lora_hashes"] != full["lora_hashes"]


def test_a_file_that_is_not_found_is_a_null_with_its_reason(host: SimpleNamespace) -> None:
    asked = prompt()
    asked["1"]["inputs"]["ckpt_name"] = "gone.safetensors"
    run_of(conditions.Conditions(host.api), asked)
    whole = host.journal.manifests[-1]
    assert whole.fields["model_hash"] is None
    assert whole.reasons["model_hash"] == prompt_fields.NOT_FOUND


def test_no_null_is_without_a_reason_and_the_event_names_all_of_them(host: SimpleNamespace) -> None:
    run_of(conditions.Conditions(host.api), prompt())
    whole = host.journal.manifests[-1]
    assert condition.NOT_RECORDED not in whole.reasons.values()
    assert all(whole.reasons.values())
    told = [event for event in host.journal.events if event["event_type"] == "condition"]
    assert told[0]["missing"] == sorted(name for name in whole.fields if whole.fields[name] is None)
    assert told[0]["condition_id"] == condition.condition_id(whole)


def test_nothing_of_a_prompts_text_is_filed(host: SimpleNamespace) -> None:
    asked = prompt()
    asked["8"] = {"class_type": "CLIPTextEncode", "inputs": {"text": "a secret wish", "clip": ["1", 1]}}
    asked["3"]["inputs"]["positive"] = ["8", 0]
    run_of(conditions.Conditions(host.api), asked)
    filed = repr(host.journal.events) + repr(host.journal.manifests)
    assert "secret" not in filed
    assert "KSampler" not in repr([e for e in host.journal.events if e["event_type"] == "identity"])


def test_a_warm_condition_costs_less_than_a_millisecond(host: SimpleNamespace) -> None:
    made, model = conditions.Conditions(host.api), Patcher(Weights())
    run_of(made, prompt(), (model,))
    times = []
    for number in range(50):
        begin = time.perf_counter_ns()
        known = made.of(prompt(seed=number), {}, ["6"])[1]
        told = conditions.Accepted(prompt(), {}, ["6"], known["prompt_hash"], known["seeds"])
        used = conditions.Used({}, [], "baseline", None, True)
        condition.condition_id(made.manifest(told, used))
        times.append(time.perf_counter_ns() - begin)
    assert min(times) < 1_000_000


def test_hashes_are_kept_in_the_ledger_and_made_anew_for_another_file(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(b"one")
    first = content_hash.Hashes(tmp_path / "ledger", lambda: False)
    one = first.of(str(file)).sha256
    again = content_hash.Hashes(tmp_path / "ledger", lambda: False)
    again._hash = None  # type: ignore[assignment, method-assign]  # must not be needed
    assert again.of(str(file)).sha256 == one
    file.write_bytes(b"two, longer")
    assert content_hash.Hashes(tmp_path / "ledger", lambda: False).of(str(file)).sha256 != one


def test_hashing_makes_way_for_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.bin"
    file.write_bytes(bytes(3000))
    monkeypatch.setattr(content_hash, "CHUNK", 1000)
    slept: list[float] = []
    monkeypatch.setattr(content_hash.time, "sleep", slept.append)
    content_hash.Hashes(tmp_path, lambda: True).of(str(file))
    assert slept == [content_hash.PAUSE_S] * 3


def test_a_checkouts_commit_is_read_from_its_files(tmp_path: Path) -> None:
    git = tmp_path / "pack" / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text("# pack-refs\nabc123 refs/heads/main\n")
    assert packs.commit(tmp_path / "pack") == "abc123"
    (git / "refs" / "heads" / "main").write_text("def456\n")
    assert packs.commit(tmp_path / "pack") == "def456"
    (git / "HEAD").write_text("789abc\n")
    assert packs.commit(tmp_path / "pack") == "789abc"
    assert packs.commit(tmp_path) is None


def test_digests_tell_constants_links_and_answers_apart() -> None:
    first, again = fingerprint.fields_of(prompt()), fingerprint.fields_of(prompt())
    assert first == again
    moved = fingerprint.fields_of(prompt(model=["2", 0]))
    assert moved["constants"] == first["constants"]
    assert moved["links"] != first["links"]
    asked = prompt()
    asked["1"]["is_changed"] = [float("nan")]
    asked["2"]["is_changed"] = ["x"]
    told = fingerprint.fields_of(asked)
    assert told["is_changed"]["1"] == fingerprint.NAN
    assert set(told["is_changed"]) == {"1", "2"}
    assert told["constants"] == first["constants"]
