"""Every millisecond of the labelled scenarios is where it belongs, in our loop and in ComfyUI's own."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

import pytest

from stagexec.stages import STAGES
from tests.host.graphs import node
from tests.host.witness import MS, Seen, Witness, printed
from tests.scenarios import graphs
from tests.scenarios.table import SCENARIOS, Scenario, another_checkpoint, spans

SLACK_MS, SLACK_SHARE = 40, 0.10
"""What a run takes by itself, on a busy machine too; the smallest label is three times as much."""

TRIES = 3
"""A millisecond in the wrong place is there each time; what another program took is not."""

LOST_MS = 2
"""Clocks of sleeps and of ledgers differ by less."""

ON_HOST = [one for one in SCENARIOS if one.on_host]

SEEN: dict[str, Seen] = {}
"""Scenario -> its last run, for what is asked of it besides."""

_labels = itertools.count(1_000, 10)


def in_list(chosen: list[Scenario]) -> list[object]:
    """Parameters of a test."""
    return [pytest.param(one, id=one.name) for one in chosen]


@pytest.fixture(scope="session")
def warm(witness: Witness) -> Iterator[Witness]:
    """The shared server, with the shared model read and a second checkpoint beside the first."""
    return warmed(witness)


@pytest.fixture(scope="session")
def host_warm(host_witness: Witness) -> Iterator[Witness]:
    """The same in the host's own loop."""
    return warmed(host_witness)


def warmed(one: Witness) -> Witness:
    """Read what all scenarios share, and import what their nodes import."""
    another_checkpoint(one, "other-tiny.safetensors")
    label = next(_labels)
    one.run(graphs.txt2img(label))
    for library in ("requests", "httpx", "urllib3", "urllib"):
        one.run(graphs.asks(label, library, 0, 0))
    one.run(graphs.asks_later(label, 0))
    for kind in ("ScnTorchLoad", "ScnComponent", "ScnDownload"):
        one.run(graphs.loads(label, kind, 0, 0))
    for kind in ("ScnCombine", "ScnWriteVideo"):
        one.run(graphs.video(label, kind, 0))
    return one


def played(one: Witness, scenario: Scenario) -> Seen:
    """The last run of a scenario, played with labels of its own."""
    made = scenario.prompts(next(_labels))
    prompts = made if isinstance(made, list) else [made]
    if scenario.play is not None:
        return scenario.play(one, prompts)
    return [one.run(prompt) for prompt in prompts][-1]


def spent(seen: Seen, node_id: str | None = None) -> dict[str, float]:
    """Milliseconds per `stage` and per `stage/part`, of the whole run or of the visits of one node."""
    visits = {visit["visit"] for visit in seen.ledger["visits"] if visit["node_id"] == node_id}
    found: dict[str, float] = defaultdict(float)
    for one in seen.ledger["segments"]:
        if node_id is None or one["visit"] in visits:
            found[one["stage"]] += (one["end_ns"] - one["start_ns"]) / MS
            found[f"{one['stage']}/{one['part']}"] += (one["end_ns"] - one["start_ns"]) / MS
    return found


def groups(labels: dict[str, int]) -> list[tuple[set[str], int]]:
    """Stages that share a label, each with the sum of what belongs there; all stages are in one of them."""
    found: list[tuple[set[str], int]] = [({stage}, 0) for stage in STAGES]
    for key, ms in labels.items():
        names = {one.partition("/")[0] for one in key.split("|")}
        meet = [one for one in found if one[0] & names]
        found = [one for one in found if not one[0] & names]
        found.append((set().union(*(one[0] for one in meet)), sum(one[1] for one in meet) + ms))
    return found


def misplaced(seen: Seen, scenario: Scenario) -> dict[str, str]:
    """What is not where it belongs: of what and where, and how much, in words."""
    found = off(spent(seen), scenario.labels, scenario.real, "the run")
    for of, labels in scenario.nodes.items():
        found |= off(spent(seen, of), labels, scenario.real, f"node {of}")
    lacking = {f"no span {lane}": "there" for lane in scenario.beside if not spans(seen, lane)}
    return found | lacking


def off(took: dict[str, float], labels: dict[str, int], real: tuple[str, ...], of: str) -> dict[str, str]:
    """Stages and parts with less than belongs there, or with more."""
    problems = {}
    parts = {key: ({key}, ms) for key, ms in labels.items() if "/" in key and "|" not in key}
    for names, ms in [*groups(labels), *parts.values()]:
        there = sum(took.get(name, 0.0) for name in names)
        most = ms + max(SLACK_MS, SLACK_SHARE * ms)
        is_real = any(name.partition("/")[0] in real for name in names)
        if there < ms * 0.99 - LOST_MS or (there > most and not is_real):
            problems[f"{of}: {'|'.join(sorted(names))}"] = f"{ms} ms belong there, {there:.0f} ms are"
    return problems


def holds(one: Witness, scenario: Scenario) -> None:
    """Each millisecond is where it belongs in one try of a few; what is not a time holds in each of them."""
    left: dict[str, str] | None = None
    for _ in range(TRIES):
        seen = played(one, scenario)
        outcome, cause = seen.ended
        assert ((outcome or "").removesuffix("_unverified"), cause) == scenario.ended  # a text is no file
        scenario.check(seen)
        SEEN[scenario.name] = seen
        told = misplaced(seen, scenario)
        left = told if left is None else {key: told[key] for key in told if key in left}
        if not left:
            return
    assert left is not None
    pytest.fail("; ".join(f"{key}: {what}" for key, what in left.items()), pytrace=False)


@pytest.mark.parametrize("scenario", in_list(SCENARIOS))
def test_every_millisecond_of_a_scenario_is_where_it_belongs(warm: Witness, scenario: Scenario) -> None:
    holds(warm, scenario)


@pytest.mark.parametrize("scenario", in_list(ON_HOST))
def test_the_same_holds_in_the_hosts_own_loop(host_warm: Witness, scenario: Scenario) -> None:
    holds(host_warm, scenario)


def test_plan_graph_finds_the_critical_path_of_a_run_of_sleeps(warm: Witness) -> None:
    label = next(_labels)
    prompt = {
        "pic": node("ScnPicture", label=label, batch=1),
        "short": graphs.work("pic", 120),
        "long": graphs.work("pic", 300),
        "end": node("ScnSwitch", first=["short", 0], second=["long", 0], use_second=True, ms=150),
        "alone": graphs.work("pic", 200),
        **{f"show_{of}": node("ScnShow", value=[of, 0]) for of in ("short", "end", "alone")},
    }
    seen = warm.run(prompt)
    found = printed("plan", seen.ledger["run_id"], "--graph", "--ledger", warm.folder)
    by_id = {one["node_id"]: one for one in found["nodes"]}
    assert [one for one in found["critical_path"] if by_id[one]["length_ns"] > 50 * MS] == ["long", "end"]
    assert 450 * MS <= found["critical_ns"] < 450 * MS + by_id["short"]["length_ns"]
    assert 320 * MS <= found["gain_ns"] <= found["serial_ns"] - found["critical_ns"] + MS
    assert abs(by_id["alone"]["slack_ns"] - 250 * MS) < 120 * MS
    assert by_id["long"]["slack_ns"] == by_id["end"]["slack_ns"] == 0


NAMED_SHARE = 0.95


@pytest.mark.parametrize("scenario", in_list([one for one in SCENARIOS if one.named]))
def test_nearly_all_of_a_common_graphs_time_has_a_name(warm: Witness, scenario: Scenario) -> None:
    seen = SEEN.get(scenario.name) or played(warm, scenario)
    assert seen.ledger["named_share"] >= NAMED_SHARE


def test_there_are_at_least_forty_scenarios_and_none_has_the_name_of_another() -> None:
    assert len({one.name for one in SCENARIOS}) == len(SCENARIOS) >= 40
