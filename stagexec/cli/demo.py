"""`stagexec demo`: a real ComfyUI, the tiny checkpoint, three runs, their ledgers, and why they differ."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import pathlib
import re
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import click

from stagexec import files
from stagexec.cli import common
from stagexec.reading import store

if TYPE_CHECKING:
    from stagexec.answers.explain import Difference
    from stagexec.bench.client import Client
    from stagexec.reading.runs import Run

SAMPLER = "3"
"""Node id of the sampler in the demo's workflow; it holds the seed."""

TITLES = {"the first run": 1, "the same again": 1, "a new seed": 2}
"""What each run is called -> its seed."""

CLOSE_SECONDS = 60.0


class DemoFailed(click.ClickException):
    """It ran, and it did not work: exit code 1."""


@click.command("demo")
@click.option("--ledger", metavar="DIR", help="Ledger folder; by default .stagexec/ledger in this folder.")
@common.json_option
@click.option(
    "--comfyui", metavar="DIR", help="The ComfyUI folder; by default $COMFYUI_PATH, this one, a fetched one."
)
def command(ledger: str | None, as_json: bool, comfyui: str | None) -> None:
    """Set up what is missing, run a tiny workflow three times, and show where the time went."""
    from stagexec.bench import client, lab, setup

    folder = common.target(".stagexec/ledger" if ledger is None else ledger, "--ledger")
    if reason := files.unkept(folder):
        raise common.BadInput(f"--ledger: {reason}")
    try:
        host, checkpoints = prepare(comfyui)
        with tempfile.TemporaryDirectory(prefix="stagexec-demo-", ignore_cleanup_errors=True) as base:
            launch = lab.Launch(
                host, pathlib.Path(base), ledger=folder, checkpoints=checkpoints, args=device_args()
            )
            say(f"starting ComfyUI in {host}")
            with lab.Server(launch) as server, server.client() as browser:
                runs = [run_once(browser, folder, title, seed) for title, seed in TITLES.items()]
    except setup.SetupError as problem:
        raise DemoFailed(str(problem)) from None
    except (lab.ServerDied, client.Refused, client.Unreachable, TimeoutError) as problem:
        raise DemoFailed(f"the demo's server: {problem}") from None
    show(runs, folder, as_json)


def prepare(comfyui: str | None) -> tuple[pathlib.Path, pathlib.Path]:
    """The host tree and the folder of the tiny checkpoint, made if they are missing.

    Raises SetupError when that fails, BadInput when this Python lacks what the host needs.
    """
    from stagexec.bench import checkpoint, setup

    say("looking for a ComfyUI tree, else fetching one")
    try:
        host = setup.find_host(comfyui)
    except setup.NotATree as problem:
        raise common.BadInput(str(problem).replace("--stagexec-comfyui", "--comfyui")) from None
    if missing := missing_requirements(host):
        raise common.BadInput(
            f"this Python lacks what ComfyUI needs ({', '.join(missing)}). "
            f"Run: {sys.executable} -m pip install -r {host / 'requirements.txt'}"
        )
    if not checkpoint.checkpoint_path().exists():
        say("making the tiny checkpoint (500 MB of random weights, once)")
    return host, checkpoint.make_checkpoint(host).parent


def missing_requirements(host: pathlib.Path) -> list[str]:
    """The packages that the host's requirements name as essential and this Python does not have."""
    text = (host / "requirements.txt").read_text(encoding="utf-8")
    essential = re.split(r"^#\s*non[ -]essential", text, flags=re.MULTILINE | re.IGNORECASE)[0]
    names = re.findall(r"^([A-Za-z0-9][A-Za-z0-9._-]*)", essential, flags=re.MULTILINE)
    return [name for name in names if not has_package(name)]


def has_package(name: str) -> bool:
    """Whether a distribution of that name is installed."""
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def device_args() -> tuple[str, ...]:
    """`--cpu` where PyTorch finds no CUDA device."""
    import torch

    return () if torch.cuda.is_available() else ("--cpu",)


def run_once(browser: Client, ledger: pathlib.Path, title: str, seed: int) -> Run:
    """Run the workflow with that seed and return the run as the journal has it, once it is closed."""
    say(f"{title} …")
    prompt_id = browser.submit(workflow(seed))
    browser.wait(prompt_id)
    return wait_closed(ledger, prompt_id)


def workflow(seed: int) -> dict[str, Any]:
    """The tiny text-to-image workflow (64×64, 2 steps) in API form."""
    from stagexec.resources import bench_folder

    file = bench_folder() / "workflows" / "tiny_txt2img.json"
    prompt: dict[str, Any] = copy.deepcopy(json.loads(file.read_text(encoding="utf-8")))
    prompt[SAMPLER]["inputs"]["seed"] = seed
    return prompt


def wait_closed(ledger: pathlib.Path, prompt_id: str, seconds: float = CLOSE_SECONDS) -> Run:
    """The run of a prompt when its last delivery check is in the journal; TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        try:
            run = store.load(ledger).find(prompt_id)
        except store.NoSuchRun:
            run = None
        if run is not None and run.outcome is not None:
            return run
        if time.monotonic() > end:
            state = "is not in the journal" if run is None else "was never closed in the journal"
            raise TimeoutError(f"prompt {prompt_id} {state} of {ledger} after {seconds:.0f} s")
        time.sleep(0.05)


def show(runs: list[Run], ledger: pathlib.Path, as_json: bool) -> None:
    """Print each run's ledger and what made the later ones faster; exit code 1 if a run went wrong."""
    from stagexec.answers.explain import explain
    from stagexec.reading import rows

    details = [rows.detail(run) for run in runs]
    first = next(iter(TITLES))
    differences = [
        explain(runs[0], run, first, title) for run, title in zip(runs[1:], list(TITLES)[1:], strict=True)
    ]
    if as_json:
        common.print_json({"runs": details, "differences": differences})
    else:
        print_all(details, differences, ledger)
    if any(run.outcome != "success" for run in runs):
        raise SystemExit(1)


def print_all(details: list[dict[str, Any]], differences: list[Difference], ledger: pathlib.Path) -> None:
    """The same for a person."""
    from stagexec.views import names, text

    out = text.console()
    for title, detail, difference in zip(TITLES, details, [None, *differences], strict=True):
        out.print(
            f"\n[bold]{title}[/]: {text.text(detail['outcome'])}, run {text.text(detail['run_id'][:8])}"
        )
        text.print_stages(out, detail)
        names.print_headline(out, detail["named_share"])
        if difference is not None:
            out.print(text.text(difference.verdict))
    out.print(f"\nThe ledger is in {text.text(ledger)}. Ask it more, for example:")
    out.print(f"  stagexec show last --ledger {text.text(ledger)}", soft_wrap=True)
    out.print(f"  stagexec diff last~2 last~1 --ledger {text.text(ledger)}", soft_wrap=True)


def say(progress: str) -> None:
    """Progress, on standard error."""
    common.say(progress)
