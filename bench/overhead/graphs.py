"""Time per node as graphs grow: `python bench/overhead/graphs.py [--sizes N,N…] [--plot FILE]`.

Our native loop against stock ComfyUI, both servers of one machine, taking turns; each size first with nothing
cached, then the same prompt again. The clock runs on this side of the wire, from the submission to
`executing {node: null}`. Stock is left out where it has failed on a smaller graph of the shape, or where its
last two sizes say that it would take more than --patience seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import math
import pathlib
import statistics
import sys
import tempfile
import time

import shapes

from stagexec.bench import lab, setup
from stagexec.bench.client import Client, Refused, Unreachable
from stagexec.bench.stats import paired_ratio

ARMS = {"stock": lab.STOCK, "ours": lab.OURS}
KINDS = ("cold", "cached")
SIZES = (100, 200, 400, 800, 2_000, 5_000, 10_000, 20_000)
DEEPEST = 2_000
"""Largest loop: the ids of its nodes grow with every turn, so that their text alone grows with the square."""

PACK = pathlib.Path(__file__).with_name("size_pack")
PAUSE_S = 1.0
"""Between two runs: the host may collect garbage after a prompt, and the next one would wait for it."""

COLLECTS_S = 10.0
"""It does so this long after the last time, idle or not: 0.4 s that are no cost of the graph. A run begins
well before or well after, in both arms."""

LIMIT_S = 400.0


class Stopped(Exception):
    """A server did not run a graph; the text says why."""


@dataclasses.dataclass
class Cell:
    """The seconds of one arm for one graph, by kind; or why there are none."""

    seconds: dict[str, list[float]] = dataclasses.field(default_factory=lambda: {kind: [] for kind in KINDS})
    why_not: str = ""
    """Why it did not run, or not to the end."""

    def median(self, kind: str) -> float | None:
        """Seconds, or None when it did not run."""
        return statistics.median(self.seconds[kind]) if self.seconds[kind] and not self.why_not else None


Table = dict[tuple[str, int], dict[str, Cell]]
"""(shape, size) -> arm -> cell."""


class Arm:
    """One server; started again when it no longer answers."""

    def __init__(self, name: str, comfyui: pathlib.Path, scratch: pathlib.Path, args: list[str]) -> None:
        self.name = name
        base = scratch / name
        launcher = ARMS[name]
        self.launch = lab.Launch(
            comfyui,
            base,
            launcher=launcher,
            args=["--cpu", *args],
            ledger=base / "ledger",
            custom_nodes=(PACK,),
        )
        self.server: lab.Server | None = None

    def run(self, prompt: shapes.Prompt, seconds: float) -> float:
        """Seconds for a prompt. Stopped when it fails or takes longer; the server is then another."""
        if self.server is None:
            self.server = lab.Server(self.launch).start().wait_ready()
            self.run(shapes.chain(5, 1), seconds)  # what happens once in a process
        try:
            with self.server.client() as browser:
                return self._run(browser, prompt, seconds)
        except (Refused, Unreachable, TimeoutError) as problem:
            self.close()
            raise Stopped(_first_line(problem)) from problem

    def _run(self, browser: Client, prompt: shapes.Prompt, seconds: float) -> float:
        due = COLLECTS_S - browser.get("/size/collected")
        if -PAUSE_S < due < PAUSE_S:
            time.sleep(due + 2 * PAUSE_S)
        start = time.perf_counter()
        prompt_id = browser.submit(prompt)
        took = browser.wait_moment(prompt_id, seconds) - start
        messages = browser.wait(prompt_id, seconds)
        if not any(one["type"] == "execution_success" for one in messages):
            raise Stopped("the prompt ended in an error")
        time.sleep(PAUSE_S)
        return took

    def close(self) -> None:
        """Stop the server."""
        if self.server is not None:
            self.server.kill()
            self.server = None


def _first_line(problem: Exception) -> str:
    text = str(problem)
    return "RecursionError" if "recursion" in text else text.splitlines()[0][:80]


def measure(
    comfyui: pathlib.Path, sizes: list[int], names: list[str], pairs: int, patience: float, args: list[str]
) -> Table:
    """Run every graph in both arms, and print a line for each."""
    table: Table = {}
    with tempfile.TemporaryDirectory(prefix="stagexec-graphs-") as folder:
        arms = [Arm(name, comfyui, pathlib.Path(folder), args) for name in ARMS]
        try:
            for shape in names:
                print(f"\n{shape}: s, and µs a node; ours/stock is the paired ratio and its 95% interval")
                for size in sizes:
                    if shape == "loops" and size > DEEPEST:
                        print(f"{size:7}  left out: the ids of nested loops grow with their depth")
                        continue
                    cells = {arm.name: Cell() for arm in arms}
                    cells["stock"].why_not = expected(table, shape, size, patience)
                    one_size(arms, shape, size, pairs, cells, patience)
                    table[shape, size] = cells
                    show(size, cells)
        finally:
            for arm in arms:
                arm.close()
    return table


_salts = iter(range(1_000, 10**9))


def one_size(
    arms: list[Arm], shape: str, size: int, pairs: int, cells: dict[str, Cell], patience: float
) -> None:
    """Pairs A B, B A, …; each with a salt of its own, the same for both arms."""
    for pair in range(pairs):
        prompt = shapes.SHAPES[shape](size, next(_salts))
        for arm in arms if pair % 2 == 0 else arms[::-1]:
            cell = cells[arm.name]
            if cell.why_not:
                continue
            try:
                for kind in KINDS:
                    limit = 3 * patience if arm.name == "stock" else LIMIT_S
                    cell.seconds[kind].append(arm.run(prompt, limit))
            except Stopped as problem:
                cell.why_not = str(problem)


def expected(table: Table, shape: str, size: int, patience: float) -> str:
    """Why stock is not to be tried at this size; empty when it is."""
    before = [(n, cells["stock"]) for (name, n), cells in table.items() if name == shape]
    if not before:
        return ""
    last_size, last = before[-1]
    if last.why_not:
        return last.why_not if last.why_not.startswith("skipped") else f"skipped: failed at {last_size}"
    power = 2.0
    if len(before) > 1:
        (n0, c0), (n1, c1) = before[-2:]
        power = max(1.0, log_slope(n0, c0.median("cold") or 1e-9, n1, c1.median("cold") or 1e-9))
    guess = (last.median("cold") or 0.0) * (size / last_size) ** power
    return f"skipped: would take {guess:.0f} s" if guess > patience else ""


def log_slope(n0: int, t0: float, n1: int, t1: float) -> float:
    """The power of n by which time grew between two sizes."""
    return math.log(t1 / t0) / math.log(n1 / n0)


def show(size: int, cells: dict[str, Cell]) -> None:
    """One line for each kind."""
    for kind in KINDS:
        words = [f"{size:7} {kind:6}"]
        for name, cell in cells.items():
            value = cell.median(kind)
            if value is None:
                words.append(f"{name} {cell.why_not:>28}")
            else:
                words.append(f"{name} {value:9.3f} s {value / size * 1e6:9.0f} µs/node")
        stock, ours = cells["stock"].seconds[kind], cells["ours"].seconds[kind]
        ratio = paired_ratio(ours, stock) if len(ours) == len(stock) else None
        if ratio is not None:
            interval = f" [{ratio.low:.4f}, {ratio.high:.4f}]" if ratio.low is not None else ""
            words.append(f"ours/stock {ratio.ratio:.4f}{interval}")
        print("  ".join(words) + f"  n={len(ours)}", flush=True)


def growth(table: Table) -> None:
    """Print our time per node at the largest size against that at about 1,000 nodes."""
    print("\nOur time per node, largest size ÷ the size nearest to 1,000:")
    for shape in dict.fromkeys(name for name, _ in table):
        sizes = [n for name, n in table if name == shape]
        base = min(sizes, key=lambda n: abs(n - 1_000))
        for kind in KINDS:
            small, large = (table[shape, n]["ours"].median(kind) for n in (base, sizes[-1]))
            if small and large and base != sizes[-1]:
                ratio = (large / sizes[-1]) / (small / base)
                print(f"  {shape:8} {kind:6} {sizes[-1]} ÷ {base}: {ratio:.2f}")


def plot(table: Table, file: pathlib.Path) -> None:
    """Time per node over nodes, log-log: a picture by matplotlib, or an HTML page by plotly."""
    curves = []
    for shape in dict.fromkeys(name for name, _ in table):
        for arm in ARMS:
            for kind in KINDS:
                points = [(n, c[arm].median(kind)) for (name, n), c in table.items() if name == shape]
                points = [(n, t / n * 1e6) for n, t in points if t is not None]
                if points:
                    curves.append((f"{shape}, {arm}, {kind}", arm, kind, points))
    (_html if file.suffix in (".html", ".htm") else _picture)(curves, file)
    print(f"wrote {file}")


Curves = list[tuple[str, str, str, list[tuple[int, float]]]]
X_TITLE, Y_TITLE = "nodes", "µs per node, submission to end"


def _picture(curves: Curves, file: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6))
    colours = {shape: f"C{at}" for at, shape in enumerate(shapes.SHAPES)}
    for label, arm, kind, points in curves:
        colour = colours[label.partition(",")[0]]
        style = {"cold": "-", "cached": ":"}[kind]
        marker = {"ours": "o", "stock": "x"}[arm]
        axes.loglog(*zip(*points, strict=True), style, marker=marker, color=colour, label=label)
    axes.set_xlabel(X_TITLE)
    axes.set_ylabel(Y_TITLE)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=150)


def _html(curves: Curves, file: pathlib.Path) -> None:
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for label, _, kind, points in curves:
        x, y = zip(*points, strict=True)
        line = {"dash": "solid" if kind == "cold" else "dot"}
        figure.add_scatter(x=x, y=y, name=label, mode="lines+markers", line=line)
    figure.update_xaxes(type="log", title=X_TITLE)
    figure.update_yaxes(type="log", title=Y_TITLE)
    figure.write_html(file)


def main(words: list[str] | None = None) -> int:
    """Measure and print; exit code 2 when what was asked for cannot be done."""
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of nodes")
    own.add_argument("--shapes", default=",".join(shapes.SHAPES), help="which shapes")
    own.add_argument("--pairs", type=int, default=4, help="pairs of each size (4)")
    own.add_argument("--patience", type=float, default=60.0, help="longest run of stock, s (60)")
    own.add_argument("--cache", default="classic", help="classic, none, lru=N, ram=GB or default (classic)")
    own.add_argument(
        "--plot", metavar="FILE", type=pathlib.Path, help="FILE.png by matplotlib, FILE.html by plotly"
    )
    own.add_argument("--comfyui", metavar="DIR", help="the ComfyUI folder; by default as for `stagexec demo`")
    asked = own.parse_args(words)
    names, sizes = asked.shapes.split(","), sorted(int(one) for one in asked.sizes.split(","))
    wrong = [name for name in names if name not in shapes.SHAPES]
    library = "plotly" if asked.plot and asked.plot.suffix in (".html", ".htm") else "matplotlib"
    try:
        if wrong:
            raise Stopped(f"no such shape: {', '.join(wrong)}")
        if asked.plot and importlib.util.find_spec(library) is None:
            raise Stopped(f"--plot {asked.plot}: {library} is not installed")
        table = measure(
            setup.find_host(asked.comfyui), sizes, names, asked.pairs, asked.patience, cache_args(asked.cache)
        )
    except (Stopped, setup.SetupError, lab.ServerDied) as problem:
        print(f"graphs: {problem}", file=sys.stderr)
        return 2
    growth(table)
    if asked.plot:
        plot(table, asked.plot)
    return 0


def cache_args(cache: str) -> list[str]:
    """The host's arguments for a cache mode."""
    if cache == "default":
        return []
    name, _, size = cache.partition("=")
    return [f"--cache-{name}", *([size] if size else [])]


if __name__ == "__main__":
    sys.exit(main())
