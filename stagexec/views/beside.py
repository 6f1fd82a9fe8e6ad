"""Lines of `show` about what stands beside a run: work between two runs, slow questions to node classes."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from stagexec.answers.words import human
from stagexec.printable import visible

MARKS = ("asked", "is_changed_brought", "left_on_loop")
"""Marks that are told here, in words."""

WORK = {
    "collection": "collection",
    "host_cleanup": "host cleanup",
    "profile": "stagexec's own recording of a profile",
}
"""What is done between two runs -> in words."""


LEAST_HELD_NS = 20_000_000
"""So long a check was held up when it is worth a line: some milliseconds pass until a thread is there."""


def print_beside(out: Console, run: dict[str, Any]) -> None:
    """All of them. `run` as `show --json` gives it."""
    for line in (*_waited(run), *_asked(run), *_brought(run), *_left(run), *_after(run)):
        out.print(line, soft_wrap=True)


def _text(value: Any) -> str:
    return "-" if value is None else escape(visible(value))


def _node(one: dict[str, Any]) -> str:
    return f"node {_text(one['node_id'])} ({_text(one['node_class'])})"


def _waited(run: dict[str, Any]) -> list[str]:
    lines = [
        f"queue_wait: {human(one['ns'])} of it waited for {_work(one)}{_following(one)}"
        for one in run["delayed_by"]
    ]
    if (run["held_ns"] or 0) >= LEAST_HELD_NS:
        lines.append(
            f"the check of its files was held up for {human(run['held_ns'])} by work that is no run's: not "
            "in the total"
        )
    return lines


def _work(one: dict[str, Any]) -> str:
    return WORK.get(one["what"], _text(one["what"]))


def _following(one: dict[str, Any]) -> str:
    return f" after run {_text(one['after_run'][:8])}" if one["after_run"] else ""


def _asked(run: dict[str, Any]) -> list[str]:
    lines = []
    for one in run["asked"]:
        where = "in its validation, before the run" if one["when"] == "validation" else "in the run"
        if one["what"] == "on_prompt":
            lines.append(f"prompt handler {_text(one['handler'])}: {human(one['ns'])}, before the run")
        else:
            times = f" ({one['times']} times)" if one["times"] > 1 else ""
            lines.append(f"{_node(one)}: {_text(one['what'])} {human(one['ns'])}{times}, {where}")
    return lines


def _brought(run: dict[str, Any]) -> list[str]:
    nodes = run["is_changed_brought"]
    if not nodes:
        return []
    named = ", ".join(map(_text, nodes[:12])) + (f", … {len(nodes)} in all" if len(nodes) > 12 else "")
    return [f"the prompt brought its own answers to IS_CHANGED: their classes were not asked (nodes {named})"]


def _left(run: dict[str, Any]) -> list[str]:
    return [
        f"{_node(one)} left a {_text(one['what'])} on the event loop: {_text(one['name'])}; the prompt's end "
        "waited for it"
        for one in run["left_on_loop"]
    ]


def _after(run: dict[str, Any]) -> list[str]:
    lines = []
    for one in run["after_run"]:
        line = f"after the run: {_work(one)} {human(one['ns'])}"
        delayed = one["delayed"]
        if delayed:
            most = max(each["ns"] for each in delayed)
            whom = "the next prompt" if len(delayed) == 1 else f"{len(delayed)} prompts"
            line += f"; it delayed {whom} by {'' if len(delayed) == 1 else 'up to '}{human(most)}"
        lines.append(line)
    return lines
