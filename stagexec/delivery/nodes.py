"""What our two nodes do, without the host: host/node_pack.py gives them their place in a ComfyUI."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from stagexec.delivery import commit, encode, filters, remote
from stagexec.delivery.artifacts import is_within
from stagexec.delivery.errors import DeliveryFailed
from stagexec.delivery.ffmpeg import Settings
from stagexec.public import artifact as promise
from stagexec.record import live

DESTINATIONS_VARIABLE = "STAGEXEC_DESTINATIONS"
"""Environment variable with the folders and addresses that may be delivered to, separated by `;`; `*` is all.

ComfyUI has no log-in: without this, anyone who reaches its port could write files anywhere.
"""

log = logging.getLogger("stagexec")

UI_KEYS = {"image": "images", "video": "images", "audio": "audio", "other": "files"}
"""Kind of file -> the key of history under which the host's web interface looks for it."""


class NodeHost(encode.Host, Protocol):
    """What the nodes want of a ComfyUI."""

    def folder(self, kind: str) -> str:
        """Absolute folder of output, temp or input files."""

    def save_path(self, prefix: str, folder: str) -> tuple[str, str, int, str]:
        """(folder, name, next counter, subfolder) for a prefix; refuses what leads out of `folder`."""


def encode_video(host: NodeHost, images: Any, audio: Any, settings: Settings) -> str:
    """Encode into the host's temporary folder; the path of the closed file."""
    filters.check(settings.filters)
    name = f"encode_{uuid.uuid4().hex[:12]}.{settings.container}"
    target = Path(host.folder("temp")) / "stagexec" / name
    path: str = encode.encode(images, audio, settings, target, host)["path"]
    run = live.here()
    if (
        run is not None and run.until == "encode"
    ):  # nothing comes after it: this file is what the run delivers
        promise(path)
    return path


def deliver_file(
    host: NodeHost, artifact: Any, prefix: str, destination: str, overwrite: bool
) -> tuple[commit.Delivered, dict[str, Any]]:
    """Commit an artifact under the host's output folder, and copy it to `destination` where one is given.

    Gives what was delivered, and the history entry that names it: {key: [entry]}.
    """
    allowed(host, destination)
    source = file_of(host, artifact)
    output = host.folder("output")
    folder, name, counter, subfolder = host.save_path(prefix, output)
    final = Path(folder) / f"{name}_{counter:05}_{source.suffix}"
    done = commit.deliver(
        source,
        final,
        destination,
        overwrite=overwrite,
        numbered=True,
        committed=promise,
        check=host.raise_if_cancelled,
    )
    file_delivered(done)
    entry = {"filename": Path(done.path).name, "subfolder": subfolder, "type": "output"}
    return done, history_entry(done.media, entry)


def history_entry(media: str, entry: dict[str, str]) -> dict[str, Any]:
    """What history and the web interface get for one file."""
    shown: dict[str, Any] = {UI_KEYS[media]: [entry]}
    return shown | {"animated": (True,)} if media == "video" else shown


def file_delivered(done: commit.Delivered) -> None:
    """File what the delivery was made of, as a mark of the visit."""
    run = live.here()
    if run is None or not run.on_main_lane():
        return
    detail = {
        "bytes": done.bytes,
        "sha256": done.sha256,
        "state": done.state,
        "reason": done.reason,
        "remote": done.remote is not None,
        "parts_ns": done.parts_ns,
    }
    node_id, node_class = run.node or (None, None)
    run.mark("delivered", detail, source="node", visit=run.visit, node_id=node_id, node_class=node_class)


def file_of(host: NodeHost, artifact: Any) -> Path:
    """The file that an artifact is: a path, a history entry, a VIDEO, or a pack's list of file names."""
    if isinstance(artifact, str) and artifact.strip():
        return _inside(host, Path(artifact.strip()))
    if isinstance(artifact, Mapping) and isinstance(artifact.get("filename"), str):
        base = Path(host.folder(str(artifact.get("type") or "output")))
        return _inside(host, base / str(artifact.get("subfolder") or "") / artifact["filename"])
    if hasattr(artifact, "save_to"):
        return _video_file(host, artifact)
    if isinstance(artifact, (list, tuple)) and artifact:
        return file_of(
            host, artifact[-1]
        )  # VHS_FILENAMES is (saved?, [first frame, video, video with sound])
    raise DeliveryFailed(
        "open", f"a {type(artifact).__name__} is no file: give a path, a VIDEO or the file names of a saver"
    )


def _video_file(host: NodeHost, video: Any) -> Path:
    source = getattr(video, "get_stream_source", lambda: None)()
    if isinstance(source, str):
        return _inside(host, Path(source))
    path = Path(host.folder("temp")) / "stagexec" / f"video_{uuid.uuid4().hex[:12]}.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    video.save_to(str(path))
    return path


def _inside(host: NodeHost, path: Path) -> Path:
    path = Path(os.path.abspath(path if path.is_absolute() else Path(host.folder("output")) / path))
    if not any(is_within(host.folder(kind), str(path)) for kind in ("output", "temp", "input")):
        raise DeliveryFailed("open", f"{path.name} lies in none of the host's folders (output, temp, input)")
    if not path.is_file():
        raise DeliveryFailed("open", f"the file {path.name} is not there", "artifact_missing")
    return path


def allowed(host: NodeHost, destination: str) -> None:
    """Raise DeliveryFailed unless the person who started the server lets one deliver there."""
    place = remote.parse(destination)
    if place is None:
        return
    named = [word.strip() for word in os.environ.get(DESTINATIONS_VARIABLE, "").split(";") if word.strip()]
    if "*" in named:
        return
    listed = [one for word in named if (one := listed_place(word)) is not None]
    if isinstance(place, Path):
        # Links are followed: what counts is where the file would be.
        bases = [Path(host.folder("output")), *(one for one in listed if isinstance(one, Path))]
        if any(is_within(os.path.realpath(base), os.path.realpath(place)) for base in bases):
            return
        shown = str(place)
    else:
        shown = place.shown
        folders = [one.address for one in listed if isinstance(one, remote.Place)]
        if any(one is not None and place.address and place.address.lies_in(one) for one in folders):
            return
    raise DeliveryFailed(
        "open",
        f"{shown} is not allowed as a destination: the person who starts the server lists them "
        f"in ${DESTINATIONS_VARIABLE}",
    )


def listed_place(word: str) -> Path | remote.Place | None:
    """One entry of the list of what is allowed; one that cannot be read allows nothing, and is said so."""
    try:
        return remote.parse(word)
    except DeliveryFailed as problem:
        log.warning("stagexec: an entry of $%s allows nothing: %s", DESTINATIONS_VARIABLE, problem)
        return None
