"""What was done in one scene and what the outside saw of it: all that the checks go by."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass
class Posted:
    """A prompt that was sent. `answered_ns` is None when no 200 came; `closed_ns` when no end was seen.

    `must` is false where no ledger can have it: its lines were removed, or no disk took them before the kill.
    `exact` is false where another program took lines of it away.
    """

    prompt_id: str
    kind: str
    answered_ns: int | None = None
    closed_ns: int | None = None
    must: bool = True
    exact: bool = True
    refused: str = ""
    """What came in place of a 200."""


@dataclasses.dataclass
class Played:
    """One scene, played. Times in ns of the monotonic clock, which all processes of a machine share."""

    name: str
    kind: str
    ledger: Path
    output: Path
    posted: list[Posted]
    killed_ns: tuple[int, int] | None = None
    """Between these two moments the process was killed; None when it was not."""
    pid: int | None = None
    """The process that was killed: another one may have gone on in the same ledger."""
    planned: bool = False
    """It ended by a signal that asks for an orderly end."""
    events_ns: list[int] = dataclasses.field(default_factory=list)
    """When segments of the host ended, by its own witness."""
    late_ns: int = 0
    """By how much the machine woke the host's threads late before its end."""
    awake_ns: int | None = None
    """When its threads ran last: one that is stopped, or whose interpreter is held, writes nothing more."""
    times: bool = True
    """Whether losses of events and time are to be measured: nothing else than a kill happened."""
    allowed: frozenset[str] = frozenset()
    """Findings of the audit that the contract expects after such an injury."""
    troubles: list[str] = dataclasses.field(default_factory=list)
    """What went wrong while it was played: a prompt that never ended, a host that would not start."""
    skipped: str | None = None
    """Why the scene could not be played here."""

    @property
    def accepted(self) -> list[Posted]:
        """The prompts whose acceptance was answered for."""
        return [one for one in self.posted if one.answered_ns is not None]


@dataclasses.dataclass(frozen=True)
class Loss:
    """Something that the contract promises and that is not so."""

    scene: str
    kind: str
    what: str


KINDS = {
    "unreadable": "a journal that cannot be read",
    "accepted_missing": "an accepted prompt that is not in the ledger",
    "invented": "a run of no prompt, or two of one",
    "wrong_end": "a run that did not end as the ledger says",
    "inexact": "a run whose segments do not add up",
    "audit": "a contradiction in the journal",
    "events_lost": "more than 50 ms of events lost",
    "time_lost": "more than 1 s of time lost",
    "partial_file": "a file of ours under its final name that is not whole",
    "foreign_write": "a file of the user's that we wrote to",
    "stuck": "a prompt that never ended, a worker that is neither alive nor told dead",
    "changed": "the host behaved as it would not without us",
}
"""Every kind of loss, in words."""
