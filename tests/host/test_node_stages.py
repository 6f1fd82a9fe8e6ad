"""The stage of a visit comes from its class and its place in the graph, in our loop and in the host's."""

from __future__ import annotations

import pytest

from tests.host.graphs import TINY_CHECKPOINT, Prompt, empty, line, node, save
from tests.host.witness import Witness, prefix

IMAGE_TO_IMAGE = {
    "4": ("conditioning", None),
    "7": ("node_other", "conditioning"),
    "9": ("sampling", None),
    "10": ("vae_decode", None),
    "11": ("postprocess", None),
    "12": ("node_other", "sampling"),
    "13": ("native_materialize", None),
}
"""Node -> (stage, hint) of its visit."""


def image_to_image(color: int, name: str) -> Prompt:
    """A picture "3" is scaled for a ControlNet "4" and for the sampler "7"; "11" and "12" come after."""
    settings = {"steps": 1, "sampler_name": "euler", "scheduler": "normal"}
    sampler = node(
        "KSampler",
        seed=color,
        cfg=1.0,
        denoise=0.5,
        model=["1", 0],
        positive=["6", 0],
        negative=["6", 1],
        latent_image=["8", 0],
        **settings,
    )
    return line(
        node("CheckpointLoaderSimple", ckpt_name=TINY_CHECKPOINT),
        node("CLIPTextEncode", text="a harbour", clip=["1", 1]),
        empty(color, size=128),
        node("ImageInvert", image=["3", 0]),
        node("StxControlNet"),
        node(
            "ControlNetApplyAdvanced",
            positive=["2", 0],
            negative=["2", 0],
            control_net=["5", 0],
            image=["4", 0],
            strength=0.0,
            start_percent=0.0,
            end_percent=1.0,
        ),
        node("ImageScaleBy", image=["3", 0], upscale_method="bilinear", scale_by=0.5),
        node("VAEEncode", pixels=["7", 0], vae=["1", 2]),
        sampler,
        node("VAEDecode", samples=["9", 0], vae=["1", 2]),
        node("ImageInvert", image=["10", 0]),
        node("StxDetailer", image=["11", 0], model=["1", 0], seconds=0.05, **settings),
        save(["12", 0], name),
    )


@pytest.mark.parametrize("loop", ["witness", "host_witness"])
def test_work_on_pictures_is_judged_by_its_place_and_a_detailer_has_a_hint(
    request: pytest.FixtureRequest, loop: str, color: int
) -> None:
    witness: Witness = request.getfixturevalue(loop)
    seen = witness.run(image_to_image(color, prefix("place")))
    assert seen.ended == ("success", None)
    assert seen.ledger["executor"] == ("native" if loop == "witness" else "host")
    found = {one["node_id"]: (one["stage"], one["hint"]) for one in seen.ledger["visits"]}
    assert {node_id: found[node_id] for node_id in IMAGE_TO_IMAGE} == IMAGE_TO_IMAGE
    assert seen.stage_ms("node_other") >= 50
    assert seen.ledger["faults"] == []


def test_a_run_to_native_output_samples_from_a_scaled_picture(witness: Witness, color: int) -> None:
    seen = witness.run(image_to_image(color, prefix("until")), extra_data={"stagexec.until": "native"})
    assert seen.ended == ("success", None)
    assert {one["node_id"] for one in seen.ledger["visits"]} >= {"7", "9", "10"}
    assert seen.ledger["not_executed"] == []
    assert not {one["node_id"] for one in seen.ledger["visits"]} & {"11", "12", "13"}
