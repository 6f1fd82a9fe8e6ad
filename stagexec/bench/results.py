"""A result folder: the plan as it was run, every raw run as it ended, notes, images, logs, the ledger."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stagexec import files
from stagexec.bench.plan import Plan

FORMAT = 1
HEADER, RUNS, NOTES = "result.json", "runs.jsonl", "notes.jsonl"

Record = dict[str, Any]


class ResultError(Exception):
    """A result folder that cannot be used; one line."""


class Results:
    """An open result folder. Every line is on its way to the disk when `add_run` or `note` returns."""

    def __init__(self, folder: Path, header: Record) -> None:
        self.folder = folder
        self.header = header
        self.runs: list[Record] = list(_lines(folder / RUNS))
        self.notes: list[Record] = list(_lines(folder / NOTES))

    @property
    def ledger(self) -> Path:
        """The ledger of all servers of this bench."""
        return self.folder / "ledger"

    @property
    def worker_prefix(self) -> str:
        """How the scratch folders of this bench's workers begin, in a machine's folder for such."""
        return f"stagexec-worker-{self.header.get('id', 'none')}-"

    @property
    def plan(self) -> Plan:
        """The plan, arms spelled out."""
        return msgspec.convert(self.header["plan"], Plan)

    @property
    def workflow(self) -> dict[str, Any]:
        """The API prompt that the arms edit."""
        found: dict[str, Any] = self.header["workflow"]
        return found

    def add_run(self, run: Record) -> None:
        """Keep one raw run."""
        self.runs.append(run)
        _append(self.folder / RUNS, run)

    def note(self, kind: str, **facts: Any) -> Record:
        """Keep one thing that is no run: a session, a proof, an arm that is unavailable."""
        record = {"kind": kind, **facts}
        self.notes.append(record)
        _append(self.folder / NOTES, record)
        return record

    def keep(self, place: Iterable[str], files: Iterable[Path]) -> list[str]:
        """Links (else copies) of delivered files under images/, as paths relative to the folder."""
        kept = []
        for number, file in enumerate(files):
            name = f"{slug('-'.join(place))}-{number}{file.suffix.lower()}"
            target = self.folder / "images" / name
            target.parent.mkdir(exist_ok=True)
            target.unlink(missing_ok=True)
            try:
                os.link(file, target)
            except OSError:
                shutil.copyfile(file, target)
            kept.append(f"images/{name}")
        return kept


def slug(text: str) -> str:
    """A file name of a text: two texts never share one."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")
    return plain if plain == text else f"{plain}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def create(folder: Path, plan: Plan, workflow: Mapping[str, Any], facts: Mapping[str, Any]) -> Results:
    """A new result in an absent or empty folder. Raises ResultError."""
    if (folder / HEADER).exists():
        raise ResultError(f"{folder} already holds a result: use --resume, or another --out")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ResultError(f"{folder} is there and is not empty")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(f"{folder} cannot be made: {error.strerror}") from None
    header = {
        "format": FORMAT,
        "id": uuid.uuid4().hex[:12],
        "plan": msgspec.to_builtins(plan),
        "workflow": dict(workflow),
        **facts,
    }
    partial = folder / f"{HEADER}.partial"
    partial.write_text(json.dumps(header, indent=1), encoding="utf-8")
    os.replace(partial, folder / HEADER)
    return Results(folder, header)


def load(folder: Path) -> Results:
    """The result in a folder. Raises ResultError."""
    try:
        place = files.place(folder)
        if not (place / HEADER).exists():
            raise ResultError(f"no result in {files.shortened(str(folder))}: it has no {HEADER}")
        header = files.json_of(files.text_of(place / HEADER))
    except (OSError, files.BadPath) as error:
        raise ResultError(f"no result in {files.shortened(str(folder))}: {files.said(error)}") from None
    except files.BadText as error:
        raise ResultError(f"{folder / HEADER} cannot be read: {error}") from None
    if not isinstance(header, dict):
        raise ResultError(f"{folder / HEADER} is no header of a result")
    if header.get("format") != FORMAT:
        raise ResultError(f"{folder} has result format {header.get('format')}, this is for {FORMAT}")
    return Results(folder, header)


def resume(folder: Path, plan: Plan, workflow: Mapping[str, Any], facts: Mapping[str, Any]) -> Results:
    """The result in a folder, if it is of this plan, workflow and machine. Raises ResultError."""
    found = load(folder)
    if found.header.get("machine") != facts.get("machine"):
        raise ResultError(f"{folder} was made on another machine: runs of two machines are never pooled")
    for name, now in (("plan", msgspec.to_builtins(plan)), ("workflow", dict(workflow))):
        if found.header[name] != json.loads(json.dumps(now)):
            raise ResultError(f"{folder} was made with another {name}: start again in another --out")
    return found


def complete(
    runs: Iterable[Record], positions: Mapping[str, int]
) -> dict[tuple[str, str, int], list[Record]]:
    """The runs of each complete measure, by (unit, arm, pair). `positions`: unit -> runs of a measure.

    A measure counts when all its runs, of one attempt, were in the right state; the first that is counts.
    """
    attempts: dict[tuple[str, str, int, int], list[Record]] = {}
    for run in runs:
        if run["role"] == "counted" and run["right_state"]:
            key = (run["unit"], run["arm"], run["pair"], run["attempt"])
            attempts.setdefault(key, []).append(run)
    found: dict[tuple[str, str, int], list[Record]] = {}
    for (unit, arm, pair, _), group in sorted(attempts.items(), key=lambda item: item[0][3]):
        if len(group) == positions.get(unit):
            found.setdefault((unit, arm, pair), group)
    return found


def _append(file: Path, record: Mapping[str, Any]) -> None:
    torn = file.exists() and file.stat().st_size and not _ends_whole(file)
    with file.open("ab") as stream:
        stream.write((b"\n" if torn else b"") + msgspec.json.encode(record) + b"\n")


def _ends_whole(file: Path) -> bool:
    with file.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) == b"\n"


def _lines(file: Path) -> Iterator[Record]:
    """Every whole line; one that was cut off when a machine died is left out."""
    if not file.exists():
        return
    with file.open("rb") as stream:
        for line in stream:
            try:
                found = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            if isinstance(found, dict):
                yield found
