"""Out of memory is told from the error alone, in every shape; a text that only talks of memory is none."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import Any

import pytest

from stagexec.executor import failure, memory_errors

API: Any = SimpleNamespace(
    interrupt_exception=InterruptedError,
    model_management=SimpleNamespace(OOM_EXCEPTION=Exception),  # hosts whose torch has no class for it
    nodes=SimpleNamespace(NODE_CLASS_MAPPINGS={}),
    execution=SimpleNamespace(),
)

SAID = (
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "CUDA out of memory",
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.79 GiB total capacity; 5.0 GiB allocated)",
    "HIP out of memory. Tried to allocate 4.50 GiB. GPU 0 has a total capacity of 7.98 GiB",
    "XPU out of memory. Tried to allocate 16.00 GiB (GPU 0; 15.91 GiB total capacity)",
    "MPS backend out of memory (MPS allocated: 17.06 GB, other allocations: 1.06 GB, max allowed: 18.13 GB)",
    "NPU out of memory. Tried to allocate 2.00 GiB",
    "Invalid buffer size: 58.07 GB",
    "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "HIP error: out of memory",
    "CUDA driver error: out of memory",
    "cudaErrorMemoryAllocation: out of memory",
    "CUDA error: cudaErrorMemoryAllocation",
    "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "hipErrorOutOfMemory",
    "Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)",
    "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
    "[enforce fail at alloc_cpu.cpp:83] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 1000 bytes. Error code 12 (Cannot allocate memory)",
    "[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to use 9",
    "Unable to allocate 3.00 GiB for an array with shape (1024, 1024, 1024)",
    "std::bad_alloc",
    "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated : 3.60 GiB",
    "Sampling failed: CUDA out of memory. Tried to allocate 2.00 GiB",
    "unable to mmap 1000 bytes from file <x>: Cannot allocate memory (os error 12)",
    "Failed to allocate memory for requested buffer of size 4096",
)

TALKED = (
    "Reduce the batch size to avoid CUDA out of memory errors",
    "CUDA out of memory may follow from this resolution, so it is refused",
    "the picture is too large for the memory of this model",
    "not enough memory tokens in the prompt: 3 of 4",
    "out of memory slots: the memory bank holds 8 entries",
    "memory_efficient_attention is not installed",
    "set the variable to keep CUBLAS_STATUS_ALLOC_FAILED away",
    "Could not allocate a port",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "tried to allocate 3 MB for the thumbnail, the limit is 2 MB",
    "Invalid buffer size: it must be a multiple of 4",
    "Command '['ffmpeg']' died with <Signals.SIGKILL: 9>.",
)


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


class AcceleratorError(RuntimeError):
    error_code: int


class _ArrayMemoryError(MemoryError):
    """As numpy names it."""


class PackError(Exception):
    """A pack's own."""


def cause(error: BaseException) -> str:
    return failure.cause_of(API, error, "sampling")


@pytest.mark.parametrize("text", SAID)
@pytest.mark.parametrize("kind", [RuntimeError, PackError])
def test_the_words_of_an_allocator_are_oom(text: str, kind: type[Exception]) -> None:
    assert cause(kind(text)) == "oom"


@pytest.mark.parametrize("text", TALKED)
def test_a_text_that_only_talks_about_memory_is_no_oom(text: str) -> None:
    assert cause(RuntimeError(text)) == "node_exception"


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("Allocation on device"),
        MemoryError(),
        _ArrayMemoryError((3,), "float64"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_a_class_or_number_of_memory_is_oom(error: Exception) -> None:
    assert cause(error) == "oom"


@pytest.mark.parametrize(("code", "expected"), [(2, "oom"), (700, "node_exception")])
def test_an_accelerator_error_is_oom_by_its_code(code: int, expected: str) -> None:
    error = AcceleratorError("CUDA error")
    error.error_code = code
    assert cause(error) == expected


def raised(*, how: str, first: Exception) -> BaseException:
    """What comes of `first` where a pack catches it and raises its own."""
    try:
        try:
            raise first
        except Exception as caught:
            if how == "from":
                raise PackError("sampling failed") from caught
            if how == "from None":
                raise PackError("sampling failed") from None
            raise PackError("sampling failed")  # noqa: B904 (this is the shape that is looked at)
    except PackError as error:
        return error


@pytest.mark.parametrize("how", ["from", "from None", "context"])
def test_an_error_raised_of_an_oom_is_oom(how: str) -> None:
    assert cause(raised(how=how, first=MemoryError())) == "oom"
    assert cause(raised(how=how, first=RuntimeError("CUDA error: out of memory"))) == "oom"
    assert cause(raised(how=how, first=ValueError("no"))) == "node_exception"


def test_a_full_disk_behind_a_packs_error_is_disk_full() -> None:
    assert cause(raised(how="from", first=OSError(errno.ENOSPC, "no room"))) == "disk_full"


def test_the_outermost_of_memory_and_disk_is_the_cause() -> None:
    outer: BaseException = OSError(errno.ENOSPC, "no room")
    outer.__context__ = MemoryError()
    assert cause(outer) == "disk_full"


class Group(Exception):
    """A group as Python 3.11 has it."""

    def __init__(self, *exceptions: Exception) -> None:
        super().__init__("several")
        self.exceptions = exceptions


def test_an_oom_in_a_group_is_oom_also_where_groups_hold_groups() -> None:
    assert cause(Group(ValueError("x"), Group(MemoryError()))) == "oom"
    assert cause(Group(ValueError("x"), KeyError("y"))) == "node_exception"


def test_errors_that_stand_behind_each_other_in_a_circle_come_to_an_end() -> None:
    first, second = PackError("a"), PackError("b")
    first.__cause__, second.__cause__ = second, first
    assert cause(first) == "node_exception"
    assert len(list(memory_errors.behind(first))) == 2


def test_an_error_whose_text_raises_is_judged_by_its_class() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    class MuteMemory(MemoryError):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert (cause(Mute()), cause(MuteMemory())) == ("node_exception", "oom")
