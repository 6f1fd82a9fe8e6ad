"""Which packs are wanted, which are at hand, and the graphs of each."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GRAPHS = Path(__file__).parent / "graphs"
VARIABLE = "STAGEXEC_PACKS"
CORE = "core"
"""The file of graphs that need no pack: played with every pack."""

ANY_END = "as it does"
"""The end of a graph that was made without knowing better."""

Prompt = dict[str, dict[str, Any]]


@dataclass
class Graph:
    """A prompt in API form, and its end. `{prefix}` and `{color}` are filled in for each scene."""

    name: str
    prompt: Prompt
    times: int = 2
    ends: str = "success"

    @property
    def classes(self) -> set[str]:
        """The node classes that it uses."""
        return {node["class_type"] for node in self.prompt.values()}


@dataclass
class Wanted:
    """A pack that the suite has graphs for, or says why it has none (`why`).

    `together` is false for a pack beside which no other can be played.
    """

    name: str
    repository: str = ""
    why: str = ""
    together: bool = True
    graphs: list[Graph] = field(default_factory=list)


@dataclass
class Pack:
    """A pack at hand: its folder, and what is wanted of it."""

    folder: Path
    wanted: Wanted

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    def version(self) -> str:
        """The first ten digits of its commit, with the day; a question mark without git."""
        if not (self.folder / ".git").exists():
            return "?"
        git = ["git", "-C", str(self.folder), "log", "-1", "--format=%h %cs", "--abbrev=10"]
        done = subprocess.run(git, capture_output=True, text=True)
        return done.stdout.strip() or "?"


def plain(name: str) -> str:
    """A pack's name as it is compared: people rename folders in case and dashes."""
    return name.lower().replace("_", "-")


def wanted() -> dict[str, Wanted]:
    """Every graph file, by the plain name of its pack."""
    return {path.stem: read(path) for path in sorted(GRAPHS.glob("*.json"))}


def read(path: Path) -> Wanted:
    """One graph file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    graphs = [Graph(name, **each) for name, each in content.pop("graphs", {}).items()]
    return Wanted(graphs=graphs, **content)


def at_hand(value: str | None = None) -> list[Pack]:
    """The packs in $STAGEXEC_PACKS: each part is a pack's folder, or a folder of packs."""
    parts = (value if value is not None else os.environ.get(VARIABLE, "")).split(os.pathsep)
    known = wanted()
    found: dict[str, Pack] = {}
    for part in filter(None, parts):
        place = Path(part).expanduser().resolve()
        if not place.is_dir():
            raise NotADirectoryError(f"no folder {part}")
        folders = [place] if (place / "__init__.py").is_file() else sorted(place.iterdir())
        for folder in folders:
            if (folder / "__init__.py").is_file():
                name = plain(folder.name)
                found.setdefault(name, Pack(folder, known.get(name) or Wanted(folder.name)))
    return [found[name] for name in sorted(found)]


def workflow(prompt: Prompt) -> dict[str, Any]:
    """The least of what the web interface sends along: many nodes look themselves up in it."""
    nodes = [
        {"id": int(node_id) if node_id.isdigit() else node_id, "type": node["class_type"], "inputs": [],
         "outputs": [], "widgets_values": [], "properties": {}}
        for node_id, node in prompt.items()
    ]  # fmt: skip
    told = {"id": "a-workflow", "workflow_name": "a workflow"}
    return {**told, "nodes": nodes, "links": [], "groups": [], "extra": {}, "version": 0.4}


def fill(value: Any, prefix: str, color: int) -> Any:
    """`value` with `{prefix}` and `{color}` filled in."""
    if isinstance(value, dict):
        return {key: fill(each, prefix, color) for key, each in value.items()}
    if isinstance(value, list):
        return [fill(each, prefix, color) for each in value]
    if value == "{color}":
        return color
    return value.replace("{prefix}", prefix) if isinstance(value, str) else value
