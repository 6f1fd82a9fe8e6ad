"""A restart asked for in the web interface re-executes `main.py`; make it come back to our launcher."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import wrapt

from stagexec.record.guard import guarded


def keep_launcher(command: list[str], main_file: Path) -> None:
    """Replace `python main.py …` by `command` in an exec of this very process's own Python."""

    def execv(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        changed = ours_instead(args, command, main_file)
        return wrapped(*(changed or args), **kwargs)

    wrapt.wrap_function_wrapper(os, "execv", execv)


@guarded
def ours_instead(args: tuple[Any, ...], command: list[str], main_file: Path) -> tuple[Any, ...] | None:
    """The arguments of an exec that would start the host's main.py, changed to start us; else None."""
    path, argv = args[0], list(args[1])
    words = [os.fsdecode(word) for word in argv]
    starts = [n for n, word in enumerate(words[:3]) if Path(word).absolute() == main_file]
    if Path(os.fsdecode(path)) != Path(sys.executable) or not starts:
        return None
    return path, [words[0], *command, *words[starts[0] + 1 :]]
