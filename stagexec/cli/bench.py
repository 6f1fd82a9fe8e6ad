"""`stagexec bench`: run a plan against real servers, or rebuild the report of a result folder."""

from __future__ import annotations

import contextlib
import datetime
import json
import pathlib
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from stagexec import files
from stagexec.cli import common, demo
from stagexec.printable import visible

if TYPE_CHECKING:
    from stagexec.bench.plan import Plan
    from stagexec.bench.results import Results
    from stagexec.bench.servers import Place

BENCHES = pathlib.Path(".stagexec", "bench")


class BenchFailed(click.ClickException):
    """It ran, and it did not work: exit code 1."""


@click.command("bench")
@click.argument("words", nargs=-1, required=True, metavar="PLAN | list | report DIR")
@click.option("--workflow", metavar="FILE", help="A workflow in API format, in place of the plan's.")
@click.option("--out", metavar="DIR", help=f"Result folder; by default a new one in {BENCHES}.")
@click.option("--resume", is_flag=True, help="Go on with a result that was cut short; by default the last.")
@click.option("--ray", is_flag=True, help="Spread units (or arms) over a Ray cluster.")
@click.option("--against", metavar="DIR", help="An older result: exit 1 when a slow-down is shown.")
@click.option("--fail-over", default="5%", metavar="PERCENT", help="The slow-down that may pass (5%).")
@click.option("--comfyui", metavar="DIR", help="ComfyUI's folder; by default as in `demo`.")
@click.option("--models", metavar="DIR", help="Models folder; by default that of ComfyUI.")
@click.option("--unit", "only_units", multiple=True, metavar="NAME", help="Only this unit (repeatable).")
@click.option("--arm", "only_arms", multiple=True, metavar="NAME", help="Only this arm (repeatable).")
@click.option("--counted", type=click.IntRange(1), help="Counted runs, in place of the plan's.")
@click.option("--warmup", type=click.IntRange(0), help="Runs not counted, in place of the plan's.")
@click.option("--servers", type=click.IntRange(1), help="Servers at once, in place of the plan's.")
@click.option("--repeats", type=click.IntRange(1), help="Runs of each arm in a pair, in place of the plan's.")
@click.option("--set", "sets", multiple=True, metavar="NODE.INPUT=VALUE", help="Change the workflow.")
@common.json_option
def command(words: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Run PLAN (a TOML file, or the name of a shipped one: `list` names them), or rebuild a report."""
    from stagexec.bench import against, needs, results

    try:
        if words[0] == "list":
            if len(words) != 1:
                raise common.BadInput("stagexec bench list takes no further word")
            list_plans(as_json)
            return
        needs.require()
        if words[0] == "report":
            if len(words) != 2:
                raise common.BadInput("give one folder: stagexec bench report DIR")
            common.target(words[1], "report")
            folder = pathlib.Path(words[1])
        elif len(words) == 1:
            folder = run_plan(words[0], options)
        else:
            raise common.BadInput(f"one plan at a time, not {' '.join(words)}")
        show(folder, as_json, options)
    except (needs.Missing, results.ResultError, against.NotComparable) as problem:
        raise common.BadInput(str(problem)) from None


def list_plans(as_json: bool) -> None:
    """Every shipped plan: what it is for, its units and arms, and the runs that it counts."""
    from stagexec.bench import plan as plans
    from stagexec.views import text

    found: list[dict[str, Any]] = []
    for plan in plans.shipped():
        counted = sum(plan.measures_of(unit) * len(plan.arms_of(unit)) for unit in plan.unit)
        row = {"name": plan.name, "about": plan.about, "units": [unit.name for unit in plan.unit]}
        found.append({**row, "arms": [arm.name for arm in plan.arm], "counted": counted})
    if as_json:
        common.print_json(found)
        return
    out = text.console()
    for row in found:
        size = f"{len(row['units'])} unit(s), {len(row['arms'])} arm(s), {row['counted']} counted measures"
        out.print(f"[bold]{row['name']}[/]: {text.text(row['about'])} ({size})", soft_wrap=True)


def show(folder: pathlib.Path, as_json: bool, options: dict[str, Any]) -> None:
    """Write the report, print it, and the verdict of `--against`; exit code 1 when the answer is bad."""
    from stagexec.bench import report

    try:
        found = report.write(folder)
    except OSError as problem:
        raise BenchFailed(f"the report cannot be written: {problem}") from None
    changes = regressions(folder, options) if options["against"] else []
    if as_json:
        common.print_json({**found, "against": changes} if options["against"] else found)
    else:
        print_report(found, folder)
        for change in changes:
            where = f"{change['unit']} {change['position']}".strip()
            click.echo(visible(f"{where}, {change['arm']}: {change['why']}"))
    measured = any(cell["status"] == "measured" for cell in found["cells"])
    if any(change["too_slow"] for change in changes) or not measured:
        raise SystemExit(1)


def regressions(folder: pathlib.Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Every cell against the older result's."""
    import msgspec

    from stagexec.bench import against, tables

    old = tables.load(pathlib.Path(options["against"]))
    changes = against.compare(tables.load(folder), old, share(options["fail_over"]))
    return [msgspec.to_builtins(change) for change in changes]


def share(text: str) -> float:
    """`5%` and `5` are 0.05."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%?\s*", text)
    if found is None:
        raise common.BadInput(f"--fail-over {text}: give a percentage, as in 5%")
    return float(found[1]) / 100


def run_plan(name: str, options: dict[str, Any]) -> pathlib.Path:
    """Run a plan from beginning to end, or from where it was cut; its result folder."""
    from stagexec.bench import plan as plans
    from stagexec.bench import servers, setup

    check_paths(options)
    share(options["fail_over"])  # a mistake is said before the hours of a bench, not after
    try:
        file = plans.find(name)
        plan = shortened(plans.load(file), options)
    except plans.PlanError as problem:
        raise common.BadInput(str(problem)) from None
    if options["ray"]:
        plan = on_cluster(plan)
    if options["against"]:
        check_against(pathlib.Path(options["against"]), plan, servers.machine())
    named = plan.workflow if options["workflow"] is None else options["workflow"]
    workflow = load_workflow(named, file.parent, options["sets"])
    try:
        place = prepare(plan, workflow, options)
    except setup.SetupError as problem:
        raise BenchFailed(str(problem)) from None
    try:
        with open_results(plan, workflow, options, place) as results:
            carry_out(plan, results, place, options["ray"], again(name, options, results.folder))
            return results.folder
    except OSError as problem:
        raise common.failed(f"the results cannot be written: {problem}", problem) from None


def check_paths(options: dict[str, Any]) -> None:
    """Say at once which folder of the command line can be none."""
    for key in ("comfyui", "models", "against", "out"):
        named = options[key]
        if named is None:
            continue
        try:
            if key == "out" and not files.place(named).exists():
                continue
            if key != "against" or files.place(named).exists():  # what has no result is said with the result
                files.folder(named)
        except (files.BadPath, OSError) as problem:
            raise common.BadInput(f"--{key}: {problem}") from None


def check_against(folder: pathlib.Path, plan: Plan, machine: dict[str, Any]) -> None:
    """Refuse an older result with which this bench could not be compared. Raises ResultError."""
    from stagexec.bench import results

    old = results.load(folder)
    for name, theirs, ours in (
        ("on another machine", old.header.get("machine"), machine),
        ("in another timing mode", old.plan.timing, plan.timing),
    ):
        if theirs != ours:
            raise common.BadInput(f"--against {folder}: it was made {name}: {theirs}, here {ours}")
    measured = {(run["unit"], run["arm"]) for run in old.runs if run["role"] == "counted"}
    if not measured & {(unit.name, arm.name) for unit in plan.unit for arm in plan.arms_of(unit)}:
        raise common.BadInput(f"--against {folder}: it has measured no unit and arm of this plan")


def shortened(plan: Plan, options: dict[str, Any]) -> Plan:
    """The plan with what the command line asks for in place of its own. A name of none is a mistake."""
    import msgspec

    from stagexec.bench.units import STATES

    replace = msgspec.structs.replace
    for kind, wanted, there in (
        ("unit", options["only_units"], [unit.name for unit in plan.unit]),
        ("arm", options["only_arms"], [arm.name for arm in plan.arm]),
    ):
        for name in wanted:
            if name not in there:
                raise common.BadInput(f"the plan has no {kind} {name!r}: {', '.join(there)}")
    units = [u for u in plan.unit if not options["only_units"] or u.name in options["only_units"]]
    if options["counted"] is not None:
        units = [replace(unit, counted=options["counted"]) for unit in units]
    if options["warmup"] is not None:
        units = [u if STATES[u.state].launch_each else replace(u, warmup=options["warmup"]) for u in units]
    arms = [arm for arm in plan.arm if not options["only_arms"] or arm.name in options["only_arms"]]
    reference = plan.reference if plan.reference in [arm.name for arm in arms] else None
    servers = plan.servers if options["servers"] is None else options["servers"]
    repeats = plan.repeats if options["repeats"] is None else options["repeats"]
    return replace(plan, unit=units, arm=arms, reference=reference, servers=servers, repeats=repeats)


def on_cluster(plan: Plan) -> Plan:
    """The plan in parts for a Ray cluster."""
    from stagexec.bench import ray as cluster

    try:
        cluster.require()
    except cluster.NoRay as problem:
        raise common.BadInput(str(problem)) from None
    return cluster.split(plan)


def load_workflow(name: str, beside: pathlib.Path, sets: tuple[str, ...]) -> dict[str, Any]:
    """A workflow in API format: a path, a file beside the plan, or a shipped one."""
    from stagexec.resources import bench_folder

    try:
        given = files.place(name)
        for path in (given, beside / name, bench_folder() / "workflows" / name):
            if path.is_file():
                break
        else:
            raise common.BadInput(f"no workflow {name}")
        prompt = files.json_of(files.text_of(path))
    except files.BadPath as problem:
        raise common.BadInput(f"no workflow: {problem}") from None
    except files.BadText as problem:
        raise common.BadInput(f"{path} is not JSON: {problem}") from None
    if not isinstance(prompt, dict) or not all(is_node(node) for node in prompt.values()):
        raise common.BadInput(f"{path} is not in API format: save it with Export (API)")
    for text in sets:
        set_input(prompt, text)
    return prompt


def is_node(node: Any) -> bool:
    """Whether a value has the shape of a node in API format."""
    return isinstance(node, dict) and "class_type" in node and isinstance(node.get("inputs"), dict)


def set_input(prompt: dict[str, Any], text: str) -> None:
    """`5.width=16`: one input of one node. The value is JSON, else text."""
    found = re.fullmatch(r"([^.=]+)\.([^=]+)=(.*)", text, flags=re.DOTALL)
    if found is None:
        raise common.BadInput(f"--set {text}: give NODE.INPUT=VALUE")
    node, name, value = found.groups()
    if node not in prompt or name not in prompt[node]["inputs"]:
        raise common.BadInput(f"--set {text}: the workflow has no input {node}.{name}")
    try:
        prompt[node]["inputs"][name] = json.loads(value)
    except ValueError:
        prompt[node]["inputs"][name] = value


def prepare(plan: Plan, workflow: dict[str, Any], options: dict[str, Any]) -> Place:
    """Where the servers run; the tiny checkpoint is made if the workflow names it. Raises SetupError."""
    from stagexec.bench import checkpoint, servers, setup

    try:
        host = setup.find_host(options["comfyui"])
    except setup.NotATree as problem:
        raise common.BadInput(str(problem).replace("--stagexec-comfyui", "--comfyui")) from None
    if missing := demo.missing_requirements(host):
        raise common.BadInput(
            f"this Python lacks what ComfyUI needs ({', '.join(missing)}). "
            f"Run: {sys.executable} -m pip install -r {host / 'requirements.txt'}"
        )
    tiny = checkpoint.NAME in json.dumps(workflow)
    models = pathlib.Path(options["models"]) if options["models"] else host / "models"
    if not models.is_dir() and options["models"]:
        raise common.BadInput(f"no models folder {models}")
    own_input = ("--input-directory", str(host / "input")) if options["workflow"] else ()
    return servers.Place(
        comfyui=host,
        folder=pathlib.Path(),
        ledger=pathlib.Path(),
        checkpoint=checkpoint.make_checkpoint(host) if tiny else None,
        models=models.absolute(),
        custom_nodes=(host / "custom_nodes",),
        args=(*demo.device_args(), *own_input),
        timing=plan.timing,
        start_seconds=plan.budget.start_seconds,
        workflow=workflow,
    )


@contextlib.contextmanager
def open_results(
    plan: Plan, workflow: dict[str, Any], options: dict[str, Any], place: Place
) -> Iterator[Results]:
    """The result folder, new or gone on with, and nobody else's meanwhile; the place learns of it."""
    from stagexec import __version__
    from stagexec.bench import leftover, results, servers

    now = datetime.datetime.now(datetime.timezone.utc)
    facts = {
        "machine": servers.machine(),
        "host": str(place.comfyui),
        "stagexec": __version__,
        "made": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "random_weights": servers.random_weights(place),
        "workflow_file": pathlib.Path(options["workflow"] or plan.workflow).name,
    }
    out = pathlib.Path(options["out"]) if options["out"] else None
    if options["resume"]:
        folder = out or last_result(plan.name)
        results.load(folder)  # what is no result is said before a lock is put into it
    else:
        folder = out or BENCHES / f"{plan.name}-{now:%Y%m%d-%H%M%S}"
        results.create(folder, plan, workflow, facts)
    with leftover.alone(folder):
        found = results.resume(folder, plan, workflow, facts)
        if stopped := leftover.clear(found):
            pids = ", ".join(map(str, stopped))
            common.say(f"stopped servers that the last sitting had left running: {pids}")
        place.folder, place.ledger = found.folder.absolute(), found.ledger.absolute()
        yield found


def again(name: str, options: dict[str, Any], folder: pathlib.Path) -> str:
    """The command that goes on with this bench."""
    words = ["stagexec", "bench", name, "--resume", "--out", str(folder)]
    for option, key in (("unit", "only_units"), ("arm", "only_arms"), ("set", "sets")):
        words += [word for value in options[key] for word in (f"--{option}", value)]
    for option in ("workflow", "comfyui", "models", "counted", "warmup", "repeats", "servers", "against"):
        if options[option] is not None:
            words += [f"--{option}", str(options[option])]
    words += ["--ray"] if options["ray"] else []
    words += ["--fail-over", options["fail_over"]] if options["against"] is not None else []
    return shlex.join(words)


def last_result(name: str) -> pathlib.Path:
    """The newest result of a plan in the default place."""
    found = sorted(BENCHES.glob(f"{name}-[0-9]*"))
    if not found:
        raise common.BadInput(f"there is no result of {name} in {BENCHES} to go on with: give --out")
    return found[-1]


def carry_out(plan: Plan, results: Results, place: Place, on_ray: bool, go_on: str) -> None:
    """Run what is not done yet. Ctrl-C stops the servers and leaves a result that can be gone on with."""
    from stagexec.bench import runner, screen, servers

    # A terminal that is closed, and `kill`, end it like Ctrl-C: servers must not be left behind.
    ends = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heeded = [end for end in ends if signal.getsignal(end) is not signal.SIG_IGN]  # as under nohup
    before = {end: signal.signal(end, signal.default_int_handler) for end in heeded}
    try:
        with screen.Screen() as watch:
            if on_ray:
                from stagexec.bench import ray as cluster

                cluster.spread(plan, results, servers.Opener(place), watch)
            else:
                runner.Bench(plan, servers.Servers(place), results, watch).run()
    except KeyboardInterrupt:
        raise BenchFailed(f"interrupted; the runs are kept. Go on with: {go_on}") from None
    except OSError as problem:
        raise BenchFailed(f"stopped: {problem}. The runs are kept. Go on with: {go_on}") from None
    finally:
        for end, handler in before.items():
            signal.signal(end, handler)


def print_report(found: dict[str, Any], folder: pathlib.Path) -> None:
    """The answers and the verdicts, for a terminal; the rest is in the report's files."""
    from stagexec.bench import speech
    from stagexec.bench.report import JSON, MARKDOWN, PAGE
    from stagexec.views import text

    out = text.console()
    for answer in [*found["answers"], found["quality_question"]]:
        lines = answer.get("lines", answer.get("answers"))
        if lines:
            out.print(f"[bold]{text.text(answer['question'])}[/]")
        for line in lines:
            out.print(f"  {text.text(line)}", soft_wrap=True)
    for title, lines in (
        ("What does only the first run of a process pay?", speech.one_time(found["one_time"])),
        ("What does each factor do?", speech.effects(found["effects"])),
    ):
        if lines:
            out.print(f"[bold]{title}[/]")
        for line in lines:
            out.print(f"  {text.text(line)}", soft_wrap=True)
    units: dict[tuple[str, str, str], list[str]] = {}
    for arm in found["arms"]:
        units.setdefault((arm["status"], arm["arm"], arm["reason"]), []).append(arm["unit"])
    for (status, name, reason), where in units.items():
        said = f"{text.text(', '.join(where))}, {text.text(name)}: {text.text(reason)}"
        out.print(f"[red]{text.text(status)}[/] {said}", soft_wrap=True)
    for caution in found["cautions"]:
        out.print(f"[yellow]beware[/]: {text.text(caution['line'])}", soft_wrap=True)
    out.print(f"report: {text.text(folder / MARKDOWN)}, {PAGE}, {JSON}", soft_wrap=True)
