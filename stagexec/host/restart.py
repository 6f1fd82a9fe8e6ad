"""A restart asked for in the web interface starts `main.py` again; make it come back to our launcher.

Packs do it in two ways: an exec in place of this process, or a new process before this one ends. Each word
may stand in quotes of its own, as Windows wants it, whose exec joins the words with spaces and parts them.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

from stagexec.record import ends
from stagexec.record.guard import guarded

FLAGS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Of the interpreter: the next word belongs to them, where it is not in the same one."""

OTHER_PROGRAM = ("-c", "-m", "-")
"""After these no file follows."""

STARTS_ANEW = frozenset({"--windows-standalone-build", "--auto-launch", "--disable-auto-launch"})
"""What a restart may leave out or add. With other arguments it is a second server, not our successor."""


class Restart:
    """How this process was started: `command` after the interpreter, in place of `main_file`."""

    def __init__(
        self,
        command: list[str],
        main_file: str,
        executable: str = sys.executable,
        path: ModuleType = os.path,
    ) -> None:
        self.command = command
        self.main_file = main_file
        self.executable = executable
        self.path = path

    def words(
        self, words: Sequence[str], program: str | None = None, cwd: str | None = None
    ) -> list[str] | None:
        """A command line that starts the host's main.py, changed to start us; None for any other.

        `program`: what is executed, where that is not the first word.
        """
        if not words or not self._is_ours(program if program is not None else words[0]):
            return None
        at = self._script(words)
        if at is None or not self._same(_bare(words[at]), self.main_file, cwd):
            return None
        return [*words[:at], *self.command, *words[at + 1 :]]

    def rest(self, words: Sequence[str]) -> list[str]:
        """The words after the script."""
        at = self._script(words)
        return [] if at is None else list(words[at + 1 :])

    def _script(self, words: Sequence[str]) -> int | None:
        """Which word names the file that the interpreter runs."""
        at = 1
        while at < len(words):
            word = _bare(words[at])
            if word in OTHER_PROGRAM or word[:2] in ("-c", "-m"):
                return None
            if not word.startswith("-"):
                return at
            at += 2 if word in FLAGS_WITH_VALUE else 1
        return None

    def _is_ours(self, program: str) -> bool:
        bare = _bare(program)
        if self.path.dirname(bare):
            return self._same(bare, self.executable, None)
        plain = self.path.normcase(bare).removesuffix(".exe")  # the starting program looks it up in PATH
        return bool(plain) and plain == self.path.normcase(self.path.basename(self.executable)).removesuffix(
            ".exe"
        )

    def _same(self, one: str, other: str, cwd: str | None) -> bool:
        path = self.path
        if cwd is not None and not path.isabs(one):
            one = path.join(cwd, one)
        if path.normcase(path.abspath(one)) == path.normcase(path.abspath(other)):
            return True
        # The same file by another way, as a link. (A venv's python is a link, too, to one of others.)
        return other != self.executable and path.normcase(path.realpath(one)) == path.normcase(
            path.realpath(other)
        )


def _bare(word: str) -> str:
    """A word without the quotes put round it for Windows."""
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] == '"' else word


def quoted(words: Sequence[str]) -> list[str]:
    """Words that Windows' exec hands on whole: it joins them with spaces. Those in quotes stay."""
    return [word if _bare(word) != word else subprocess.list2cmdline([word]) for word in words]


def keep_launcher(command: list[str], main_file: Path) -> None:
    """Replace `python main.py …` by `command` wherever this process's own Python is started with it.

    All of os.exec* come to execv or execve, and every way of subprocess comes to Popen. Before the seams: one
    of them is Popen's too, and has to be the outermost.
    """
    how = Restart(command, str(main_file))
    for name in ("execv", "execve"):
        wrapt.wrap_function_wrapper(os, name, _exec_wrapper(how))
    for name in ("spawnv", "spawnve", "spawnvp", "spawnvpe"):
        if hasattr(os, name):
            wrapt.wrap_function_wrapper(os, name, _spawn_wrapper(how))
    setattr(subprocess.Popen, "__init__", _popen_init(how, subprocess.Popen.__init__))  # noqa: B010 (typed)


def _exec_wrapper(how: Restart) -> Any:
    pid = os.getpid()

    def execute(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if os.getpid() != pid:  # a forked child becomes another program: nothing of ours ends
            changed = ours_instead(args, how) if _follows_us(how, args) else None
            return wrapped(*(changed or args), **kwargs)
        changed = ours_instead(args, how)
        resume = ends.restarting() if _can_start(args) else None
        try:
            return wrapped(*(changed or args), **kwargs)
        finally:  # it does not come back, unless it failed
            if resume is not None:
                resume()

    return execute


def _spawn_wrapper(how: Restart) -> Any:
    def spawn(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        overlay = bool(args) and args[0] == getattr(os, "P_OVERLAY", "none")
        changed = ours_instead(args[1:], how) if overlay or _follows_us(how, args[1:]) else None
        resume = ends.restarting() if overlay else None
        try:
            found = wrapped(*((args[0], *changed) if changed else args), **kwargs)
        finally:
            if resume is not None:
                resume()
        if changed is not None:
            ends.restart_begun()
        return found

    return spawn


def _popen_init(how: Restart, original: Any) -> Any:
    @functools.wraps(original)
    def init(popen: Any, *args: Any, **kwargs: Any) -> None:
        changed = ours_started(how, args, kwargs)
        if changed is None:
            original(popen, *args, **kwargs)
        else:
            original(popen, *changed[0], **changed[1])
            ends.restart_begun()

    return init


@guarded
def ours_instead(
    args: tuple[Any, ...], command: list[str] | Restart, main_file: Path | None = None
) -> tuple[Any, ...] | None:
    """The arguments of an exec that would start the host's main.py, changed to start us; else None."""
    how = command if isinstance(command, Restart) else Restart(command, str(main_file))
    changed = how.words([os.fsdecode(word) for word in args[1]], os.fsdecode(args[0]))
    if changed is None:
        return None
    return (args[0], quoted(changed) if how.path.__name__ == "ntpath" else changed, *args[2:])


@guarded
def _can_start(args: tuple[Any, ...]) -> bool:
    """Whether an exec will replace this process: the search along PATH tries names that are not there."""
    return os.path.isfile(args[0]) and os.access(args[0], os.X_OK)


@guarded
def _follows_us(how: Restart, args: tuple[Any, ...]) -> bool:
    return is_successor(how.rest([os.fsdecode(word) for word in args[1]]), sys.argv[1:])


@guarded
def ours_started(
    how: Restart, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a Popen that would start main.py in our place, changed to start us; else None."""
    asked = args[0] if args else kwargs.get("args")
    if not isinstance(asked, (list, tuple)) or kwargs.get("shell") or len(asked) < 2:
        return None
    words = [os.fsdecode(word) for word in asked]
    program, cwd = (
        None if kwargs.get(name) is None else os.fsdecode(kwargs[name]) for name in ("executable", "cwd")
    )
    changed = how.words(words, program, cwd)
    if changed is None or not is_successor(how.rest(words), sys.argv[1:]):
        return None
    return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "args": changed})


def is_successor(theirs: Sequence[str], mine: Sequence[str]) -> bool:
    """Whether a process with these arguments takes the place of one with `mine`."""
    return [w for w in map(_bare, theirs) if w not in STARTS_ANEW] == [
        w for w in mine if w not in STARTS_ANEW
    ]
