"""Every one of the 591 core nodes gets the stage we mean it to have; other classes by their types."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stagexec.host.node_stage import NodeStages
from stagexec.host.tables import load
from stagexec.record import guard

INDEX = json.loads((Path(__file__).parents[1] / "gold" / "node_index.json").read_text(encoding="utf-8"))
"""The core nodes of 0.30.0: input types by name, output types, output flag, module."""

STAGES_OF_591 = {
    "conditioning": 131,
    "encode_mux": 8,
    "model_load_residency": 124,
    "native_materialize": 30,
    "node_other": 170,
    "postprocess": 70,
    "sampling": 51,
    "vae_decode": 7,
}

KNOWN = {
    "CheckpointLoaderSimple": ("model_load_residency", None, "type"),
    "UNETLoader": ("model_load_residency", None, "type"),
    "LoraLoader": ("model_load_residency", "build", "type"),
    "ModelSamplingFlux": ("model_load_residency", "build", "type"),
    "UpscaleModelLoader": ("model_load_residency", None, "type"),
    "CreateHookLora": ("model_load_residency", None, "table"),
    "CLIPTextEncode": ("conditioning", None, "type"),
    "CLIPVisionEncode": ("conditioning", "encode", "type"),
    "ControlNetApplyAdvanced": ("conditioning", "control", "type"),
    "Canny": ("conditioning", "control", "table"),
    "VAEEncode": ("conditioning", "vae_encode", "type"),
    "InpaintModelConditioning": ("conditioning", None, "type"),
    "WanImageToVideo": ("conditioning", None, "type"),
    "ConditioningCombine": ("conditioning", None, "type"),
    "KSampler": ("sampling", None, "type"),
    "KSamplerAdvanced": ("sampling", None, "type"),
    "SamplerCustomAdvanced": ("sampling", None, "type"),
    "BasicScheduler": ("sampling", None, "type"),
    "VAEDecode": ("vae_decode", None, "type"),
    "VAEDecodeTiled": ("vae_decode", None, "type"),
    "VAEDecodeAudio": ("vae_decode", None, "type"),
    "SaveImage": ("native_materialize", None, "type"),
    "PreviewImage": ("native_materialize", None, "type"),
    "SaveAnimatedWEBP": ("native_materialize", None, "table"),
    "SaveLatent": ("native_materialize", "write", "type"),
    "CheckpointSave": ("native_materialize", "write", "type"),
    "SaveGLB": ("native_materialize", "write", "table"),
    "CreateVideo": ("native_materialize", None, "type"),
    "SaveVideo": ("encode_mux", None, "type"),
    "SaveWEBM": ("encode_mux", "encode", "table"),
    "SaveAudioMP3": ("encode_mux", None, "type"),
    "ImageUpscaleWithModel": ("postprocess", "ImageUpscaleWithModel", "type"),
    "FrameInterpolate": ("postprocess", "FrameInterpolate", "type"),
    "ImageInvert": ("postprocess", "ImageInvert", "type"),
    "BatchImagesNode": ("postprocess", "BatchImagesNode", "table"),
    "EmptyLatentImage": ("node_other", "EmptyLatentImage", "type"),
    "LatentUpscale": ("node_other", "LatentUpscale", "type"),
    "EmptyImage": ("node_other", "EmptyImage", "type"),
    "LoadImage": ("node_other", "LoadImage", "type"),
    "PrimitiveInt": ("node_other", "PrimitiveInt", "type"),
    "StringConcatenate": ("node_other", "StringConcatenate", "type"),
    "PreviewAny": ("node_other", "PreviewAny", "type"),
    "SAM3_Detect": ("node_other", "SAM3_Detect", "table"),
}


def node(inputs: dict[str, Any], returns: list[str], **attributes: Any) -> type:
    """A V1 node class of this shape."""
    types = {"required": {name: ([],) if kind == "COMBO" else (kind, {}) for name, kind in inputs.items()}}
    asked: list[int] = []

    def input_types(cls: type) -> dict[str, Any]:
        asked.append(1)
        return types

    body = {"INPUT_TYPES": classmethod(input_types), "RETURN_TYPES": tuple(returns), "asked": asked}
    return type("Node", (), body | attributes)


def core_node(name: str) -> type:
    facts = INDEX[name]
    return node(facts["in"], facts["out"], OUTPUT_NODE=facts.get("output", False))


@pytest.fixture(scope="module")
def stages() -> NodeStages:
    return NodeStages(load().nodes)


@pytest.mark.parametrize("name", KNOWN)
def test_a_well_known_class_has_its_stage(stages: NodeStages, name: str) -> None:
    assert stages.stage_of(name, core_node(name)) == KNOWN[name]


def test_each_of_the_591_core_nodes_is_decided_by_table_or_type(stages: NodeStages) -> None:
    answers = {name: stages.stage_of(name, core_node(name)) for name in INDEX}
    assert len(answers) == 591
    assert [name for name, answer in answers.items() if answer[2] == "none"] == []
    assert Counter(answer[0] for answer in answers.values()) == STAGES_OF_591


def test_the_node_table_lists_no_class_that_its_types_decide_alike() -> None:
    by_type = NodeStages({})
    table = load().nodes
    useless = [
        name
        for name, row in table.items()
        if name in INDEX  # the packs' classes are in tables of their own
        and by_type.stage_of(name, core_node(name)) == (row.stage, row.part, "type")
    ]
    assert useless == []


def test_the_part_of_an_open_stage_is_the_class(stages: NodeStages) -> None:
    answers = [(name, stages.stage_of(name, core_node(name))) for name in INDEX]
    open_ended = [
        (name, part) for name, (stage, part, _) in answers if stage in ("postprocess", "node_other")
    ]
    assert all(name == part for name, part in open_ended)


@pytest.mark.parametrize(
    ("inputs", "returns", "attributes", "expected"),
    [
        ({"model": "COMBO"}, ["WANVIDEOMODEL"], {}, "model_load_residency"),
        ({"model": "MODEL", "sampler_name": "COMBO", "steps": "INT"}, ["IMAGE"], {}, "sampling"),
        ({"vae": "WANVAE", "samples": "LATENT"}, ["IMAGE"], {}, "vae_decode"),
        ({"text": "STRING", "enc": "T5ENCODER"}, ["WANVIDEOTEXTEMBEDS"], {}, "conditioning"),
        ({"images": "IMAGE", "frame_rate": "FLOAT"}, ["FILES"], {"OUTPUT_NODE": True}, "encode_mux"),
        ({"images": "IMAGE"}, ["IMAGE"], {}, "postprocess"),
        ({"thing": "PIPE"}, ["PIPE"], {}, "node_other"),
        ({"image": "IMAGE"}, ["IMAGE"], {"API_NODE": True}, "node_other"),
    ],
)
def test_a_packs_class_is_judged_by_its_types(
    stages: NodeStages, inputs: dict[str, str], returns: list[str], attributes: dict[str, Any], expected: str
) -> None:
    stage, _part, origin = stages.stage_of("Pack", node(inputs, returns, **attributes))
    assert stage == expected
    assert origin == ("none" if inputs == {"thing": "PIPE"} else "type")


ENCODES = {"images": "IMAGE", "codec": "COMBO", "crf": "INT", "filename_prefix": "STRING"}


@pytest.mark.parametrize(
    ("inputs", "returns", "attributes", "expected"),
    [
        # by its settings alone, without a rate
        (ENCODES, ["STRING"], {}, ("encode_mux", None)),
        (ENCODES, [], {"OUTPUT_NODE": True}, ("encode_mux", None)),
        ({"images": "IMAGE", "pix_fmt": "STRING"}, ["VHS_FILENAMES", "INT"], {}, ("encode_mux", None)),
        ({"images": "IMAGE", "container": "COMBO"}, [], {"OUTPUT_NODE": True}, ("encode_mux", None)),
        ({"images": "IMAGE", "format": ("video/h264-mp4", "webm")}, ["STRING"], {}, ("encode_mux", None)),
        # it may do more: a hint
        (ENCODES, ["IMAGE", "STRING"], {}, ("node_other", "encode_mux")),
        (ENCODES | {"vae": "VAE", "samples": "LATENT"}, ["STRING"], {}, ("node_other", "encode_mux")),
        ({"images": "IMAGE", "codec": "COMBO"}, ["VIDEO"], {}, ("node_other", "encode_mux")),
        # savers of pictures, and what describes them, have a quality and a format too
        (
            {
                "images": "IMAGE",
                "quality": "INT",
                "format": ("png", "jpg", "webp"),
                "filename_prefix": "STRING",
            },
            [],
            {"OUTPUT_NODE": True},
            ("native_materialize", None),
        ),
        (
            {"image": "IMAGE", "format": ("short", "long"), "quality": "INT"},
            ["STRING"],
            {},
            ("node_other", None),
        ),
        (
            {"images": "IMAGE", "format": ("png", "mp4")},
            [],
            {"OUTPUT_NODE": True},
            ("native_materialize", None),
        ),
        ({"codec": "COMBO", "crf": "INT"}, ["STRING"], {}, ("node_other", None)),
    ],
)
def test_an_encoder_is_known_by_what_only_encoders_are_told(
    inputs: dict[str, Any], returns: list[str], attributes: dict[str, Any], expected: tuple[str, str | None]
) -> None:
    shape = {name: (list(kind),) if isinstance(kind, tuple) else (kind,) for name, kind in inputs.items()}
    body = {"INPUT_TYPES": classmethod(lambda cls: {"required": shape}), "RETURN_TYPES": tuple(returns)}
    found = NodeStages({}).judged("Pack", type("Node", (), body | attributes)).visited
    assert (found.stage, found.hint) == expected


def test_a_class_is_asked_once(stages: NodeStages) -> None:
    one = node({"images": "IMAGE"}, ["IMAGE"])
    stages.stage_of("Once", one)
    stages.stage_of("Once", one)
    assert one.asked == [1]


def test_two_classes_of_one_name_are_judged_apart(stages: NodeStages) -> None:
    assert stages.stage_of("Twin", node({"images": "IMAGE"}, ["IMAGE"]))[0] == "postprocess"
    assert stages.stage_of("Twin", node({"ckpt": "COMBO"}, ["MODEL"]))[0] == "model_load_residency"


def test_a_class_whose_types_raise_is_node_other(stages: NodeStages) -> None:
    def broken(cls: type) -> None:
        raise OSError("the models folder is gone")

    odd = type("Odd", (), {"INPUT_TYPES": classmethod(broken), "RETURN_TYPES": ()})
    assert stages.stage_of("Odd", odd) == ("node_other", "Odd", "none")


def test_a_class_with_odd_types_never_raises(stages: NodeStages) -> None:
    odd = type("Odd", (), {"INPUT_TYPES": classmethod(lambda cls: 7), "RETURN_TYPES": None})
    assert stages.stage_of("Odd7", odd) == ("node_other", "Odd7", "none")
    assert "shape_of" in guard.faults.pop()[0]
