"""What we say and ask in a fence cannot raise, and is shown wherever it can be."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from stagexec.record import guard, safe


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)

    __repr__ = __str__


class Silent(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as found:  # noqa: BLE001 (what the test is about)
        return found


@pytest.fixture
def console() -> Iterator[tuple[safe.Log, Any]]:
    """(log, make): `make(encoding)` puts a console of that encoding behind the log, which has no other."""
    logger = logging.getLogger("stagexec.test_safe")
    logger.propagate = False
    streams: list[io.TextIOWrapper] = []

    def make(encoding: str, errors: str = "strict") -> io.TextIOWrapper:
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors, newline="")
        logger.addHandler(logging.StreamHandler(stream))
        streams.append(stream)
        return stream

    yield safe.Log(logger), make
    logger.handlers.clear()
    logger.propagate = True


def shown(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer: Any = stream.buffer
    return str(buffer.getvalue().decode(stream.encoding))


@pytest.mark.parametrize(
    ("encoding", "text", "is_shown"),
    [
        ("cp1252", "caf\u00e9 \u2192 \U0001f600", "caf\u00e9 \\u2192 \\U0001f600"),
        ("gbk", "\u4e2d \u00e9 \U0001f600", "\u4e2d \u00e9 \\U0001f600"),
        ("ascii", "caf\u00e9", "caf\\xe9"),
        ("utf-8", "\u2192 \ud800 100%s", "\u2192 \\ud800 100%s"),
    ],
)
def test_what_a_console_lacks_is_escaped_and_the_rest_is_shown_as_it_is(
    console: Any, encoding: str, text: str, is_shown: str
) -> None:
    log, make = console
    stream = make(encoding)
    log.error(text)
    log.error("%s", text)
    assert shown(stream) == f"{is_shown}\n" * 2
    assert log.unsaid == 0


def test_a_console_that_replaces_by_itself_gets_the_text_untouched(console: Any) -> None:
    log, make = console
    stream = make("ascii", "replace")
    log.warning("caf\u00e9")
    assert shown(stream) == "caf?\n"


def test_a_closed_console_is_opened_again_and_shows_what_was_to_be_said(
    console: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log, make = console
    stream = make("utf-8")
    stream.close()
    monkeypatch.setattr("sys.stderr", stream)  # to which logging reports its own failures
    monkeypatch.setitem(safe._CONSOLES, 2, safe._identity(2))
    log.error("caf\u00e9")
    assert sys.stderr is not stream
    assert sys.stderr in [getattr(one, "stream", None) for one in log.logger.handlers]
    assert capfd.readouterr().err == "caf\u00e9\n"
    assert log.unsaid == 0


def test_a_file_that_has_a_closed_consoles_number_by_now_is_not_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(safe._CONSOLES, 2, (0, 0))
    with safe.opened(2) as stream:
        assert stream.name == os.devnull


def test_a_line_for_a_closed_console_is_lost_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr("sys.stderr", stream)
    safe.print_error("no one reads this")
    assert sys.stderr is stream


@pytest.mark.parametrize("error", [OSError, SystemExit, KeyboardInterrupt])
def test_a_handler_that_raises_ends_nothing(console: Any, error: type[BaseException]) -> None:
    log, _ = console

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise error

    log.logger.addHandler(Broken())
    log.info("hidden by the level")
    log.error("text")
    assert log.unsaid == 1


@pytest.mark.parametrize("error_class", [Exits, Silent])
def test_an_error_without_text_is_told_by_its_kind_everywhere(console: Any, error_class: Any) -> None:
    log, make = console
    error, kind = error_class(), error_class.__name__
    assert safe.text_of(error).startswith(f"{kind} (its text raised ")
    assert safe.named(error) == safe.text_of(error)
    assert safe.repr_of(error).startswith(f"<{kind}, whose repr raised ")
    found = safe.traceback_of(raised(error))
    assert "test_safe.py" in found
    assert kind in found.splitlines()[-1]
    stream = make("utf-8")
    log.error("%s and %d", error, 3)
    log.error("%d", error)
    assert shown(stream).splitlines()[0].endswith(") and 3")
    assert kind in shown(stream).splitlines()[1]


def test_the_traceback_is_the_interpreters_own_where_that_can_be_made() -> None:
    error = raised(ValueError("x \ud800"))
    error.__cause__ = KeyError("y")
    whole = traceback.format_exception(type(error), error, error.__traceback__)
    assert safe.traceback_of(error) == "".join(whole)
    assert safe.frames_of(error.__traceback__) == traceback.format_tb(error.__traceback__)


def test_frames_are_told_without_their_lines_where_a_loader_raises() -> None:
    class Loader:
        def get_source(self, _name: str) -> str:
            raise SystemExit("no source")

    scope: dict[str, Any] = {"__name__": "odd", "__loader__": Loader(), "__spec__": None}
    exec(compile("def f():\n  raise ValueError('x')\n", "odd.py", "exec"), scope)
    with pytest.raises(ValueError, match="x") as found:
        scope["f"]()
    error = found.value
    assert safe.frames_of(error.__traceback__)[-1] == '  File "odd.py", line 2, in f\n'
    assert safe.traceback_of(error).endswith("ValueError: x\n")
    assert safe.place_of(error) == "odd:2"


def test_an_error_that_no_console_could_show_is_found_behind_the_one_that_logging_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stderr", stream)
    logger = logging.Logger("narrow")
    logger.addHandler(logging.StreamHandler(stream))

    def host() -> None:
        try:
            raise ValueError("half \ud800")
        except ValueError as error:
            logger.error(f"!!! {error}")

    with pytest.raises(UnicodeEncodeError) as found:
        host()
    assert repr(safe.behind_log(found.value)) == repr(ValueError("half \ud800"))
    alone = raised(KeyError("x"))
    alone.__context__ = ValueError("not of the log")
    assert safe.behind_log(alone) is alone


def test_a_class_of_odd_make_has_a_name() -> None:
    odd = type("Odd", (Exception,), {"__module__": None})("x")
    assert safe.kind_of(odd) == "Odd"
    assert safe.full_kind_of(odd) == "None.Odd"
    assert safe.place_of(odd) is None


def test_a_foreign_question_that_exits_has_the_default_for_an_answer() -> None:
    assert safe.ask(3, int, "7") == 7
    assert safe.ask(3, str, Exits()) == 3  # type: ignore[arg-type]


def test_a_fault_whose_filing_exits_is_noted_all_the_same(
    faults_expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exits(_where: str, _error: BaseException) -> None:
        raise SystemExit

    monkeypatch.setattr(guard, "on_fault", exits)
    guard.note("somewhere", Silent())
    assert faults_expected[0] == ("somewhere", "Silent (its text raised KeyboardInterrupt)")
    assert faults_expected[1][0] == "guard.on_fault"
