"""The labelled scenarios: each with the milliseconds that belong to a stage, or to a part of one.

A key is `stage` or `stage/part`; `a|b` where the contract leaves open which of the two it is. Everything that
is not labelled may take as much as a run takes by itself, and no more; `real` names the stages in which work
of unknown length is done, such as that of an encoder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.host.graphs import TINY_CHECKPOINT, Prompt, node
from tests.host.witness import Seen, Witness
from tests.scenarios import graphs
from tests.scenarios.pack.models import DECODE, ENCODE, STEP, TOKENIZE, VAE_ENCODE

Labels = dict[str, int]

TEXTS: Labels = {"conditioning/tokenize": 2 * TOKENIZE, "conditioning/encode": 2 * ENCODE}
DRAWN: Labels = {**TEXTS, "sampling/step": 2 * STEP}
TXT2IMG: Labels = {**DRAWN, "vae_decode/decode": DECODE}


@dataclass(frozen=True)
class Scenario:
    """One prompt, or several of which the last is looked at, and where its time belongs."""

    name: str
    prompts: Callable[[int], Prompt | list[Prompt]]
    labels: Labels
    real: tuple[str, ...] = ()
    ended: tuple[str, str | None] = ("success", None)
    check: Callable[[Seen], None] = lambda seen: None
    play: Callable[[Witness, list[Prompt]], Seen] | None = None
    on_host: bool = False
    """Also in ComfyUI's own loop."""
    nodes: dict[str, Labels] = field(default_factory=dict)
    """Node id -> what of its own visits belongs to a stage."""
    named: bool = False
    """Of those kinds of graphs of which nearly all must have a name."""
    beside: tuple[str, ...] = ()
    """Spans that must be there, by the beginning of their lane."""


def spans(seen: Seen, lane: str) -> list[dict[str, object]]:
    """The spans of a lane, or of all lanes whose names begin so."""
    return [one for one in seen.ledger["spans"] if one["lane"].startswith(lane)]


def calls(node_id: str, count: int) -> Callable[[Seen], None]:
    """A check that a node was called so often."""

    def check(seen: Seen) -> None:
        assert [visit["calls"] for visit in seen.visits_of(node_id)] == [count]

    return check


def not_executed(node_id: str) -> Callable[[Seen], None]:
    """A check that a node was left out."""

    def check(seen: Seen) -> None:
        assert node_id in seen.ledger["not_executed"]

    return check


def validated(ms: int) -> Callable[[Seen], None]:
    """A check that the validation took so long, beside the run."""

    def check(seen: Seen) -> None:
        assert seen.ledger["validate_ns"] >= ms * 1_000_000

    return check


def executed_only(*nodes: str) -> Callable[[Seen], None]:
    """A check of what was executed."""

    def check(seen: Seen) -> None:
        assert set(seen.ledger["executed_nodes"]) == set(nodes)

    return check


def child_ended(code: int) -> Callable[[Seen], None]:
    """A check that a child process left a span with its exit code."""

    def check(seen: Seen) -> None:
        (span,) = spans(seen, "child:")
        assert isinstance(span["detail"], dict)
        assert span["detail"]["exit_code"] == code

    return check


def startup(name: str) -> Callable[[Seen], None]:
    """A check of the startup class."""

    def check(seen: Seen) -> None:
        assert seen.ledger["startup_class"] == name

    return check


def pictures(count: int) -> Callable[[Seen], None]:
    """A check of how many pictures the run made and delivered."""

    def check(seen: Seen) -> None:
        assert seen.ledger["pictures"] == count
        rate = count * 1e9 / seen.ledger["total_ns"] if count else None
        assert seen.ledger["pictures_per_s"] == rate

    return check


def found(via: str) -> Callable[[Seen], None]:
    """A check that one file was delivered, and of how it was found."""

    def check(seen: Seen) -> None:
        assert [(one["via"], one["state"]) for one in seen.ledger["artifacts"]] == [(via, "verified")]

    return check


def cancelled(seen: Seen) -> None:
    """A check that the cancel took effect soon."""
    assert seen.ledger["cancel_latency_ns"] < 200_000_000


def cancel_soon(witness: Witness, prompts: list[Prompt]) -> Seen:
    """Cancel when the node that works has begun."""
    prompt_id = witness.client.submit(prompts[-1])
    witness.client.wait_for("executing", prompt_id, node="1")
    witness.client.interrupt(prompt_id)
    return witness.wait(prompt_id)


def behind_another(witness: Witness, prompts: list[Prompt]) -> Seen:
    """Submit all at once; the last waits for the others."""
    ids = [witness.client.submit(prompt) for prompt in prompts]
    return [witness.wait(prompt_id) for prompt_id in ids][-1]


def of_a_new_file(witness: Witness, prompts: list[Prompt]) -> Seen:
    """The last one's checkpoint is one that this process has never seen."""
    name = prompts[-1]["load"]["inputs"]["ckpt_name"]
    witness.run(prompts[0])
    another_checkpoint(witness, name)
    return witness.run(prompts[-1])


def another_checkpoint(witness: Witness, name: str) -> None:
    """The tiny checkpoint under another name, and with other weights at its end."""
    launch = witness.server.launch
    assert launch.checkpoints is not None
    content = bytearray((launch.checkpoints / TINY_CHECKPOINT).read_bytes())
    content[-64:] = hashlib.sha512(name.encode()).digest()
    path = witness.server.base / "models" / "checkpoints" / name
    path.parent.mkdir(exist_ok=True)  # the host made none: its checkpoints are elsewhere
    path.write_bytes(bytes(content))


def reseeded(label: int) -> list[Prompt]:
    """The same twice, the second time with another seed."""
    return [graphs.txt2img(label, seed=1), graphs.txt2img(label, seed=2)]


def switched_models(label: int) -> list[Prompt]:
    """A model, another one, and the first again."""
    other = graphs.checkpoint(label, "other-tiny.safetensors")
    return [graphs.checkpoint(label), other, graphs.checkpoint(label + 1)]


OWN = "node_other"

DRAWING = [
    Scenario(
        "txt2img",
        graphs.txt2img,
        TXT2IMG,
        on_host=True,
        named=True,
        nodes={"sample": {"sampling": 2 * STEP}},
        check=pictures(1),
    ),
    Scenario(
        "img2img",
        graphs.from_picture,
        {**TXT2IMG, "conditioning/vae_encode": VAE_ENCODE},
        named=True,
        nodes={"encode": {"conditioning": VAE_ENCODE}},
    ),
    Scenario(
        "inpaint",
        lambda n: graphs.from_picture(n, "VAEEncodeForInpaint"),
        {**TXT2IMG, "conditioning/vae_encode": VAE_ENCODE},
    ),
    Scenario("tiled_decode", graphs.tiled, {**DRAWN, "vae_decode/tiled": 3 * DECODE}),
    Scenario(
        "same_again",
        lambda n: [graphs.txt2img(n), graphs.txt2img(n)],
        {},
        on_host=True,
        check=executed_only(),
    ),
    Scenario(
        "new_seed",
        reseeded,
        {"sampling/step": 2 * STEP, "vae_decode/decode": DECODE},
        check=executed_only("sample", "decode", "save"),
    ),
    Scenario(
        "detailer",
        lambda n: graphs.detailer(n, 140, 180),
        {
            **TXT2IMG,
            "conditioning/vae_encode": VAE_ENCODE,
            OWN: 320,
        },
        on_host=True,
        named=True,
        nodes={
            "sample": {
                "conditioning": VAE_ENCODE,
                "sampling": 2 * STEP,
                "vae_decode": DECODE,
                OWN: 320,
            }
        },
    ),
    Scenario(
        "detailer_that_is_an_output",
        lambda n: graphs.detailer(n, 130, 120, "ScnDetailerOut"),
        {**TXT2IMG, "conditioning/vae_encode": VAE_ENCODE, OWN: 250},
    ),
    Scenario(
        "sampler_that_decodes",
        lambda n: graphs.full_sampler(n, 170),
        {**TXT2IMG, OWN: 170},
        nodes={"sample": {"sampling": 2 * STEP, "vae_decode": DECODE, OWN: 170}},
    ),
    Scenario(
        "text_node_of_a_pack",
        lambda n: graphs.own_text(n, 150),
        {"conditioning/tokenize": TOKENIZE, "conditioning/encode": ENCODE, "conditioning": 150},
    ),
    Scenario(
        "control_net",
        lambda n: graphs.control(n, 160, 140),
        {**TXT2IMG, "conditioning|node_other": 300},
        named=True,
    ),
    Scenario(
        "upscaler",
        lambda n: graphs.after_decode(n, "ScnUpscale", ms=150, upscale_by=2.0),
        {**TXT2IMG, "postprocess": 150},
    ),
    Scenario(
        "interpolation",
        lambda n: graphs.after_decode(n, "ScnInterpolate", ms=170, multiplier=2),
        {**TXT2IMG, "postprocess": 170},
    ),
    Scenario(
        "background_removal_with_a_picture_to_show",
        lambda n: graphs.after_decode(n, "ScnRemBg", ms=160, save_prefix="x"),
        {**TXT2IMG, "postprocess|node_other": 160},
    ),
    Scenario(
        "loader_and_sampler_of_own_types",
        lambda n: graphs.own_video(n, 160, 210),
        {"model_load_residency|node_other": 160, "sampling|node_other": 210},
    ),
    Scenario(
        "wan_video_wrapper",
        lambda n: graphs.own_video(n, 160, 210, "WanVideo"),
        {"model_load_residency": 160, "sampling": 210},
    ),
    Scenario(
        "upload_of_a_model_of_its_own",
        lambda n: graphs.shown(n, node("ScnUpload", label=n, upload_ms=140, forward_ms=170)),
        {"model_load_residency/upload": 140, OWN: 170},
    ),
]

WRITING = [
    Scenario(
        "video_by_a_process",
        lambda n: graphs.video(n, "ScnCombine", 70),
        {**TXT2IMG, "encode_mux": 210},
        real=("encode_mux",),
        on_host=True,
        named=True,
        beside=("child:ffmpeg",),
        check=pictures(3),
    ),
    Scenario(
        "video_in_the_process",
        lambda n: graphs.video(n, "ScnWriteVideo", 60),
        {**TXT2IMG, "encode_mux": 180},
        real=("encode_mux",),
        check=pictures(3),
    ),
    Scenario(
        "video_by_its_codec_alone",
        lambda n: graphs.film_by_codec(n, 160),
        {"encode_mux": 160},
        on_host=True,
        check=found("written"),
    ),
    Scenario(
        "several_savers",
        lambda n: graphs.two_savers(n, 110, 130),
        {"native_materialize": 240},
        nodes={"first": {"native_materialize": 110}, "second": {"native_materialize": 130}},
        check=pictures(3),
    ),
    Scenario(
        "decode_in_a_saver",
        lambda n: graphs.decode_in_saver(n, 140),
        {**TXT2IMG, "native_materialize|node_other": 140},
    ),
    Scenario("saver_by_websocket", lambda n: graphs.websocket(n, 120), {OWN: 120}),
]

LIBRARIES = [
    Scenario(
        "pickled_checkpoint",
        lambda n: graphs.loads(n, "ScnTorchLoad", 180, 120),
        {"model_load_residency/read": 180, OWN: 120},
    ),
    Scenario(
        "diffusers_pipeline",
        lambda n: graphs.pipeline(n, 190, own_ms=0, encode_ms=110, step_ms=60, decode_ms=90),
        {"model_load_residency": 190, "conditioning": 110, "sampling": 180, "vae_decode": 90},
        named=True,
    ),
    Scenario(
        "diffusers_node_with_work_of_its_own",
        lambda n: graphs.pipeline(n, 0, own_ms=150, encode_ms=0, step_ms=80, decode_ms=0),
        {"sampling": 240, OWN: 150},
    ),
    Scenario(
        "diffusers_component",
        lambda n: graphs.loads(n, "ScnComponent", 170, 130),
        {"model_load_residency": 170, OWN: 130},
    ),
    Scenario(
        "hub_download",
        lambda n: graphs.loads(n, "ScnDownload", 200, 120),
        {"external_wait": 200, OWN: 120},
        real=("external_wait",),  # the library asks first, and puts its file in place
    ),
    *(
        Scenario(
            f"remote_by_{library}",
            lambda n, library=library: graphs.asks(n, library, 130, 220),
            {"external_wait": 220, OWN: 130},
        )
        for library in ("requests", "httpx", "urllib3", "urllib")
    ),
    Scenario("remote_api", lambda n: graphs.asks(n, "requests", 0, 300), {"external_wait": 300}, named=True),
    Scenario("remote_by_aiohttp", lambda n: graphs.asks_later(n, 250), {"external_wait": 250}, named=True),
    Scenario(
        "remote_beside_local_work",
        lambda n: graphs.asks_later(n, 330, beside_ms=180),
        {OWN: 180, "external_wait": 150},
        real=("external_wait",),  # the host may begin with either
    ),
    Scenario(
        "tool_as_a_process",
        lambda n: graphs.shown(n, node("ScnChild", value=["pic", 0], ms=160)),
        {"node_other|external_wait": 160},
        real=("node_other", "external_wait"),
        check=child_ended(0),
    ),
]

LOOP = [
    Scenario("list_mapping", lambda n: graphs.mapped(n, 70), {OWN: 210}, on_host=True, check=calls("map", 3)),
    Scenario(
        "lazy_switch",
        lambda n: graphs.switched(n, 140, 500, 110),
        {OWN: 250},
        on_host=True,
        check=not_executed("1"),
        nodes={"2": {OWN: 140}, "3": {OWN: 110}},
    ),
    Scenario(
        "expansion",
        lambda n: graphs.shown(n, node("ScnExpand", value=["pic", 0], own_ms=120, child_ms=90, count=2)),
        {OWN: 300},
        on_host=True,
        nodes={"1": {OWN: 120}},
    ),
    Scenario(
        "loop",
        lambda n: graphs.shown(n, node("ScnLoop", value=["pic", 0], turns=3, ms=80)),
        {OWN: 240},
        on_host=True,
    ),
    Scenario(
        "async_nodes",
        lambda n: graphs.later(n, 3, 230),
        {"external_wait": 230},
        on_host=True,
        beside=("task:",),
    ),
    Scenario("thread", lambda n: graphs.shown(n, node("ScnThread", value=["pic", 0], ms=170)), {OWN: 170}),
    Scenario("blocker", lambda n: graphs.blocked(n, 120, 130), {OWN: 250}, ended=("partial", "blocked")),
    Scenario(
        "slow_is_changed",
        lambda n: graphs.shown(n, node("ScnChanged", value=["pic", 0], ask_ms=200, ms=120)),
        {"executor_prepare": 200, OWN: 120},
        on_host=True,
    ),
    Scenario(
        "slow_validation",
        lambda n: graphs.shown(n, node("ScnValidated", value=["pic", 0], ask_ms=210, ms=120)),
        {OWN: 120},
        check=validated(210),
    ),
    Scenario(
        "failing_in_the_middle",
        lambda n: graphs.shown(n, graphs.work("pic", 120), node("ScnFail", value=["1", 0], ms=130)),
        {OWN: 250},
        ended=("failed", "node_exception"),
        on_host=True,
        nodes={"1": {OWN: 120}, "2": {OWN: 130}},
    ),
    Scenario(
        "cancelled_in_the_middle",
        lambda n: graphs.shown(n, node("ScnCancellable", value=["pic", 0], ms=3000)),
        {},
        real=(OWN,),
        ended=("cancelled", "user_cancel"),
        play=cancel_soon,
        check=cancelled,
    ),
    Scenario(
        "behind_another",
        lambda n: [graphs.shown(n, graphs.work("pic", 300)), graphs.shown(n + 1, graphs.work("pic", 120))],
        {"queue_wait": 300, OWN: 120},
        play=behind_another,
        real=("queue_wait",),
    ),
    Scenario(
        "node_that_tells_its_stages",
        lambda n: graphs.shown(
            n, node("ScnStaged", value=["pic", 0], own_ms=110, post_ms=130, encode_ms=150)
        ),
        {OWN: 110, "postprocess": 130, "encode_mux/encode": 150},
        on_host=True,
    ),
]

PLAIN = [
    Scenario(
        "pipe_of_everything",
        lambda n: {
            **graphs.drawing(n),
            "pipe": node("ScnPipe", ms=150, model=["load", 0], positive=["pos", 0]),
            "show": node("ScnShow", value=["pipe", 2]),
        },
        {"conditioning/tokenize": TOKENIZE, "conditioning/encode": ENCODE, OWN: 150},
    ),
    Scenario(
        "settings",
        lambda n: graphs.shown(
            n,
            node("ScnSettings", ms=120, eta=n / 1000),
            node("ScnUseSettings", settings=["1", 0], ms=140),
        ),
        {OWN: 260},
    ),
    Scenario(
        "mask",
        lambda n: graphs.shown(n, node("ScnMask", mask=["pic", 1], ms=150)),
        {OWN: 150},
    ),
    Scenario(
        "first_of_a_model_in_a_warm_process",
        lambda n: [graphs.shown(n, graphs.work("pic", 0)), graphs.checkpoint(n, f"tiny-{n}.safetensors")],
        {},
        play=of_a_new_file,
        real=("model_load_residency", "conditioning"),
        check=startup("model_cold_process_warm"),
    ),
    Scenario(
        "the_same_model_kept",
        lambda n: [graphs.checkpoint(n), graphs.checkpoint(n + 1)],
        {},
        real=("conditioning",),
        check=startup("model_warm_recompute"),
    ),
    Scenario(
        "model_switch",
        lambda n: [
            graphs.checkpoint(n),
            graphs.checkpoint(n, "other-tiny.safetensors"),
            graphs.checkpoint(n + 1),
        ],
        {},
        real=("model_load_residency", "conditioning"),
        check=startup("model_switch_A_B_A"),
    ),
    Scenario(
        "all_cached",
        lambda n: [graphs.shown(n, graphs.work("pic", 150))] * 2,
        {},
        check=startup("cache_hit_rerun"),
    ),
]

SCENARIOS = [*DRAWING, *WRITING, *LIBRARIES, *LOOP, *PLAIN]
