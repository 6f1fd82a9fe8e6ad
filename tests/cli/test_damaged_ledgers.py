"""Every reader goes on over a damaged ledger: seeded damage, and no exception escapes."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from multidict import CIMultiDict

from stagexec.cli import command
from stagexec.reading import index, relation, rows, store, tail
from stagexec.views import otlp, prometheus
from stagexec.web.routes import Site
from tests.reading import damaged

SEEDS = range(12)
"""Each is a ledger with damage of its own; more of them cost only time."""

OTHER = 77
"""pid of the process whose journal is not damaged."""


def verb(*args: str) -> Result:
    return CliRunner().invoke(command, list(args))


def escaped(done: Result) -> BaseException | None:
    """An exception that a verb let out, other than an exit."""
    return None if isinstance(done.exception, (SystemExit, type(None))) else done.exception


VERBS = (
    ("runs", "--json"),
    ("runs",),
    ("show", "RUN", "--json"),
    ("show", "RUN"),
    ("diff", "RUN", "last", "--json"),
    ("diff", "last~1", "RUN"),
    ("failures", "--by", "stage", "--price", "2", "--json"),
    ("failures", "--by", "day"),
    ("plan", "RUN", "--json"),
    ("plan", "RUN", "--condition"),
    ("audit", "--json"),
    ("audit",),
    ("export", "RUN", "--perfetto", "OUT/p.json"),
    ("export", "--csv", "OUT/c.csv"),
    ("export", "RUN", "--parquet", "OUT/one"),
    ("export", "--parquet", "OUT/all"),
    ("export", "--html", "OUT/r.html"),
)


class Request(SimpleNamespace):
    """As much of aiohttp's as the routes look at."""

    def __init__(self, run: str = "", **query: str) -> None:
        super().__init__(
            headers=CIMultiDict({"Host": "127.0.0.1"}),
            query=query,
            match_info={"id": run},
            remote="127.0.0.1",
            secure=False,
        )


def pages(ledger: Path, run: str) -> list[Any]:
    """The answers of the routes, as (status, JSON)."""
    site = Site(lambda: ledger, prometheus.NoLibrary("none"))

    async def ask() -> list[Any]:
        answers = [
            await site.runs(Request()),
            await site.run(Request(run)),
            await site.failures(Request(by="node")),
        ]
        return [(one.status, json.loads(one.body)) for one in answers]

    return asyncio.run(ask())


def listeners(path: Path) -> None:
    """What a running server does with each run whose end is written."""
    metrics = prometheus.Metrics()
    for closed in tail.Tail(path).poll():
        metrics.observe(closed.row)
        otlp.spans_of(closed.run())
    metrics.text()


def damage(lines: list[bytes], chance: random.Random) -> list[bytes]:
    """One to three damages of single lines or bytes, none of them to a line of the journal's head."""
    lines = list(lines)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(3, len(lines))
        line = lines[at]
        place = chance.randrange(len(line))
        junk = bytes(chance.randrange(256) for _ in range(chance.randint(1, 8)))
        how = chance.choice(("bytes", "cut", "zeros", "twice", "gone", "odd", "odd", "odd", "moved", "long"))
        if how == "bytes":
            lines[at] = line[:place] + junk.replace(b"\n", b"?") + line[place + len(junk) :]
        elif how == "cut":
            lines[at] = line[:place] + b"\n"
        elif how == "zeros":
            lines[at] = b"\x00" * 4096 + line
        elif how == "twice":
            lines[at] = line + line
        elif how == "gone":
            lines[at] = b""
        elif how == "long":
            lines[at] = b" " * 10**6 + b"x" * 10**6 + b"\n"
        elif how == "moved":
            other = chance.randrange(3, len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        else:
            try:
                event = json.loads(line)
                field = chance.choice(sorted(event))
                value = chance.choice(sorted(damaged.ODD.values()))
                lines[at] = damaged.with_value(event, field, value, chance.random() < 0.5)
            except (ValueError, TypeError, AttributeError, KeyError):
                continue  # damaged already
    return lines


def test_no_damage_stops_a_reader_or_changes_the_runs_of_another_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, out = tmp_path / "ledger", tmp_path / "out"
    out.mkdir()
    damaged.manifest(ledger)
    damaged.put(ledger, damaged.lines_of(damaged.whole(OTHER).events), OTHER)
    sound = {run.run_id: rows.summary(run) for run in store.load(ledger).runs}
    assert len(sound) == 6
    lines = damaged.lines_of(damaged.whole().events)
    verbs = list(VERBS)
    escapes = []
    for seed in SEEDS:
        chance = random.Random(seed)
        path = damaged.put(ledger, damage(lines, chance))
        monkeypatch.setattr(relation, "SMALL", chance.choice((0, relation.SMALL)))
        monkeypatch.setattr(index, "SAVE_FROM_BYTES", 0)
        names = [run.run_id for run in store.load(ledger).runs]
        run = chance.choice(names)
        for words in chance.sample(verbs, 5):
            told = [word.replace("RUN", run).replace("OUT", str(out)) for word in words]
            done = verb(*told, "--ledger", str(ledger))
            if escaped(done) is not None:
                escapes.append((seed, words, repr(done.exception)[:200]))
        with relation.of_ledger(ledger) as found:
            listed = {row["run_id"]: row for row in found.rows()}
        assert set(names) == set(listed), seed
        again = {run.run_id: rows.summary(run) for run in store.load(ledger).runs}
        assert {name: again[name] for name in sound} == sound, seed
        assert all(listed[name]["total_ns"] == sound[name]["total_ns"] for name in sound), seed
        assert [status for status, _ in pages(ledger, run)] == [200, 200, 200], seed
        listeners(path)
    assert escapes == []
