"""Servers with the same packs that are shown the same graphs, and what differs between them."""

from __future__ import annotations

import difflib
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stagexec.bench import checkpoint, lab
from stagexec.bench.client import Refused, http_json, http_raw
from stagexec.reading import audit, store
from tests.host.witness import closed_run
from tests.packs.wanted import ANY_END, Graph, Pack, fill, workflow
from tests.transparency.observe import Observer
from tests.transparency.twins import HASH_SEED, LAUNCHERS, as_lines

PROBE = Path(__file__).parent / "probe"
OFFLINE = {
    "PIP_NO_INDEX": "1",  # several packs install what they miss as they are imported
    "PIP_FIND_LINKS": "",
    "HF_HUB_OFFLINE": "1",
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"),
    "no_proxy": "127.0.0.1,localhost",
}
"""No pack fetches anything in a comparison."""
BACKGROUND = ("message crystools.monitor",)
"""Messages that a clock sends, and not a prompt."""
FAULT = "a fault in our own bookkeeping"
FAILED = re.compile(r"Cannot import (?:.*[/\\])?([^/\\]+) module for custom nodes: (.*)")
WORKER_DIED = re.compile(r"Exception in thread \S+ \(prompt_worker\)")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?")
MOMENT_BYTES = re.compile(MOMENT.pattern.encode())
CHANCE = ((MOMENT, "<moment>"), (re.compile(r"\bi_[a-z]{5}_(?=\d)"), "i_<random>_"),
          (re.compile(r"\b\d{5,8}_cache\b"), "<random>_cache"))  # fmt: skip
"""What packs take from the clock or from unseeded chance into texts, and what is put in its place."""
LINES = 40


@dataclass
class Played:
    """One graph on all servers: how it ended on the first, why it was not played, and what differed."""

    graph: str
    pack: str
    wanted: str = "success"
    ended: str = ""
    error: str = ""
    not_played: str = ""
    executed: int = 0
    stages: dict[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)

    @property
    def as_meant(self) -> bool:
        """Whether it ended as its graph says."""
        return self.wanted in (self.ended, ANY_END)


@dataclass
class Together:
    """One set of packs on all servers: what loaded, what differed as they started, and the graphs."""

    packs: list[str]
    classes: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seams: dict[str, str] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    played: list[Played] = field(default_factory=list)

    @property
    def all_differences(self) -> list[str]:
        """Those of the start, and those of every graph."""
        return self.differences + [f"{p.graph}: {each}" for p in self.played for each in p.differences]


class PackObserver(Observer):
    """An observer of every file under the output folder: savers of packs choose their own places."""

    def __init__(self, server: lab.Server, name: str) -> None:
        self._before = self._stamps(server)
        super().__init__(server, name)

    def files(self) -> None:
        """Keep every file that is new or written again, byte for byte."""
        now = self._stamps(self.server)
        found = sorted(path for path, stamp in now.items() if self._before.get(path) != stamp)
        rows = [{"at": str(path.relative_to(self.server.output)), **self._file(path)} for path in found]
        self._keep("output files", rows)
        rows = [
            timeless(self._plain(self._file(each))) for each in self._temporary() - self._temporary_before
        ]
        self.seen.append(("temporary files", sorted(rows, key=str)))

    def _keep(self, what: str, value: Any) -> None:
        if what not in BACKGROUND:
            self.seen.append((what, timeless(self._plain(value))))

    def _file(self, path: Path) -> dict[str, Any]:
        row = super()._file(path)
        if MOMENT_BYTES.search(
            row["content"]
        ):  # a PNG's text has a checksum: its text and pixels are in the row
            row["content"] = MOMENT_BYTES.sub(b"<moment>", row["content"]) if "pixels" not in row else b""
        return row

    @staticmethod
    def _stamps(server: lab.Server) -> dict[Path, tuple[int, int]]:
        files = [path for path in server.output.rglob("*") if path.is_file()]
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}


class Servers:
    """The servers of one set of packs. The first is stock's: the measure of the others."""

    def __init__(self, servers: dict[str, lab.Server], packs: Sequence[Pack]) -> None:
        self.servers = servers
        self.result = Together([pack.name for pack in packs])
        self.loaded: dict[str, str] = {}
        self.dead = ""
        """Why nothing more can be played here: a pack ended stock's only worker."""

    def compare_start(self) -> None:
        """What every server says of the packs: what failed to load, the classes, and their inputs."""
        told: dict[str, dict[str, Any]] = {}
        for label, server in self.servers.items():
            failed = dict(FAILED.findall(server.log()))
            normal = Observer(server, "start", listen=None)._plain
            classes = not_ours(http_json(server.url, "GET", "/packs_probe/watch"), lambda module: module)
            info = http_json(server.url, "GET", "/object_info", seconds=300.0)
            info = not_ours(info, lambda each: each["python_module"])
            http_json(server.url, "GET", "/packs_probe/calls")
            told[label] = {
                "failed": {name: normal(failed[name]) for name in sorted(failed)},
                "classes": classes,
                "object_info": timeless(normal(info)),
            }
        first = told["stock"]
        self.loaded = first["classes"]
        self.result.failed = first["failed"]
        self.result.classes = dict(Counter(each.rpartition(".")[2] for each in self.loaded.values()))
        for label, each in told.items():
            self.result.differences += differing([*first.items()], [*each.items()], label)

    def play(self, pack: str, graph: Graph) -> None:
        """One graph on every server, and what differs."""
        played = Played(graph.name, pack, wanted=graph.ends)
        self.result.played.append(played)
        missing = sorted(graph.classes - self.loaded.keys())
        if missing or self.dead:
            why = self.result.failed.get(pack)
            played.not_played = self.dead or f"no class {missing[0]}" + (f": {why}" if why else "")
            return
        seen: dict[str, Any] = {}
        for label, server in self.servers.items():
            seen[label] = self._watch(server, played, graph)
            if self.dead:
                played.not_played = self.dead
                return
        for label, each in seen.items():
            played.differences += differing(seen["stock"][0], each[0], label)
            played.differences += different_calls(seen["stock"][1], each[1], label)
        for label, server in self.servers.items():
            if server.launch.ours:
                self._read_ledger(server, label, played, seen[label][2])

    def finish(self) -> None:
        """What our servers' logs, journals and seams say at the end."""
        for label, server in self.servers.items():
            if not server.launch.ours or server.launch.ledger is None:
                continue
            faults = [line for line in server.log().splitlines() if FAULT in line]
            found = [one for one in audit.audit(server.launch.ledger) if one.severity == "error"]
            faults += [f"audit: {one.kind}: {one.what}" for one in found]
            self.result.differences += [f"{label}: {line}" for line in faults]
            runs = store.load(server.launch.ledger).runs
            for seam in runs[-1].process.seams if runs else ():
                if seam["state"] not in {"installed", "absent"}:
                    self.result.seams[seam["seam"]] = f"{seam['state']}: {seam['reason']}"

    # --- inside ---

    def _watch(
        self, server: lab.Server, played: Played, graph: Graph
    ) -> tuple[list[tuple[str, Any]], list[list[Any]], list[str]]:
        observer = PackObserver(server, f"{played.pack}, {graph.name}")
        prompt = fill(graph.prompt, observer.prefix, observer.color)
        ids: list[str] = []
        try:
            for _ in range(graph.times):
                extra = {"extra_pnginfo": {"workflow": workflow(prompt)}}
                ids.append(observer.submit(prompt, extra_data=extra))
                if observer.seen[-1][1]["status"] != 200:
                    played.ended = "refused"
                    played.error = str(observer.seen[-1][1]["answer"])[:300]
                    break
                observer.finish(ids[-1])
        except (AssertionError, OSError) as problem:
            observer.seen.append(("did not end", str(problem)))
            self._after_hang(server)
        finally:
            observer.close()
        calls = http_json(server.url, "GET", "/packs_probe/calls")
        if not server.launch.ours and not played.ended:
            self._note_end(server, played, ids)
        return observer.seen, calls, ids

    def _after_hang(self, server: lab.Server) -> None:
        """Cancel what has not ended; when that leaves it running on stock, its worker is no more."""
        http_raw(server.url, "POST", "/interrupt", {})
        if server.launch.ours:
            return
        died = WORKER_DIED.search(server.log())
        if died is not None:
            last = server.log()[died.start() :].split("\n\n")[0].splitlines()[-1]
            self.dead = f"it ended the only worker of stock ComfyUI: {last}"

    @staticmethod
    def _note_end(server: lab.Server, played: Played, ids: list[str]) -> None:
        history = http_json(server.url, "GET", f"/history/{ids[-1]}").get(ids[-1], {})
        status = history.get("status") or {}
        played.ended = status.get("status_str", "no history")
        for kind, data in status.get("messages", ()):
            if kind == "execution_error":
                played.error = f"{data['node_type']}: {data['exception_message']}".strip()[:300]

    def _read_ledger(self, server: lab.Server, label: str, played: Played, ids: list[str]) -> None:
        assert server.launch.ledger is not None
        for prompt_id in ids if played.ended != "refused" else ():
            try:
                run = closed_run(server.launch.ledger, prompt_id)
            except AssertionError as problem:
                played.differences.append(f"{label}: {problem}")
                continue
            for visit in run.visits():
                if visit.kind != "executed" or visit.class_type is None:
                    continue
                played.executed += label == "native"
                if self.loaded.get(visit.class_type, "").startswith("custom_nodes."):
                    stage = visit.class_stage or "node_other"
                    likely = f", likely {visit.hint}" if visit.hint else ""
                    played.stages[visit.class_type] = f"{stage} ({visit.class_origin or 'none'}{likely})"


class NotReady(Exception):
    """A server that ended as it started, or lets no request in: which, and why."""

    def __init__(self, label: str, problem: Exception) -> None:
        super().__init__(f"{label}: {problem}")
        self.label = label
        self.problem = problem


@contextmanager
def started(
    packs: Sequence[Pack], labels: Sequence[str], host: Path, work: Path, python: str, args: Sequence[str]
) -> Iterator[Servers]:
    """Servers with copies of `packs`, in folders of their own: packs write into theirs."""
    servers = {}
    for label in labels:
        how, more = LAUNCHERS[label]
        base = work / label
        shutil.rmtree(base, ignore_errors=True)
        launch = lab.Launch(
            comfyui=host,
            base=base,
            python=python,
            args=("--cpu", *more, *args),
            ledger=base / "ledger",
            checkpoints=checkpoint.checkpoint_path().parent,
            custom_nodes=(*(pack.folder for pack in packs), PROBE),
            hash_seed=HASH_SEED,
            env=OFFLINE,
            **how,
        )
        servers[label] = lab.Server(launch)
    try:
        for server in servers.values():
            server.start()
        for label, server in servers.items():
            try:
                server.wait_ready()
            except (lab.ServerDied, Refused) as problem:
                raise NotReady(label, problem) from problem
        yield Servers(servers, packs)
    finally:
        for server in servers.values():
            if server.process is not None:
                server.stop()


def play_set(
    packs: Sequence[Pack],
    graphs: Callable[[Servers], Sequence[tuple[str, Graph]]],
    labels: Sequence[str],
    host: Path,
    work: Path,
    python: str,
    args: Sequence[str] = (),
) -> Together:
    """Start the servers with `packs`, play `graphs` (the pack's name and the graph), give what was seen."""
    try:
        with started(packs, labels, host, work, python, args) as servers:
            try:
                servers.compare_start()
                for pack, graph in graphs(servers):
                    servers.play(pack, graph)
                servers.finish()
            except lab.ServerDied as problem:
                servers.result.differences.append(f"a server ended: {str(problem)[:500]}")
            return servers.result
    except NotReady as why:
        result = Together([pack.name for pack in packs])
        if why.label == "stock":  # a pack that ends or locks the host is no fault of ours
            result.failed = {pack.name: str(why.problem).splitlines()[0] for pack in packs}
        else:
            result.differences = [f"{why.label} does not start: {str(why.problem)[-500:]}"]
        return result


def timeless(value: Any) -> Any:
    """`value` without what comes from a clock or from chance."""
    if isinstance(value, dict):
        return {timeless(key): timeless(each) for key, each in value.items()}
    if isinstance(value, list):
        return [timeless(each) for each in value]
    if isinstance(value, str):
        for pattern, word in CHANCE:
            value = pattern.sub(word, value)
    return value


def not_ours(classes: dict[str, Any], module: Callable[[Any], str]) -> dict[str, Any]:
    """`classes` without those that stagexec itself brings."""
    return {name: each for name, each in classes.items() if "stagexec" not in module(each)}


def differing(one: list[tuple[str, Any]], other: list[tuple[str, Any]], label: str) -> list[str]:
    """The lines in which two lists of what was seen differ, as one text; nothing when they are the same."""
    if not different(one, other):
        return []
    if [what for what, _ in one] == [what for what, _ in other]:
        pairs = [narrowed(a, b) for (_, a), (_, b) in zip(one, other, strict=True)]
        kept = [(what, *pair) for (what, _), pair in zip(one, pairs, strict=True) if different(*pair)]
        one, other = [(what, a) for what, a, _ in kept], [(what, b) for what, _, b in kept]
    lines = list(difflib.unified_diff(as_lines(one), as_lines(other), "stock", label, lineterm="", n=3))
    more = [f"… and {len(lines) - LINES} lines more"] if len(lines) > LINES else []
    return ["\n".join(lines[:LINES] + more)]


def different(one: Any, other: Any) -> bool:
    """Whether two values differ as text: the order of keys counts."""
    return as_lines(one) != as_lines(other)


def narrowed(one: Any, other: Any) -> tuple[Any, Any]:
    """Two values without what is the same in both dicts: a diff of every class there is takes minutes."""
    if not isinstance(one, dict) or not isinstance(other, dict) or not different(one, other):
        return one, other
    same = {key for key in one.keys() & other.keys() if not different(one[key], other[key])}
    first, second = ({key: each[key] for key in each if key not in same} for each in (one, other))
    if not first and not second:
        return {"keys in order": list(one)}, {"keys in order": list(other)}
    for key in first.keys() & second.keys():
        first[key], second[key] = narrowed(first[key], second[key])
    return first, second


def different_calls(stock: list[list[Any]], other: list[list[Any]], label: str) -> list[str]:
    """Hooks that were called differently often, or by another function.

    INPUT_TYPES alone may be asked less often than by stock: once per prompt is what we promise.
    """
    found = []
    one, two = ({(name, hook): 0 for name, hook, _, _ in [*stock, *other]} for _ in range(2))
    callers: dict[Any, tuple[set[str], set[str]]] = {key: (set(), set()) for key in one}
    for at, (counts, rows) in enumerate(((one, stock), (two, other))):
        for name, hook, chain, count in rows:
            counts[name, hook] += count
            callers[name, hook][at].add(chain)
    for key in one:
        asked = key[1] in {"INPUT_TYPES", "define_schema"}
        if one[key] != two[key] and not (asked and 0 < two[key] < one[key]):
            found.append(f"{key[0]}.{key[1]}: called {one[key]} times, on {label} {two[key]} times")
        if callers[key][1] - callers[key][0] or (not asked and callers[key][0] - callers[key][1]):
            theirs, ours = (", ".join(sorted(each)) for each in callers[key])
            found.append(f"{key[0]}.{key[1]}: called by {theirs}; on {label} by {ours}")
    return found
