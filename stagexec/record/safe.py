"""What can never raise: the text of foreign things, questions to foreign code, and what we say in the log.

A fence that writes the error it has caught must hold for any error: text with half a character in it, a
console that lacks the character, a closed console, an exception that has no text, or whose text exits the
interpreter. The host's own worker dies of these: `logging` reports a failed write by another write to the
same stream.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

MOST_BEHIND = 10
"""`logging` raises once for the message and once for its own report of that; a circle has no end."""


def ask(default: T, function: Callable[..., T], *args: Any) -> T:
    """What `function` answers; `default` where it raises, whatever it raises.

    For foreign code that is asked for the sake of a message or of bookkeeping, never for a result.
    """
    try:
        return function(*args)
    except BaseException:  # noqa: BLE001 (also SystemExit: no text is worth a worker)
        return default


def attempt(what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Call foreign code inside a fence; True when it returned. What it raises goes into the log."""
    try:
        function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001 (the last fence: nothing stands behind it)
        log.error("stagexec: %s failed: %s", what, named(error))
        return False
    return True


def kind_of(thing: Any) -> str:
    """The name of a thing's class."""
    return ask("an object", lambda: str(type(thing).__name__))


def full_kind_of(thing: Any) -> str:
    """The name of a thing's class with its module, `builtins` included."""
    return ask(kind_of(thing), lambda: f"{type(thing).__module__}.{type(thing).__qualname__}")


def text_of(thing: Any) -> str:
    """The thing's own text; of one whose text cannot be made, its kind and why."""
    try:
        return str.__str__(f"{thing}")
    except BaseException as error:  # noqa: BLE001 (a pack's exception may be of any make)
        return f"{kind_of(thing)} (its text raised {kind_of(error)})"


def repr_of(thing: Any) -> str:
    """As `text_of`, for `repr`."""
    try:
        return str.__str__(repr(thing))
    except BaseException as error:  # noqa: BLE001 (as above)
        return f"<{kind_of(thing)}, whose repr raised {kind_of(error)}>"


def named(error: BaseException) -> str:
    """An error as one piece: its kind and its text. Of one whose text cannot be made, its kind."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 (as above)
        return text_of(error)


def traceback_of(error: BaseException) -> str:
    """The traceback as `traceback.format_exc` gives it; without what cannot be had of it."""
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:  # noqa: BLE001 (a text that raises, a module whose source cannot be had)
        where = "".join(frames_of(error.__traceback__))
        return f"Traceback (most recent call last):\n{where}{named(error)}\n"


def frames_of(trace: TracebackType | None) -> list[str]:
    """`traceback.format_tb(trace)`; without source lines where those cannot be had."""
    try:
        return traceback.format_tb(trace)
    except BaseException:  # noqa: BLE001 (a pack's loader is asked for the lines)
        return ask([], _bare_frames, trace)


def _bare_frames(trace: TracebackType | None) -> list[str]:
    found = []
    while trace is not None:
        code = trace.tb_frame.f_code
        found.append(f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}\n')
        trace = trace.tb_next
    return found


def place_of(error: BaseException) -> str | None:
    """module:line of where an error was raised; None of one that was not."""
    trace = error.__traceback__
    if trace is None:
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    module = ask("?", lambda: str(trace.tb_frame.f_globals.get("__name__")))
    return f"{module}:{trace.tb_lineno}"


def behind_log(error: BaseException) -> BaseException:
    """The error that was to be logged, where this one came out of `logging`; else this one.

    In the host's own loop a node's error that no console can show arrives so.
    """
    for _ in range(MOST_BEHIND):
        if error.__context__ is None or not any(module == "logging" for module, _ in way_of(error)):
            break
        error = error.__context__
    return error


def way_of(error: BaseException) -> Iterator[tuple[Any, str]]:
    """(module, function) of each frame that an error has come through, from the outside."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_globals.get("__name__"), trace.tb_frame.f_code.co_name
        trace = trace.tb_next


class Log:
    """A logger that cannot raise. What a console cannot show is escaped, so that the rest is still shown."""

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger
        self.unsaid = 0
        """Messages that no handler would take in any form."""

    def info(self, message: str, *args: Any) -> None:
        """As the logger's own, like the others."""
        self.log(logging.INFO, message, *args)

    def warning(self, message: str, *args: Any) -> None:
        """See `info`."""
        self.log(logging.WARNING, message, *args)

    def error(self, message: str, *args: Any) -> None:
        """See `info`."""
        self.log(logging.ERROR, message, *args)

    def log(self, level: int, message: str, *args: Any) -> None:
        """See `info`."""
        text = filled(message, args)
        ask(False, reopen_consoles, self.logger)
        for shown in (ask(text, self._narrowed, text), escaped(text, "ascii")):
            if ask(False, self._say, level, shown):
                return
        self.unsaid += 1  # a handler of a pack's raises at any text

    def _say(self, level: int, text: str) -> bool:
        self.logger.log(level, text, stacklevel=5)
        return True

    def _narrowed(self, text: str) -> str:
        """The text as all streams of the logger's handlers can take it."""
        if text.isascii():
            return text
        for handler in handlers_of(self.logger):
            stream = getattr(handler, "stream", None)
            encoding = getattr(stream, "encoding", None)
            if isinstance(encoding, str):
                text = shown_in(text, encoding, getattr(stream, "errors", None))
        return text


def handlers_of(logger: logging.Logger | None) -> Iterator[logging.Handler]:
    """Every handler that gets what is said by `logger`."""
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


def reopen_consoles(logger: logging.Logger) -> bool:
    """Open standard output and error again where a node has closed them; True when one was.

    With a closed console each line that the host itself logs raises: the worker dies at its next prompt, and
    the server refuses all others.
    """
    fresh: dict[int, Any] = {}
    for file, name in ((1, "stdout"), (2, "stderr")):
        old = getattr(sys, name)
        if old is not None and old.closed:
            fresh[id(old)] = opened(file)
            setattr(sys, name, fresh[id(old)])
    for handler in handlers_of(logger):
        stream = getattr(handler, "stream", None)
        if stream is not None and id(stream) in fresh:
            setattr(handler, "stream", fresh[id(stream)])  # noqa: B010 (only some handlers have one)
    return bool(fresh)


def opened(file: int) -> Any:
    """A stream to one of the process's consoles; to nowhere where another file has its number by now."""
    if not _CONSOLES[file] or _identity(file) != _CONSOLES[file]:
        return open(os.devnull, "w", encoding="utf-8")
    return open(file, "w", buffering=1, errors="backslashreplace", closefd=False)


def _identity(file: int) -> tuple[int, ...]:
    try:
        found = os.fstat(file)
    except OSError:  # closed, or a process without consoles
        return ()
    return found.st_dev, found.st_ino


_CONSOLES = {file: _identity(file) for file in (1, 2)}
"""Which files the consoles were when the process began."""


def filled(message: str, args: tuple[Any, ...]) -> str:
    """`message % args`, with the texts of those arguments that can be had."""
    if not args:
        return message
    try:
        return message % args
    except BaseException:  # noqa: BLE001 (an argument whose text raises)
        shown = tuple(arg if type(arg) in (int, float) else text_of(arg) for arg in args)
        return ask(f"{message} {shown}", lambda: message % shown)


def shown_in(text: str, encoding: str, errors: Any = None) -> str:
    """The text as a stream of this encoding takes it, with escapes for what it lacks."""
    try:
        text.encode(encoding, errors or "strict")
    except UnicodeError:
        return escaped(text, encoding)
    return text


def escaped(text: str, encoding: str) -> str:
    """The text with backslash escapes for every character that the encoding lacks."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_error(text: str) -> None:
    """A line on standard error, whatever stands there now."""
    for shown in (text, escaped(text, "ascii")):
        if ask(False, _print_error, shown):
            return


def _print_error(text: str) -> bool:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
    return True


log = Log(logging.getLogger("stagexec"))
"""What stagexec itself has to say."""

host_log = Log(logging.getLogger())
"""What our loop says in the host's place: on the root logger, as the host does."""
