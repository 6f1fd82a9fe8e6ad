import hashlib
import json
import time

import pytest

from stagexec.record.condition import (
    FIELDS,
    NOT_RECORDED,
    api_prompt_hash,
    canonical,
    condition_id,
    manifest,
    store,
    workflow_hash,
)

FULL = {name: f"value of {name}" for name in FIELDS}


def prompt(seed=1, steps=20, title="KSampler"):
    return {
        "3": {
            "class_type": "KSampler",
            "inputs": {"seed": seed, "steps": steps, "model": ["4", 0]},
            "_meta": {"title": title},
        },
        "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "tiny.safetensors"}},
    }


def workflow(seed=1, control="randomize", steps=20, x=0.0):
    node = {
        "id": 3,
        "type": "KSampler",
        "mode": 0,
        "pos": [x, 10],
        "title": f"at {x}",
        "inputs": [{"name": "model", "link": 7}],
        "widgets_values": [seed, control, steps, 8, "euler", "normal", 1],
    }
    return {
        "extra_pnginfo": {
            "workflow": {"nodes": [node], "links": [[7, 4, 0, 3, 0, "MODEL"]], "extra": {"ds": x}}
        }
    }


def test_every_field_of_the_design_is_there_once():
    assert len(FIELDS) == len(set(FIELDS)) == 59


def test_equal_manifests_have_equal_ids():
    assert condition_id(manifest(FULL, {}, strict=True)) == condition_id(
        manifest(dict(FULL), {}, strict=True)
    )


def test_the_order_of_fields_does_not_count():
    backwards = dict(reversed(list(FULL.items())))
    assert condition_id(manifest(backwards, {})) == condition_id(manifest(FULL, {}))


@pytest.mark.parametrize("name", FIELDS)
def test_each_single_field_changes_the_id(name):
    other = manifest({**FULL, name: "something else"}, {})
    absent = manifest({**FULL, name: None}, {name: "no device"})
    assert len({condition_id(whole) for whole in (manifest(FULL, {}), other, absent)}) == 3


def test_another_reason_for_a_null_is_another_condition():
    first = manifest({}, {"gpu_uuid": "no device"})
    second = manifest({}, {"gpu_uuid": "the driver does not answer"})
    assert condition_id(first) != condition_id(second)


def test_a_null_without_a_reason_is_refused_where_strict_and_explained_elsewhere():
    with pytest.raises(ValueError, match="null without a reason: fps"):
        manifest({**FULL, "fps": None}, {}, strict=True)
    assert manifest({**FULL, "fps": None}, {}).reasons == {"fps": NOT_RECORDED}


def test_a_field_outside_the_closed_list_is_refused():
    with pytest.raises(ValueError, match="not a field of a condition: colour"):
        manifest({"colour": "red"}, {})
    with pytest.raises(ValueError, match="not a field of a condition: colour"):
        manifest({}, {"colour": "no device"})


def test_a_reason_is_kept_only_for_a_null():
    assert manifest(FULL, {"fps": "an image"}).reasons == {}


def test_equal_numbers_and_containers_are_one_value():
    first = manifest({**FULL, "cfg": 7.0, "lora_hashes": ("a", "b"), "steps": {2, 1}}, {})
    second = manifest({**FULL, "cfg": 7, "lora_hashes": ["a", "b"], "steps": {1, 2}}, {})
    assert condition_id(first) == condition_id(second)


def test_true_is_not_one_and_nan_is_not_null():
    ids = {
        condition_id(manifest({**FULL, "cfg": value}, {"cfg": "none"}))
        for value in (True, 1, float("nan"), None)
    }
    assert len(ids) == 4


def test_the_file_is_named_by_its_own_hash_and_written_once(tmp_path):
    whole = manifest(FULL, {})
    target = store(tmp_path, whole)
    assert target == tmp_path / "conditions" / f"{condition_id(whole)}.json"
    assert hashlib.sha256(target.read_bytes()).hexdigest() == condition_id(whole)
    assert json.loads(target.read_bytes()) == {"fields": FULL, "reasons": {}}
    written = target.stat()
    assert store(tmp_path, whole) == target
    assert (target.stat().st_ino, target.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert list(target.parent.iterdir()) == [target]


def test_a_file_cut_short_by_a_crash_is_written_again(tmp_path):
    whole = manifest(FULL, {})
    target = store(tmp_path, whole)
    target.write_bytes(b"{")
    store(tmp_path, whole)
    assert target.read_bytes() == canonical(whole)


def test_a_folder_that_cannot_be_written_is_an_oserror(tmp_path):
    (tmp_path / "conditions").write_text("a file where the folder should be")
    with pytest.raises(OSError):
        store(tmp_path, manifest(FULL, {}))


def test_a_failed_write_leaves_no_scratch_file(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stagexec.record.condition.os.replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        store(tmp_path, manifest(FULL, {}))
    assert list((tmp_path / "conditions").iterdir()) == []


def test_the_seed_is_left_out_of_the_prompt_hash_and_kept_beside_it():
    first, seeds = api_prompt_hash(prompt(seed=1))
    second, other = api_prompt_hash(prompt(seed=2))
    assert first == second
    assert (seeds, other) == ([["3", "seed", 1]], [["3", "seed", 2]])


@pytest.mark.parametrize("name", ["seed", "noise_seed", "variation_seed"])
def test_every_spelling_of_a_seed_is_left_out(name):
    graphs = [{"1": {"class_type": "A", "inputs": {name: value}}} for value in (1, 2)]
    assert api_prompt_hash(graphs[0])[0] == api_prompt_hash(graphs[1])[0]


@pytest.mark.parametrize(
    ("name", "values"), [("seed", (["4", 0], ["5", 0])), ("seed", ("a", "b")), ("steps", (1, 2))]
)
def test_links_texts_and_other_numbers_count(name, values):
    hashes = [api_prompt_hash({"1": {"class_type": "A", "inputs": {name: value}}}) for value in values]
    assert hashes[0][0] != hashes[1][0]
    assert hashes[0][1] == hashes[1][1] == []


def test_titles_and_the_hosts_own_notes_do_not_count():
    noted = prompt(title="mine")
    noted["3"]["is_changed"] = [float("nan")]
    assert api_prompt_hash(noted)[0] == api_prompt_hash(prompt())[0]
    assert noted["3"]["inputs"]["seed"] == 1


def test_the_order_of_nodes_and_inputs_does_not_count():
    backwards = {
        node_id: {**node, "inputs": dict(reversed(list(node["inputs"].items())))}
        for node_id, node in reversed(list(prompt().items()))
    }
    assert api_prompt_hash(backwards)[0] == api_prompt_hash(prompt())[0]


def test_a_node_id_and_a_class_count():
    renamed = {("9" if node_id == "3" else node_id): node for node_id, node in prompt().items()}
    other = prompt()
    other["4"]["class_type"] = "UNETLoader"
    assert len({api_prompt_hash(graph)[0] for graph in (prompt(), renamed, other)}) == 3


class Odd:
    """Not JSON."""


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [Odd(), {1: "a", (1, 2): "b"}, "\ud800", float("nan"), 2**70, b"bytes", {"a", "b"}, nested(50_000)],
)
def test_values_that_json_cannot_hold_do_not_raise(value):
    graph = {"1": {"class_type": "A", "inputs": {"value": value}}}
    assert len(api_prompt_hash(graph)[0]) == 64
    assert api_prompt_hash(graph) == api_prompt_hash(graph)


def test_two_objects_of_one_class_hash_alike():
    assert canonical([Odd()]) == canonical([Odd()])
    assert b"Odd" in canonical([Odd()])


def test_a_chain_of_20000_nodes_hashes_within_a_second():
    graph = {
        str(at): {"class_type": "ImageInvert", "inputs": {"image": [str(at - 1), 0]}} for at in range(20_000)
    }
    began = time.perf_counter()
    api_prompt_hash(graph)
    assert time.perf_counter() - began < 1.0


def test_seeds_layout_and_titles_do_not_count_in_the_workflow():
    hashes = {
        workflow_hash(workflow(seed=seed, control=control, x=x))
        for seed, control, x in ((1, "randomize", 0.0), (20, "fixed", 5.0))
    }
    assert len(hashes) == 1
    assert next(iter(hashes))[1] is None


def test_widget_values_and_links_count_in_the_workflow():
    relinked = workflow()
    relinked["extra_pnginfo"]["workflow"]["links"] = []
    hashes = {workflow_hash(data)[0] for data in (workflow(), workflow(steps=21), relinked)}
    assert len(hashes) == 3


def test_a_seed_without_a_control_widget_is_found_by_the_prompts_seed():
    def bare(seed):
        node = {"id": 5, "type": "Noise", "widgets_values": [seed, ""]}
        inner = {"id": "sub", "inputNode": {}, "nodes": [node], "links": []}
        return {
            "extra_pnginfo": {"workflow": {"nodes": [], "links": [], "definitions": {"subgraphs": [inner]}}}
        }

    hashes = [workflow_hash(bare(seed), [["12:5", "noise_seed", seed]])[0] for seed in (7, 8)]
    assert hashes[0] == hashes[1]
    assert workflow_hash(bare(7))[0] != workflow_hash(bare(8))[0]


@pytest.mark.parametrize(
    "extra", [None, {}, {"extra_pnginfo": None}, {"extra_pnginfo": {"workflow": "text"}}]
)
def test_no_workflow_is_a_null_with_a_reason(extra):
    assert workflow_hash(extra) == (None, "no workflow came with the prompt")
