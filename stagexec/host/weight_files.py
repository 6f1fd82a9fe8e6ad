"""Files of weights as they are read: how large, how much of it came from disk, and how long it took.

`safetensors.safe_open` is a class of another language that cannot be patched: what it gives to a node is
held in a thin cover that times each tensor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import get_ident
from types import ModuleType
from typing import Any

import wrapt

from stagexec.record import live, pagecache, words
from stagexec.record.guard import guarded

SEAM, STAGE, PART = "safe_open", "model_load_residency", "read"

AGAIN_NS = 200_000
"""Reads of one file that follow each other this fast are one segment; see host/wrap.py."""

MIN_BYTES = 64 * 1024
"""Files smaller than this, such as settings beside weights, are not worth a line in the ledger."""


_Proxy: Any = wrapt.ObjectProxy


class Reading:
    """One file that is being read."""

    def __init__(self, run: Any, path: str | os.PathLike[str]) -> None:
        self.run, self.visit = run, run.visit
        self.name = words.file_name(os.path.basename(os.fspath(path)))
        self.pages = pagecache.look(path)
        self.io_bytes = pagecache.read_from_disk()
        self.start_ns = run.clock()
        self.filed = False

    @guarded
    def done(self, ns: int | None = None) -> None:
        """It has been read; `ns`: the time spent in reading, where that is not all the time since then."""
        pages, io_bytes = self.pages, pagecache.read_from_disk()
        if self.filed or pages is None or pages.bytes < MIN_BYTES:
            return
        self.filed = True
        detail = {
            "file": self.name,
            "bytes": pages.bytes,
            "pages": pages.looked_at,
            "cold_pages": pages.cold,
            "io_bytes": None if io_bytes is None or self.io_bytes is None else io_bytes - self.io_bytes,
            "ns": self.run.clock() - self.start_ns if ns is None else ns,
        }
        self.run.mark("weights_read", detail, stage_id=STAGE, visit=self.visit)


@guarded
def begin(run: Any, path: Any) -> Reading | None:
    """A file of weights is about to be read; None where that is no file with a name."""
    path = path if isinstance(path, (str, os.PathLike)) else getattr(path, "name", None)
    if not isinstance(path, (str, os.PathLike)) or not os.path.isfile(path):
        return None
    return Reading(run, path)


def probe_of(argument: str) -> Callable[[Any, dict[str, Any]], Callable[[], None] | None]:
    """The `around` of a probe on a function whose argument of that name is a path, or a file with a name."""

    def around(run: Any, arguments: dict[str, Any]) -> Callable[[], None] | None:
        found = begin(run, arguments[argument])
        return None if found is None else found.done

    return around


class WatchedFile(_Proxy):  # type: ignore[misc]
    """What `safe_open` gave, with the time of each read. Everything else is the file's own."""

    _self_reading: Reading | None = None
    _self_ns = 0

    def __enter__(self) -> Any:
        self.__wrapped__.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        self._self_done()
        return self.__wrapped__.__exit__(*error)

    def __del__(self) -> None:
        self._self_done()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__wrapped__.__reduce_ex__(protocol)

    def get_tensor(self, *args: Any, **kwargs: Any) -> Any:
        """The file's own, timed."""
        return self._self_timed(self.__wrapped__.get_tensor, args, kwargs)

    def get_slice(self, *args: Any, **kwargs: Any) -> Any:
        """The file's own, whose parts are read later: those are timed."""
        given = WatchedSlice(self._self_timed(self.__wrapped__.get_slice, args, kwargs))
        given._self_file = self
        return given

    def _self_timed(self, read: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = live.run
        if run is None or get_ident() != run.thread or run.stage == STAGE:
            return read(*args, **kwargs)
        depth = run.enter_again(STAGE, PART, SEAM, AGAIN_NS)
        start = run.clock()
        try:
            return read(*args, **kwargs)
        finally:
            self._self_ns += run.clock() - start
            run.leave(depth)

    def _self_done(self) -> None:
        if self._self_reading is not None:
            self._self_reading.done(self._self_ns)


class WatchedSlice(_Proxy):  # type: ignore[misc]
    """A tensor of the file that is read as it is cut."""

    _self_file: Any = None

    def __getitem__(self, key: Any) -> Any:
        return self._self_file._self_timed(self.__wrapped__.__getitem__, (key,), {})


def make_safe_open(_module: ModuleType, original: Any) -> Any:
    """`safetensors.safe_open`: the class itself, called once, and a cover where a node reads by itself.

    Inside a load that is a seam already the time is counted: nothing is put round the file there.
    """
    from stagexec.host.wrap import SeamWrapper, Switch

    switch = Switch()

    def handle(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        run = live.run
        if run is None or switch.off or get_ident() != run.thread:
            return wrapped(*args, **kwargs)
        reading = begin(run, args[0] if args else kwargs.get("filename"))
        covered = run.stage != STAGE
        depth = run.enter(STAGE, PART, SEAM) if covered else None
        start = run.clock()
        try:
            opened = wrapped(*args, **kwargs)
        finally:
            if depth is not None:
                run.leave(depth)
        if not covered:
            return opened
        return _cover(opened, reading, run.clock() - start)

    wrapper = SeamWrapper(original, handle)
    wrapper._self_switch = switch
    return wrapper


def _cover(opened: Any, reading: Reading | None, ns: int) -> WatchedFile:
    covered = WatchedFile(opened)
    covered._self_reading, covered._self_ns = reading, ns
    return covered
