"""`make packs`: real node packs under stock ComfyUI and under ours, and whatever differs.

The packs are those in $STAGEXEC_PACKS: folders, parted as in $PATH; each is a pack, or a folder of packs.
None is part of this repository. They run in the Python given with --python, which needs their requirements.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from stagexec.bench import setup
from tests.packs import page, sweep
from tests.packs.play import Together, play_set
from tests.packs.wanted import CORE, VARIABLE, Graph, Pack, at_hand, plain, wanted

PAGE = Path(__file__).resolve().parents[2] / "docs" / "packs.md"
SETS = ("alone", "together", "sweep")


def main(argv: Sequence[str] | None = None) -> int:
    """Play and compare; exit code 1 when anything differs, 2 when there is nothing to play."""
    asked = parser().parse_args(argv)
    try:
        packs = at_hand(asked.packs)
    except NotADirectoryError as problem:
        print(f"packs: {problem}", file=sys.stderr)
        return 2
    names = {plain(pack.name) for pack in packs}
    absent = [each for name, each in wanted().items() if name not in names and name != CORE]
    for each in absent:
        print(f"packs: {each.name} is not at hand", file=sys.stderr)
    if asked.only:
        packs = [pack for pack in packs if plain(pack.name) in set(map(plain, asked.only))]
    if not packs:
        print(f"packs: none at hand; name folders of packs in ${VARIABLE} or --packs", file=sys.stderr)
        return 2
    work = Path(asked.work or tempfile.mkdtemp(prefix="stagexec-packs-"))
    host = work / "host"  # a copy: some packs write into the host's own tree
    shutil.copytree(setup.find_host(asked.comfyui, fetch=False), host, dirs_exist_ok=True)
    alone: list[Together] = []
    together = None
    for one, of_all in play_all(asked, packs, host, work):
        alone += [] if of_all else [one]
        together = one if of_all else together
        if asked.page:  # after each set: a run that is cut short has told what it knew
            text = page.markdown(version_of(host), labels_of(asked), packs, alone, together, absent)
            Path(asked.page).write_text(text, encoding="utf-8")
    if asked.json:
        print(json.dumps(page.as_json(alone, together, absent), indent=1))
    if not asked.work:
        shutil.rmtree(work, ignore_errors=True)
    return int(any(each.all_differences for each in (*alone, together) if each))


def play_all(
    asked: argparse.Namespace, packs: Sequence[Pack], host: Path, work: Path
) -> Iterator[tuple[Together, bool]]:
    """The sets that are asked for, as they end: all packs together (true), and the packs one by one."""
    how = (labels_of(asked), host, work / "servers", asked.python, asked.args)
    graphs = {CORE: wanted()[CORE].graphs} | {pack.name: pack.wanted.graphs for pack in packs}
    if "together" in asked.sets:
        all_of_them = [pack for pack in packs if pack.wanted.together]
        done = play_set(all_of_them, lambda _: numbered(graphs, tuple(graphs)), *how)
        say("all together", done)
        yield done, True
    for pack in packs:
        if "alone" in asked.sets:
            done = play_set([pack], lambda _, own=(CORE, pack.name): numbered(graphs, own), *how)
            say(pack.name, done)
            yield done, False
        if "sweep" in asked.sets:
            done = play_set([pack], sweep.graphs, *how)
            say(f"{pack.name}, every class", done)
            yield done, False


def labels_of(asked: argparse.Namespace) -> tuple[str, ...]:
    """The servers: stock's, and ours with each executor asked for."""
    return ("stock", *asked.executor.split(","))


def version_of(host: Path) -> str:
    """The host's own word for its version."""
    found = re.search(r'__version__ = "([^"]+)"', (host / "comfyui_version.py").read_text(encoding="utf-8"))
    return found.group(1) if found else "?"


def numbered(graphs: dict[str, list[Graph]], names: Sequence[str]) -> list[tuple[str, Graph]]:
    """(pack, graph) of the packs in `names`, in order."""
    return [(name, graph) for name in names for graph in graphs[name]]


def say(name: str, done: Together) -> None:
    """One line of progress, and every difference."""
    ended = [each.as_meant for each in done.played if not each.not_played]
    good = sum(ended)
    failed = "".join(f"; {pack} does not load: {why}" for pack, why in done.failed.items())
    print(
        f"{name}: {good} of {len(done.played)} graphs end as meant, {len(ended) - good} otherwise,"
        f" {len(done.all_differences)} differences{failed}",
        file=sys.stderr,
        flush=True,
    )
    for each in done.all_differences:
        print(f"  {each}", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    """The options."""
    own = argparse.ArgumentParser(
        "python -m tests.packs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    own.add_argument("--packs", metavar="DIRS", help=f"instead of ${VARIABLE}")
    own.add_argument("--only", metavar="PACK", nargs="+", help="only these, by the names of their folders")
    own.add_argument(
        "--sets",
        nargs="+",
        choices=SETS,
        default=SETS[:2],
        help="alone: each pack by itself; together: all at once (both are the default);"
        " sweep: a graph for every class that can be fed, each pack by itself",
    )
    own.add_argument("--executor", default="native", help="native (the default), host, or native,host")
    own.add_argument("--python", default=sys.executable, help="the Python that has what the packs need")
    own.add_argument("--comfyui", metavar="DIR", help="the ComfyUI folder; by default as for `stagexec demo`")
    own.add_argument("--work", metavar="DIR", help="where the servers live, kept afterwards")
    own.add_argument("--page", metavar="FILE", nargs="?", const=str(PAGE), help="write it (docs/packs.md)")
    own.add_argument("--json", action="store_true", help="print everything as JSON")
    own.add_argument("args", nargs="*", help="further arguments of the host, after --")
    return own


if __name__ == "__main__":
    sys.exit(main())
