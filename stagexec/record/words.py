"""Which words may be kept in the ledger as they are, where `--stagexec-record-text` was not given.

What a person typed, or could have typed, is kept as a digest: two runs are told apart by it, and no one can
read it. Kept are words that come from code: names of classes that are found where they say they are, names
that Python or we give to threads, the options of a command line.
"""

from __future__ import annotations

import functools
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

OWN_THREADS = re.compile(
    r"MainThread|(?:Thread|Dummy)-\d{1,9}|(?:ThreadPoolExecutor-\d{1,9}|asyncio)_\d{1,9}"
    r"|stagexec-[a-z-]{1,24}(?:[-_]\d{1,9})*"
)
"""Names of threads that no person chose, and those of our own."""

PYTHON_THREAD = re.compile(r"(Thread-\d{1,9}) \(.*\)", re.DOTALL)
"""Python names a thread after its function, which may have any name."""

_SEED_INPUTS = """
    seed noise_seed rand_seed random_seed subseed variation_seed var_seed base_seed start_seed
    image_seed global_seed sampler_seed refiner_seed wildcard_seed
"""
SEED_INPUTS = frozenset(_SEED_INPUTS.split())
"""Names that nodes give the input of a seed."""

ARGUMENT = re.compile(r"--?[A-Za-z][A-Za-z0-9-]{0,63}")
PLAIN_VALUE = re.compile(r"-?\d{1,9}(?:\.\d{1,9})?|\d{1,3}(?:\.\d{1,3}){3}|::1?")
"""Numbers, and addresses to listen at."""


def text_is_kept() -> bool:
    """Was `--stagexec-record-text` given?"""
    from stagexec.record import live  # it uses this module itself

    return live.record_text


def hidden(value: Any) -> str:
    """What stands for a text that is not kept."""
    from stagexec.record.fingerprint import digest  # by way of the condition, which uses this module itself

    return f"text:{digest(value)}"


def thread_name(name: str) -> str:
    """The name of a thread, as far as no person chose it."""
    if text_is_kept() or OWN_THREADS.fullmatch(name):
        return name
    by_python = PYTHON_THREAD.fullmatch(name)
    return by_python[1] if by_python else hidden(name)


WEIGHT_ENDINGS = (".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin", ".gguf", ".onnx", ".pkl")


def file_name(name: str) -> str:
    """What stands for the name of a file of weights, without its folder: a digest with the known ending."""
    if text_is_kept():
        return name
    ending = next((one for one in WEIGHT_ENDINGS if name.lower().endswith(one)), "")
    return f"{hidden(name)}{ending}"


PROGRAM = re.compile(r"[a-z0-9][a-z0-9_.+-]{0,40}")


def program(name: str) -> str:
    """The name of a program that a node starts: a plain word, else a digest."""
    return name if text_is_kept() or PROGRAM.fullmatch(name) else hidden(name)


def lane(name: str) -> str:
    """The name of a lane; see `Run.span`."""
    kind, colon, rest = name.partition(":")
    return f"thread:{thread_name(rest)}" if colon and kind == "thread" else name


def class_name(kind: type) -> str:
    """module.qualname of a class that is found there; of any other, that of the first base which is.

    A class can be made with any text for its name.
    """
    if text_is_kept():
        return _full_name(kind)
    return next((_full_name(one) for one in kind.__mro__ if _is_found(one)), "object")


def short_name(kind: type) -> str:
    """The same without the module."""
    return class_name(kind).rpartition(".")[2]


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_found(kind: type) -> bool:
    module, path = getattr(kind, "__module__", None), getattr(kind, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str):
        return False
    # By the dictionaries alone: a module's or a metaclass's own look-up could run a pack's code.
    place: Any = sys.modules.get(module)
    for name in path.split("."):
        names = getattr(place, "__dict__", None)
        place = names.get(name) if names is not None else None
    return place is kind


def function_name(function: Any) -> str:
    """module.qualname of a function, coroutine or bound method whose code stands in its module's own file;
    of an object that is called, its class; else a digest."""
    function = getattr(function, "func", function) if isinstance(function, functools.partial) else function
    function = getattr(function, "__func__", function)
    code = next((c for name in _CODES if (c := getattr(function, name, None)) is not None), None)
    if code is None:
        return _of_no_code(function)
    path = code.co_filename
    of_file = [one for one, module in list(sys.modules.items()) if _is_file_of(module, path)]
    name = getattr(code, "co_qualname", code.co_name)
    if of_file:  # a node pack's module is called by its path, which names a person's folders
        return f"{of_file[0].replace(chr(92), '/').rpartition('/')[2]}.{name}"
    return name if text_is_kept() else hidden(name)


_CODES = ("__code__", "cr_code", "gi_code")


def _of_no_code(function: Any) -> str:
    """One that is written in C goes by its own name, where it is found in its module."""
    if isinstance(function, types.BuiltinFunctionType):
        module, name = str(function.__module__), str(getattr(function, "__name__", ""))
        found = getattr(sys.modules.get(module), "__dict__", {}).get(name) is function
        return f"{module}.{name}" if found else "builtin"
    return class_name(function if isinstance(function, type) else type(function))


def _is_file_of(module: Any, path: str) -> bool:
    return getattr(module, "__dict__", {}).get("__file__") == path


def seed_input(name: str) -> str:
    """The name of a seed's input: a prompt may have inputs of any name."""
    return name if name in SEED_INPUTS or text_is_kept() else f"{hidden(name)}_seed"


def literal(text: str, code: Any) -> str:
    """`text` where it stands as it is in a function's own code, so that its author wrote it."""
    return text if text_is_kept() or text in getattr(code, "co_consts", ()) else hidden(text)


def arguments(words: Iterable[str], choices: Callable[[str], bool] = lambda _word: False) -> list[str]:
    """A command line: options, numbers, and what `choices` knows as a choice of the host's own parser."""
    return [_argument(word, choices) for word in words]


def _argument(word: str, choices: Callable[[str], bool]) -> str:
    option, equals, value = word.partition("=")
    if word.startswith("-") and not PLAIN_VALUE.fullmatch(word):
        name = option if ARGUMENT.fullmatch(option) else hidden(option)
        return f"{name}={_argument(value, choices)}" if equals else name
    return word if text_is_kept() or PLAIN_VALUE.fullmatch(word) or choices(word) else hidden(word)
