"""Which files a run promised, which it left behind unnamed, and whether its tensors are finite."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stagexec.delivery import pulse

DirectoryOf = Callable[[str], "str | None"]
"""Absolute folder of a folder type (output, temp, input), or None when the host has none of that name."""

Exists = Callable[[str], bool]
"""`os.path.exists`, or what stands in for it where no disk may be looked at."""

FOLDER_TYPES = ("output", "temp", "input")

MESHES = (".glb", ".gltf", ".obj", ".fbx", ".stl", ".usdz", ".ply", ".splat", ".ksplat", ".spz")

IGNORED_KEYS = frozenset(("animated",))
"""History keys that describe the files beside them and are no output of their own."""

TICK_NS = 10_000_000
"""File times come from the kernel's clock tick, which may lie this far behind the real time (100 Hz)."""

COARSE_NS = 2_000_000_000
"""FAT keeps times to 2 s, older network and disk formats to 1 s: all their stamps are whole seconds."""

FINITE_CHUNK = 1 << 22
"""Elements looked at together, so that what a check allocates stays at a few megabytes."""


class Promise(msgspec.Struct):
    """One file that history names.

    `path` is absolute. `node_id`, `key` and `type` (output, temp, input, or null when history gave
    only a full path outside all of them) are those of the first entry that names it; `node_ids` are
    all nodes that do. `state` is null, or unverified where the file must not be looked at; then
    `reason` says why.
    """

    node_id: str
    key: str
    type: str | None
    path: str
    node_ids: list[str]
    state: str | None = None
    reason: str | None = None


def from_history(
    outputs: Mapping[str, Any], directory_of: DirectoryOf, exists: Exists = os.path.exists
) -> list[Promise]:
    """The files that the host's history outputs `{node_id: {key: [entries]}}` name, in their order.

    `exists` is asked where the same text may name files in several folders; nothing else looks at a disk.

    The same path is promised once, however many entries name it. Entries that are no files are left
    out; `count_values` counts them.
    """
    promises: dict[str, Promise] = {}
    for node_id, key, entry in _entries(outputs):
        promise = _promise(str(node_id), key, entry, directory_of, exists)
        if promise is None:
            continue
        first = promises.setdefault(os.path.normcase(promise.path), promise)
        if promise.node_id not in first.node_ids:
            first.node_ids.append(promise.node_id)
    return list(promises.values())


def count_values(outputs: Mapping[str, Any], directory_of: DirectoryOf) -> dict[str, int]:
    """How many entries of each node (text, numbers, booleans, …) are outputs and no files; no zeros."""
    counts: dict[str, int] = {}
    for node_id, key, entry in _entries(outputs):
        if entry is not None and _promise(str(node_id), key, entry, directory_of, _not_looked) is None:
            counts[str(node_id)] = counts.get(str(node_id), 0) + 1
    return counts


def _entries(outputs: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for node_id, ui in outputs.items():
        if not isinstance(ui, Mapping):
            continue
        for key, entries in ui.items():
            if key in IGNORED_KEYS:
                continue
            for entry in entries if isinstance(entries, list | tuple) else (entries,):
                yield node_id, str(key), entry


def _not_looked(_: str) -> bool:
    return False


def _promise(node_id: str, key: str, entry: Any, directory_of: DirectoryOf, exists: Exists) -> Promise | None:
    if isinstance(entry, Mapping):
        return _from_mapping(node_id, key, entry, directory_of)
    if isinstance(entry, str) and key == "result":
        return _from_viewer(node_id, key, entry, directory_of, exists)
    return None


def _from_mapping(
    node_id: str, key: str, entry: Mapping[str, Any], directory_of: DirectoryOf
) -> Promise | None:
    full = entry.get("fullpath")
    name = entry.get("filename")
    kind = entry.get("type") or "output"
    base = directory_of(kind) if isinstance(kind, str) else None
    if isinstance(name, str) and name and base is not None:
        path = os.path.join(base, str(entry.get("subfolder") or ""), name)
        return _inside(Promise(node_id, key, kind, os.path.abspath(path), [node_id]), [base])
    if isinstance(full, str) and os.path.isabs(full):
        return _from_full_path(node_id, key, full, directory_of)
    if isinstance(name, str) and name:
        # No folder to look in: an answer about some other file of that name would be a guess.
        reason = "its folder type is not one of the host's"
        return Promise(node_id, key, None, os.path.abspath(name), [node_id], "unverified", reason)
    return None


def _from_full_path(node_id: str, key: str, full: str, directory_of: DirectoryOf) -> Promise:
    path = os.path.abspath(full)
    bases = [(kind, base) for kind in FOLDER_TYPES if (base := directory_of(kind)) is not None]
    kind = next((kind for kind, base in bases if is_within(base, path)), None)
    return _inside(Promise(node_id, key, kind, path, [node_id]), [base for _, base in bases])


def _from_viewer(
    node_id: str, key: str, text: str, directory_of: DirectoryOf, exists: Exists
) -> Promise | None:
    """The 3D viewers name files by text alone: a mesh, in whichever folder has it, or `temp/<image>`."""
    text, _, noted = re.fullmatch(r"(.*?)( \[(\w+)\])?", text, re.DOTALL).groups()  # type: ignore[union-attr]
    if text.startswith("temp/"):
        kinds: tuple[str, ...] = ("temp",)
        text = text.removeprefix("temp/")
    elif text.lower().endswith(MESHES):
        kinds = (noted,) if noted in FOLDER_TYPES else FOLDER_TYPES
    else:
        return None
    bases = [(kind, base) for kind in kinds if (base := directory_of(kind)) is not None]
    paths = [(kind, os.path.abspath(os.path.join(base, text))) for kind, base in bases]
    found = [Promise(node_id, key, kind, path, [node_id]) for kind, path in paths]
    there = [promise for promise in found if exists(promise.path)]
    chosen = next(iter(there or found), None)
    return None if chosen is None else _inside(chosen, [base for _, base in bases])


def _inside(promise: Promise, bases: list[str]) -> Promise:
    if not any(is_within(base, promise.path) for base in bases):
        promise.state = "unverified"
        promise.reason = "it lies outside the folder that the host serves it from"
    return promise


def is_within(base: str, path: str) -> bool:
    """Does `path` lie in the folder `base`, by their absolute names?"""
    # Links are not resolved: people link subfolders of the output folder to other disks.
    base, path = os.path.normcase(os.path.abspath(base)), os.path.normcase(path)
    try:
        return os.path.commonpath((base, path)) == base
    except ValueError:  # two drives of Windows
        return False


def orphans(folder: str, prefix: str, since_wall_ns: int, known: set[str]) -> list[Path]:
    """Files of `folder` (not below it) that a visit left behind: named `prefix…`, written since, not `known`.

    `since_wall_ns` is the visit's start in wall nanoseconds, `known` the absolute paths that history
    names. Sorted by name. A folder that cannot be read has none.
    """
    named = {os.path.normcase(os.path.abspath(path)) for path in known}
    try:
        with os.scandir(folder) as entries:
            left = [
                Path(os.path.abspath(entry.path))
                for entry in entries
                if entry.name.startswith(prefix)
                and os.path.normcase(os.path.abspath(entry.path)) not in named
                and _written_since(entry, since_wall_ns)
            ]
    except (OSError, ValueError):
        return []
    return sorted(left)


def _written_since(entry: os.DirEntry[str], since_wall_ns: int) -> bool:
    try:
        if not entry.is_file():
            return False
        stamp = entry.stat().st_mtime_ns
    except OSError:  # it went away between listing and asking
        return False
    # A whole second is a coarse file system's stamp; wider for all would blame the run before.
    granularity = COARSE_NS if stamp % 1_000_000_000 == 0 else TICK_NS
    return stamp >= since_wall_ns - granularity


def finite(tensors: Iterable[Any]) -> bool | None:
    """Whether all elements of the torch tensors among `tensors` are finite; None when that is not known.

    Only plain dense tensors in host memory are looked at, a chunk at a time; a tensor elsewhere is
    not waited for and leaves the answer at None unless another one is bad. Integers are finite.
    """
    torch = sys.modules.get("torch")  # a process without torch has no tensors
    if torch is None:
        return None
    seen = unknown = False
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            continue
        seen = True
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not _is_plain(tensor, torch):
            unknown = True
        elif (tensor.is_floating_point() or tensor.is_complex()) and not _all_finite(tensor.detach(), torch):
            return False
    return None if unknown or not seen else True


def _is_plain(tensor: Any, torch: Any) -> bool:
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized


def _all_finite(tensor: Any, torch: Any) -> bool:
    pieces = [tensor]
    while pieces:
        piece = pieces.pop()
        pulse.beat()
        if piece.numel() <= FINITE_CHUNK:
            if not _chunk_finite(piece, torch):
                return False
            continue
        # Halving along the longest side makes views; flattening would copy what is not contiguous.
        side = max(range(piece.dim()), key=lambda axis: piece.shape[axis])
        half = piece.shape[side] // 2
        pieces.append(piece.narrow(side, half, piece.shape[side] - half))
        pieces.append(piece.narrow(side, 0, half))
    return True


def _chunk_finite(piece: Any, torch: Any) -> bool:
    if piece.element_size() == 1:  # 8-bit floats have no arithmetic
        piece = piece.to(torch.float32)
    # NaN and infinity survive a sum, so a finite sum needs no second pass; the reverse can be overflow.
    wide = torch.promote_types(piece.dtype, torch.float32)
    if math.isfinite(abs(piece.sum(dtype=wide).item())):
        return True
    return bool(torch.isfinite(piece).all().item())
