"""Out of memory in every shape: by class, by number, by the texts of allocators, wrapped and in groups.

What the host takes for out of memory decides what the host does (it unloads its models). What the ledger says
is judged here, on the error alone.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from typing import Any

from stagexec.record import safe

MOST_BEHIND = 100
"""So many errors behind one another are looked at."""

MOST_TEXT = 20_000
"""Characters of an error's text that are looked at, from its beginning."""

CLASSES = frozenset(("OutOfMemoryError", "MemoryError", "ResourceExhaustedError"))
"""torch and cupy name theirs so, Python and numpy, jax and TensorFlow."""

ACCELERATOR_OOM = 2
"""`error_code` of torch's AcceleratorError: cudaErrorMemoryAllocation, and hipErrorOutOfMemory alike."""

WINDOWS_OOM = frozenset((8, 14, 1455))
"""`winerror`: not enough memory, out of memory, the paging file is too small."""

_BEGIN = r"(?:^|[:;>)\]\n]\s*)"
"""What stands before the words of an allocator, where they are not only talked about."""

_STATUS = rf"(?:{_BEGIN}|\b(?:error|failed with|returned)\s+)"
"""The same before the name of a status."""

_DEVICES = r"(?:CUDA|HIP|XPU|MPS backend|MPS|NPU|MLU|MUSA|GCU|HPU|DML|PrivateUse\w*|GPU)"

TEXTS = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        # torch's allocators: CUDA, ROCm, XPU, Apple and others
        (rf"{_BEGIN}{_DEVICES} out of memory(?=\s*(?:$|[.!:;(\[\n]))", 0),
        (r"out of memory\W{1,4}(?:currently allocated|tried to allocate|requested)\W", re.IGNORECASE),
        (r"\bAllocation on device \w* ?would exceed allowed memory\b", 0),
        (r"\b(?:CUDA|HIP|MUSA)(?: \w+)? error(?: ?\(\d+\))?\s*: ?(?:\w+: )?out of memory\b", re.IGNORECASE),
        (r"\bCUDA Runtime \(out of memory\)|\bcudaMalloc\w* failed: out of memory\b", re.IGNORECASE),
        (rf"{_STATUS}(?:cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUDA_ERROR_OUT_OF_MEMORY)\b", 0),
        (rf"{_STATUS}(?:CU|HIP|ROC)\w+_STATUS_ALLOC_FAILED\b", 0),
        (rf"{_STATUS}rocblas_status_memory_error\b", 0),
        (
            r"\b(?:PI|UR_RESULT)_ERROR_OUT_OF_(?:HOST_MEMORY|DEVICE_MEMORY|RESOURCES)\)?(?=\s*(?:$|[.:;,)\n]))",
            0,
        ),
        # Apple: a buffer above what Metal gives, and a command that ran out of memory
        (rf"{_BEGIN}Invalid buffer size: [\d.]+ ?[KMGT]i?B\b", 0),
        (r"\bFailed to allocate private MTLBuffer for size\b", 0),
        (r"\bkIOGPUCommandBufferCallbackErrorOutOfMemory\b", 0),
        # host memory
        (r"\bDefaultCPUAllocator: (?:can't allocate memory|not enough memory)", 0),
        (rf"{_BEGIN}Unable to allocate [\d.]+ [KMGTPE]?i?B(?:ytes)? for an array\b", 0),
        (rf"{_BEGIN}std::bad_alloc\b", 0),
        (r"\((?:os error 12|os error 1455)\)|\[Errno 12\] Cannot allocate memory", 0),
        # other runtimes
        (r"\bFailed to allocate memory for requested buffer of size \d", 0),
        (rf"{_BEGIN}RESOURCE_EXHAUSTED: Out of memory\b", 0),
    )
)
"""What allocators say of themselves. A text that only talks about memory has none of these forms."""


def first_of(error: BaseException, *rules: tuple[str, Callable[[BaseException], bool]]) -> str | None:
    """The name of the first rule that holds of an error, of one behind it, or of one in its group.

    An error comes before what it was raised from, and that before what was being handled.
    """
    for one in behind(error):
        for name, holds in rules:
            if safe.ask(False, holds, one):
                return name
    return None


def behind(error: BaseException) -> Iterator[BaseException]:
    """The error, and all that it came of or holds, each once; no more than MOST_BEHIND."""
    waiting, seen = [error], {id(error)}
    for _ in range(MOST_BEHIND):
        if not waiting:
            return
        one = waiting.pop(0)
        yield one
        near = [safe.ask(None, getattr, one, name, None) for name in ("__cause__", "__context__")]
        held = safe.ask((), getattr, one, "exceptions", ())  # a group's; Python 3.10 has them as a package
        near += held if isinstance(held, (tuple, list)) else ()
        for other in near:
            if isinstance(other, BaseException) and id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)


def is_oom(error: BaseException, host_class: Any = None) -> bool:
    """Is this very error one of memory? `host_class`: what the host takes for torch's class of them."""
    if not isinstance(error, Exception):
        return False
    is_class = isinstance(host_class, type) and host_class not in (Exception, BaseException)
    if is_class and isinstance(error, host_class):
        return True
    if any(kind.__name__ in CLASSES for kind in type(error).__mro__):
        return True
    if type(error).__name__ == "AcceleratorError" and getattr(error, "error_code", None) == ACCELERATOR_OOM:
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM or getattr(error, "winerror", None) in WINDOWS_OOM
    return says_oom(safe.ask("", str, error))


def says_oom(text: str) -> bool:
    """Are these the words of an allocator that had no memory to give?"""
    start = text[:MOST_TEXT]
    return any(pattern.search(start) for pattern in TEXTS)
