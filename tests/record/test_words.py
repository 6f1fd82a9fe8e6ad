"""Which words are kept: those of code, and no person's."""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

import pytest

from stagexec.record import live, words
from stagexec.record.condition import api_prompt_hash

WORD = "quillwhisper"


class Known(ValueError):
    """An exception that is found where it says it is."""


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("MainThread", "MainThread"),
        ("Thread-12", "Thread-12"),
        (f"Thread-12 ({WORD})", "Thread-12"),
        ("ThreadPoolExecutor-3_1", "ThreadPoolExecutor-3_1"),
        ("asyncio_4", "asyncio_4"),
        ("stagexec-encode", "stagexec-encode"),
        (WORD, None),
        (f"{WORD}_0", None),
        (f"Thread-12 (x)\n{WORD}", None),
    ],
)
def test_a_thread_s_name_is_kept_where_nobody_chose_it(name: str, kept: str | None) -> None:
    found = words.thread_name(name)
    assert WORD not in found
    assert found == kept if kept is not None else found.startswith("text:")


def test_a_class_is_named_as_it_is_found_and_a_made_up_one_by_its_base() -> None:
    made = type(WORD, (Known,), {"__module__": WORD})
    assert words.class_name(Known) == f"{__name__}.Known"
    assert words.class_name(made) == f"{__name__}.Known"
    assert words.short_name(type(WORD, (ZeroDivisionError,), {})) == "ZeroDivisionError"
    imitation = type("Known", (OSError,), {"__module__": __name__, "__qualname__": "Known"})
    assert words.class_name(imitation) == "builtins.OSError"


def test_an_author_s_literal_is_kept_and_a_text_from_elsewhere_is_not() -> None:
    def code() -> str:
        return "sharpen"

    assert words.literal(code(), code.__code__) == "sharpen"
    assert WORD not in words.literal(WORD, code.__code__)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--port", "8188", "--listen", "127.0.0.1"], ["--port", "8188", "--listen", "127.0.0.1"]),
        (["--fast", "fp16_accumulation"], ["--fast", "fp16_accumulation"]),
        (["--reserve-vram", "-1.5"], ["--reserve-vram", "-1.5"]),
        (["--cache-lru=3"], ["--cache-lru=3"]),
    ],
)
def test_options_numbers_and_the_host_s_own_choices_of_a_command_line_are_kept(
    given: list[str], kept: list[str]
) -> None:
    assert words.arguments(given, {"fp16_accumulation"}.__contains__) == kept


@pytest.mark.parametrize(
    "given", [["--output-directory", f"/home/{WORD}"], [f"--key={WORD}"], [f"-- {WORD}"], [WORD]]
)
def test_no_other_text_of_a_command_line_is_kept(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert WORD not in " ".join(words.arguments(given))
    monkeypatch.setattr(live, "record_text", True)
    assert WORD in " ".join(words.arguments([given[-1]])) or given[0].startswith("-")


def test_a_seed_s_input_of_any_other_name_is_not_named() -> None:
    prompt = {"1": {"class_type": "X", "inputs": {"noise_seed": 1, f"{WORD}_seed": 2}}}
    (_, one, _), (_, other, _) = api_prompt_hash(prompt)[1]
    assert one == "noise_seed"
    assert WORD not in other
    assert other.endswith("_seed")


def named_here() -> None:
    """A function of this module's own file."""


class Handler:
    def handle(self, data: Any) -> Any:
        return data

    def __call__(self, data: Any) -> Any:
        return data


def test_a_function_goes_by_the_name_that_stands_in_its_modules_own_file() -> None:
    for function, name in (
        (named_here, "named_here"),
        (Handler().handle, "Handler.handle" if sys.version_info >= (3, 11) else "handle"),
        (functools.partial(named_here), "named_here"),
        (Handler(), "Handler"),
        (time.sleep, "time.sleep"),
    ):
        assert words.function_name(function).endswith(name)
        assert "/" not in words.function_name(function)


def test_a_function_made_of_a_text_is_a_digest() -> None:
    made: dict[str, Any] = {}
    exec("def what_a_person_typed(): pass", made)
    named = words.function_name(made["what_a_person_typed"])
    assert named.startswith("text:")
    assert "typed" not in named
