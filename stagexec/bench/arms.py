"""Arms: their workflow edits, whether they can run here, and the proof that they were active."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stagexec.bench.plan import Edit, Needs, Proof

Prompt = dict[str, Any]

PROBE = """
import importlib.util, json, sys
answer = {"missing": [m for m in sys.argv[1].split(",") if m and importlib.util.find_spec(m) is None]}
if sys.argv[2]:
    import torch
    on = torch.cuda.is_available()
    answer["device"] = torch.cuda.get_device_name() if on else None
    answer["capability"] = ".".join(map(str, torch.cuda.get_device_capability())) if on else None
print(json.dumps(answer))
"""
PROBE_SECONDS = 120.0


class CannotEdit(Exception):
    """An edit does not fit the workflow; the text says which."""


def edited(prompt: Mapping[str, Any], edits: Sequence[Edit]) -> Prompt:
    """A copy of an API prompt with `edits` made, in order. Raises CannotEdit."""
    made: Prompt = copy.deepcopy(dict(prompt))
    for edit in edits:
        values = {**edit.set, **({edit.input: edit.value} if edit.input is not None else {})}
        if edit.add is not None:
            made[edit.add] = {"class_type": edit.class_name, "inputs": copy.deepcopy(values)}
            continue
        for node_id in _targets(made, edit):
            node = made[node_id]
            node["inputs"].update(copy.deepcopy(values))
            if edit.becomes is not None:
                node["class_type"] = edit.becomes
    return made


def _targets(prompt: Prompt, edit: Edit) -> list[str]:
    if edit.node is not None:
        if edit.node not in prompt:
            raise CannotEdit(f"the workflow has no node {edit.node}")
        return [edit.node]
    found = [node_id for node_id, node in prompt.items() if node["class_type"] == edit.class_name]
    if not found:
        raise CannotEdit(f"the workflow has no node of class {edit.class_name}")
    return found


def seeded(prompt: Prompt, seeds: Sequence[tuple[str, str]], seed: int) -> Prompt:
    """A copy of the prompt with `seed` in each of the named inputs."""
    made = copy.deepcopy(prompt)
    for node_id, name in seeds:
        if node_id in made:
            made[node_id]["inputs"][name] = seed
    return made


# --- can it run here? --------------------------------------------------------------------------------


def unknown_option(args: Sequence[str], known: Callable[[str], bool]) -> str | None:
    """The first `--option` that this host does not know; our own are always known."""
    for word in args:
        name = word.partition("=")[0]
        if name.startswith("--") and not name.startswith("--stagexec-") and not known(name):
            return name
    return None


def missing_needs(needs: Needs, python: str, roots: Sequence[Path]) -> str | None:
    """Why an arm's needs are not met by this Python and machine; None when they are.

    Node classes are asked of the running server instead. `roots` are the folders that models lie in.
    """
    for name in needs.files:
        if not any((root / name).is_file() for root in roots):
            return f"there is no file {name}"
    if not needs.modules and not needs.device:
        return None
    command = [python, "-c", PROBE, ",".join(needs.modules), needs.device or ""]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS)
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return f"{python} could not be asked what it has: {error!r}"
    if answer["missing"]:
        return f"the package {', '.join(answer['missing'])} is not installed"
    if needs.device and answer["device"] is None:
        return "this machine has no CUDA device that torch can use"
    if needs.capability and _version(answer["capability"]) < _version(needs.capability):
        return f"{answer['device']} has compute capability {answer['capability']}, not {needs.capability}"
    return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


# --- was it active? ----------------------------------------------------------------------------------


def prove(
    proof: Proof, manifest: Mapping[str, Any] | None, run: Mapping[str, Any], log: str
) -> dict[str, Any]:
    """One proof answered: {what, ok, evidence, found}. `ok` is None when no evidence was there.

    The ledger's own evidence goes before the server's log; the first that is there decides.
    """
    for kind in (_by_diagnosis, _by_field, _by_row, _by_executed, _by_cached, _by_log):
        answer = kind(proof, manifest, run, log)
        if answer is not None:
            ok, evidence, found = answer
            return {"what": proof.what, "ok": ok, "evidence": evidence, "found": found}
    return {"what": proof.what, "ok": None, "evidence": "none", "found": None}


Answer = tuple[bool, str, Any] | None


def _matches(pattern: str, value: Any) -> bool:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return re.search(pattern, text) is not None


def _by_diagnosis(
    proof: Proof, manifest: Mapping[str, Any] | None, run: Mapping[str, Any], log: str
) -> Answer:
    if proof.diagnosis is None:
        return None
    said = [d["says"] for d in run.get("diagnoses", ()) if re.fullmatch(proof.diagnosis, d["name"])]
    return (
        (any(_matches(proof.value, s) for s in said), "the run's diagnosis", "; ".join(said))
        if said
        else None
    )


def _by_field(proof: Proof, manifest: Mapping[str, Any] | None, run: Mapping[str, Any], log: str) -> Answer:
    value = (manifest or {}).get(proof.field or "")
    if value is None:
        return None
    return _matches(proof.value, value), f"the condition's {proof.field}", value


def _by_row(proof: Proof, manifest: Mapping[str, Any] | None, run: Mapping[str, Any], log: str) -> Answer:
    value = run.get(proof.row or "")
    if value is None:
        return None
    return _matches(proof.value, value), f"the ledger's {proof.row}", value


def _by_executed(
    proof: Proof, manifest: Mapping[str, Any] | None, run: Mapping[str, Any], log: str
) -> Answer:
    if proof.executed is None:
        return None
    seen = {v["class_type"] for v in run["visits"] if v["kind"] == "executed"}
    return proof.executed in seen, "the ledger's visits", sorted(filter(None, seen))


def _by_cached(proof: Proof, manifest: Mapping[str, Any] | None, run: Mapping[str, Any], log: str) -> Answer:
    if proof.cached is None:
        return None
    hits = len(run["cached_nodes"]) + len(run["cached_in_run"])
    return (hits > 0) == proof.cached, "the ledger's cached nodes", hits


def _by_log(proof: Proof, manifest: Mapping[str, Any] | None, run: Mapping[str, Any], log: str) -> Answer:
    if proof.log is None:
        return None
    found = re.search(proof.log, log, flags=re.MULTILINE)
    line = None
    if found:
        start = log.rfind("\n", 0, found.start()) + 1
        line = log[start : log.find("\n", found.start()) % (len(log) + 1)].strip()
    return found is not None, "a line of the server's log", line
