"""Classes of the most used packs: the stage each stands for, and whether all of a visit is in it."""

from __future__ import annotations

from typing import Any

import pytest

from stagexec.host.node_stage import NodeStages, Visited
from stagexec.host.tables import load
from tests.host_unit.test_node_place import Graph
from tests.host_unit.test_node_stage import node

OUTPUT = {"OUTPUT_NODE": True}

SETTINGS = "steps:INT cfg:FLOAT sampler_name:COMBO scheduler:COMBO"

ONE_THING = {
    # samplers and loaders of a pack's own model type
    "WanVideoSampler": (
        "model:WANVIDEOMODEL image_embeds:WANVIDIMAGE_EMBEDS steps:INT scheduler:COMBO samples:LATENT",
        "LATENT LATENT",
        "sampling",
    ),
    "HyVideoSampler": ("model:HYVIDEOMODEL hyvid_embeds:HYVIDEMBEDS steps:INT", "LATENT", "sampling"),
    "CogVideoSampler": ("model:COGVIDEOMODEL positive:CONDITIONING steps:INT", "LATENT", "sampling"),
    "WanVideoModelLoader": ("model:COMBO lora:WANVIDLORA", "WANVIDEOMODEL", "model_load_residency"),
    "WanVideoVAELoader": ("model_name:COMBO", "WANVAE", "model_load_residency"),
    "LoadWanVideoT5TextEncoder": ("model_name:COMBO", "WANTEXTENCODER", "model_load_residency"),
    "UltralyticsDetectorProvider": (
        "model_name:COMBO",
        "BBOX_DETECTOR SEGM_DETECTOR",
        "model_load_residency",
    ),
    "PulidModelLoader": ("pulid_file:COMBO", "PULID", "model_load_residency"),
    "InstantIDFaceAnalysis": ("provider:COMBO", "FACEANALYSIS", "model_load_residency"),
    "SeedVR2LoadDiTModel": ("model:COMBO", "SEEDVR2_DIT", "model_load_residency"),
    # encoders that are no output nodes
    "Write to Video": (
        "image:IMAGE fps:INT output_path:STRING filename:STRING codec:COMBO",
        "IMAGE STRING STRING",
        "encode_mux",
    ),
    "Write to GIF": (
        "image:IMAGE duration_ms:FLOAT loops:INT output_path:STRING filename:STRING",
        "IMAGE STRING STRING",
        "encode_mux",
    ),
    # pipes, contexts and settings are carried at no cost
    "Context (rgthree)": (
        "base_ctx:RGTHREE_CONTEXT model:MODEL positive:CONDITIONING latent:LATENT images:IMAGE",
        "RGTHREE_CONTEXT MODEL CONDITIONING LATENT IMAGE",
        "node_other",
    ),
    "Context Big (rgthree)": (
        "base_ctx:RGTHREE_CONTEXT model:MODEL steps:INT sampler:COMBO control_net:CONTROL_NET",
        "RGTHREE_CONTEXT MODEL CONDITIONING LATENT IMAGE CONTROL_NET",
        "node_other",
    ),
    "ToBasicPipe": ("model:MODEL clip:CLIP vae:VAE positive:CONDITIONING", "BASIC_PIPE", "node_other"),
    "FromBasicPipe": ("basic_pipe:BASIC_PIPE", "MODEL CLIP VAE CONDITIONING", "node_other"),
    "easy pipeOut": ("pipe:PIPE_LINE", "PIPE_LINE MODEL CONDITIONING LATENT VAE CLIP IMAGE", "node_other"),
    "PixelKSampleUpscalerProvider": (
        f"model:MODEL vae:VAE positive:CONDITIONING {SETTINGS}",
        "UPSCALER",
        "node_other",
    ),
    "KSampler Config (rgthree)": (SETTINGS, "INT INT FLOAT COMBO COMBO", "node_other"),
    "WanVideoBlockSwap": ("blocks_to_swap:INT", "BLOCKSWAPARGS", "node_other"),
    # what describes a picture is no work on it
    "Florence2Run": ("image:IMAGE florence2_model:FL2MODEL", "IMAGE MASK STRING JSON", "node_other"),
    "IPAdapterAdvanced": ("model:MODEL ipadapter:IPADAPTER image:IMAGE", "MODEL", "conditioning"),
    "ApplyInstantID": (
        "instantid:INSTANTID control_net:CONTROL_NET image:IMAGE model:MODEL positive:CONDITIONING",
        "MODEL CONDITIONING CONDITIONING",
        "conditioning",
    ),
}
"""Class -> its inputs, its outputs, and the stage that a whole visit of it is in."""

SEVERAL_THINGS = {
    "FaceDetailer": (
        f"image:IMAGE model:MODEL clip:CLIP vae:VAE {SETTINGS} bbox_detector:BBOX_DETECTOR",
        "IMAGE IMAGE IMAGE MASK DETAILER_PIPE IMAGE",
        "sampling",
    ),
    "FaceDetailerPipe": (
        f"image:IMAGE detailer_pipe:DETAILER_PIPE {SETTINGS}",
        "IMAGE IMAGE IMAGE MASK DETAILER_PIPE IMAGE",
        "sampling",
    ),
    "UltimateSDUpscale": (
        f"image:IMAGE model:MODEL positive:CONDITIONING vae:VAE {SETTINGS} upscale_model:UPSCALE_MODEL",
        "IMAGE",
        "sampling",
    ),
    "IterativeLatentUpscale": ("samples:LATENT steps:INT upscaler:UPSCALER", "LATENT VAE", "sampling"),
    "LTXVBaseSampler": (
        "model:MODEL vae:VAE guider:GUIDER sampler:SAMPLER sigmas:SIGMAS noise:NOISE",
        "LATENT CONDITIONING CONDITIONING",
        "sampling",
    ),
    "easy fullLoader": (
        "ckpt_name:COMBO vae_name:COMBO lora_name:COMBO positive:STRING",
        "PIPE_LINE MODEL VAE CLIP CONDITIONING LATENT",
        "model_load_residency",
    ),
    "Efficient Loader": (
        "ckpt_name:COMBO vae_name:COMBO positive:STRING",
        "MODEL CONDITIONING CONDITIONING LATENT VAE CLIP DEPENDENCIES",
        "model_load_residency",
    ),
}
"""The same of classes of which only the seams are certain: the stage is the hint."""

OUTPUTS = {
    # output nodes that give pictures on as well
    "easy kSampler": (
        "pipe:PIPE_LINE image_output:COMBO save_prefix:STRING model:MODEL",
        "PIPE_LINE IMAGE",
        "sampling",
    ),
    "easy hiresFix": (
        "model_name:COMBO save_prefix:STRING pipe:PIPE_LINE image:IMAGE vae:VAE",
        "PIPE_LINE IMAGE LATENT",
        "postprocess",
    ),
    "easy imageRemBg": ("images:IMAGE image_output:COMBO save_prefix:STRING", "IMAGE MASK", "postprocess"),
    "easy imageColorMatch": (
        "image_ref:IMAGE image_target:IMAGE save_prefix:STRING",
        "IMAGE",
        "postprocess",
    ),
    "KSampler (Efficient)": (
        f"model:MODEL positive:CONDITIONING latent_image:LATENT optional_vae:VAE {SETTINGS}",
        "MODEL CONDITIONING CONDITIONING LATENT VAE IMAGE",
        "sampling",
    ),
}

SAVERS = {
    "Image Save": ("images:IMAGE output_path:STRING filename_prefix:STRING", "IMAGE STRING"),
    "ttN imageOutput": ("image:IMAGE image_output:COMBO save_prefix:STRING", "IMAGE"),
    "PreviewBridge": ("images:IMAGE image:STRING", "IMAGE MASK"),
    "FastPreview": ("image:IMAGE", ""),
}


def shape(inputs: str, outputs: str, **attributes: Any) -> type:
    """A class with inputs as `name:TYPE` and outputs as types, with blanks between them."""
    pairs: list[Any] = [one.split(":") for one in inputs.split()]
    return node(dict(pairs), outputs.split(), **attributes)


@pytest.fixture(scope="module")
def stages() -> NodeStages:
    return NodeStages(load().nodes)


def visited(stages: NodeStages, name: str, class_def: type) -> Visited:
    """Of a visit in a graph of this node alone."""
    return stages.of_visit(name, class_def, Graph(one=(name,)), "one", {name: class_def})


@pytest.mark.parametrize("name", ONE_THING)
def test_a_class_that_does_one_thing_is_in_its_stage_all_the_time(stages: NodeStages, name: str) -> None:
    inputs, outputs, stage = ONE_THING[name]
    found = visited(stages, name, shape(inputs, outputs))
    assert (found.stage, found.hint) == (stage, None)


@pytest.mark.parametrize("name", SEVERAL_THINGS | OUTPUTS)
def test_a_class_that_does_several_things_is_node_other_with_a_hint(stages: NodeStages, name: str) -> None:
    inputs, outputs, stage = (SEVERAL_THINGS | OUTPUTS)[name]
    class_def = shape(inputs, outputs, **(OUTPUT if name in OUTPUTS else {}))
    found = visited(stages, name, class_def)
    assert (found.stage, found.part, found.hint) == ("node_other", name, stage)
    assert stages.stage_of(name, class_def)[0] == stage


@pytest.mark.parametrize("name", SAVERS)
def test_a_saver_that_hands_its_picture_on_writes_it(stages: NodeStages, name: str) -> None:
    found = visited(stages, name, shape(*SAVERS[name], **OUTPUT))
    assert (found.stage, found.hint) == ("native_materialize", None)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("ImageConcanate", "image1:IMAGE,MASK image2:IMAGE,MASK", "IMAGE,MASK"),
        ("ReActorFaceSwap", "input_image:IMAGE source_image:IMAGE face_model:FACE_MODEL", "IMAGE FACE_MODEL"),
        ("DWPreprocessor", "image:IMAGE", "IMAGE POSE_KEYPOINT"),
        ("RIFE VFI", "ckpt_name:COMBO frames:IMAGE", "IMAGE"),
    ],
)
def test_what_works_on_pictures_is_judged_by_its_place(
    stages: NodeStages, name: str, inputs: str, outputs: str
) -> None:
    assert stages.judged(name, shape(inputs, outputs)).by_place
    assert visited(stages, name, shape(inputs, outputs)).hint == "postprocess"


def test_an_output_of_the_type_of_an_input_can_be_what_that_input_can_be(stages: NodeStages) -> None:
    template = {"template": {"template_id": "any", "allowed_types": "IMAGE,MASK"}}
    types = {"required": {"image": ("COMFY_MATCHTYPE_V3", template)}}
    body = {"INPUT_TYPES": classmethod(lambda cls: types), "RETURN_TYPES": ("COMFY_MATCHTYPE_V3",)}
    assert stages.judged("Matching", type("Matching", (), body)).by_place


def test_a_switch_of_any_type_stays_node_other(stages: NodeStages) -> None:
    for name, inputs, outputs in (
        ("ImpactSwitch", "select:INT input1:*", "* STRING INT"),
        ("Image Input Switch", "image_a:IMAGE image_b:IMAGE", "IMAGE"),
    ):
        found = visited(stages, name, shape(inputs, outputs))
        assert (found.stage, found.hint) == ("node_other", None)


def test_the_packs_table_lists_no_class_that_its_types_decide_alike() -> None:
    by_type, table = NodeStages({}), load().nodes
    for name, (inputs, outputs, _) in (ONE_THING | SEVERAL_THINGS | OUTPUTS).items():
        if name in table:
            attributes = OUTPUT if name in OUTPUTS else {}
            with_table = visited(NodeStages(table), name, shape(inputs, outputs, **attributes))
            assert visited(by_type, name, shape(inputs, outputs, **attributes)) != with_table
