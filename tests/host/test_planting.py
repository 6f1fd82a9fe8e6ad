"""No text that anybody planted in an input, an error, a name or a setting is found in the ledger's folder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from stagexec.bench import lab
from stagexec.bench.client import Client
from stagexec.cli.demo import workflow
from tests.host.graphs import Prompt, empty, line, node
from tests.host.nodes_pack.planting import NAMES
from tests.host.witness import Witness, closed_run, printed

WORD = "quillwhisper"
PLACES = ("message", "kind", "thread", "part", "blocker", "said", "shown", "child")


def plant(where: str, color: int, **inputs: Any) -> Prompt:
    made = node("StxPlant", value=["1", 0], where=where, text=WORD, **inputs)
    return line(empty(color), {**made, "_meta": {"title": WORD}}, node("PreviewAny", source=["2", 0]))


def everywhere(prompt: Prompt) -> Prompt:
    """The word as an input that no class knows, and as a title, of every node."""
    for one in prompt.values():
        one["inputs"] |= {"planted": WORD, WORD: WORD, f"{WORD}_seed": 7, "sampler": WORD, "preset": WORD}
        one["_meta"] = {"title": WORD}
    return prompt


def core() -> Prompt:
    """The core nodes of a picture, with the word wherever they take a text."""
    prompt = workflow(77)
    for one in prompt.values():
        if one["class_type"] == "CLIPTextEncode":
            one["inputs"]["text"] = f"a {WORD} in the snow"
    words = {
        "20": node("PrimitiveString", value=WORD),
        "21": node("PrimitiveStringMultiline", value=f"{WORD}\n{WORD}"),
        "22": node("StringConcatenate", string_a=["20", 0], string_b=["21", 0], delimiter=WORD),
        "23": node("StringReplace", string=["22", 0], find="x", replace=WORD),
        "24": node("RegexMatch", string=["23", 0], regex_pattern=WORD, case_insensitive=True,
                   multiline=False, dotall=False),
        "25": node("PreviewAny", source=["23", 0]),
        "26": node("PreviewAny", source=["24", 0]),
    }  # fmt: skip
    return everywhere({**prompt, **words})


def encoded(color: int) -> Prompt:
    settings = {"fps": 8.0, "codec": "libx264", "preset": WORD, "quality": 20, "pixel_format": "yuv420p"}
    more = {"filters": f"scale=32:32,eq={WORD}=1", "container": "mp4", "threads": 0, "hwaccel": "none"}
    made = node("StagexecEncodeVideo", images=["1", 0], **settings, **more)
    place = {"filename_prefix": "planted", "destination": "", "overwrite": False}
    return line(empty(color, 32, 4), made, node("StagexecDeliver", artifact=["2", 0], **place))


def where_found(folder: Path) -> list[str]:
    files = [one for one in folder.rglob("*") if one.is_file()]
    named = [str(one) for one in files if WORD in str(one).lower()]
    return named + [one.name for one in files if WORD.encode() in one.read_bytes().lower()]


@pytest.fixture(scope="module")
def planted(ours: lab.Server) -> list[str]:
    """The prompt ids of runs with the word in every place."""
    seen = Witness(ours)
    extra = {"extra_pnginfo": {"workflow": {"nodes": [{"id": 1, "title": WORD}]}}, WORD: WORD}
    prompts = [plant(where, 9000 + at) for at, where in enumerate(PLACES)]
    prompts += [plant("nowhere", 9050, **dict.fromkeys(NAMES, WORD)), core(), encoded(9060)]
    with Client(ours.url, client_id=f"{WORD}-client") as browser:
        ids = [browser.submit(prompt, extra_data=extra) for prompt in prompts]
        for prompt_id in ids:
            browser.wait(prompt_id)
    end = time.monotonic() + 60
    while any(closed_run(seen.folder, prompt_id).missing is None for prompt_id in ids):
        assert time.monotonic() < end, "a condition never came"
        time.sleep(0.1)
    seen.close()
    return ids


def test_each_place_was_reached(ours: lab.Server, planted: list[str]) -> None:
    folder = ours.launch.ledger
    assert folder is not None
    runs = [closed_run(folder, prompt_id) for prompt_id in planted]
    at = dict(zip([*PLACES, "inputs", "core", "encoded"], runs, strict=True))
    for where in ("message", "kind", "child", "encoded"):
        assert at[where].outcome == "failed", where
    assert at["kind"].error is not None
    assert at["kind"].error.exception_type == "builtins.ValueError"
    assert [
        one["lane"][:12] for one in printed("show", at["thread"].run_id, "--ledger", folder)["spans"]
    ] == ["thread:text:"]
    parts = {s["part"] for s in printed("show", at["part"].run_id, "--ledger", folder)["segments"]}
    assert "the author's own word" in parts
    assert at["core"].outcome == "success"


def test_the_word_is_in_no_file_of_the_ledger(ours: lab.Server, planted: list[str]) -> None:
    folder = ours.launch.ledger
    assert folder is not None
    listed = printed("runs", "--ledger", folder, "--limit", "500")  # what the index would hold
    assert set(planted) <= {run["prompt_id"] for run in listed}
    assert WORD not in json.dumps(listed).lower()
    assert where_found(folder) == []
