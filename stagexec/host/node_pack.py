"""Our nodes in a ComfyUI: their V3 schemas, and their registration. Also works in a stock ComfyUI.

Under our launcher they are registered when the host's server module has been imported. In a stock
ComfyUI, link or copy the folder `stagexec/host/pack` into `custom_nodes`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from stagexec.delivery import ffmpeg, nodes
from stagexec.files import BadPath
from stagexec.host import leftovers
from stagexec.record import live, paths
from stagexec.record.guard import guarded
from stagexec.record.safe import log

CATEGORY = "stagexec"
MODULE = "custom_nodes.stagexec"
"""What the host shows as the origin of the nodes."""


class ComfyHost:
    """The host as our nodes want it."""

    def __init__(self, total: int = 0) -> None:
        import comfy.utils

        self._bar = comfy.utils.ProgressBar(total) if total else None

    def progress(self, done: int, total: int) -> None:
        """Move the node's progress bar. Raises the host's exception on a cancel."""
        if self._bar is not None:
            self._bar.update_absolute(done, total)

    def cancelled(self) -> bool:
        """Is the host's interrupt flag up?"""
        import comfy.model_management

        return bool(comfy.model_management.processing_interrupted())

    def raise_if_cancelled(self) -> None:
        """Raise the host's exception if its interrupt flag is up, and take the flag down."""
        import comfy.model_management

        comfy.model_management.throw_exception_if_processing_interrupted()

    def folder(self, kind: str) -> str:
        """Absolute folder of output, temp or input files."""
        import folder_paths

        found = folder_paths.get_directory_by_type(kind)
        if found is None:
            raise ValueError(f"this ComfyUI has no folder of the type {kind!r}")
        return str(found)

    def save_path(self, prefix: str, folder: str) -> tuple[str, str, int, str]:
        """(folder, name, next counter, subfolder) for a file name prefix."""
        import folder_paths

        full, name, counter, subfolder, _ = folder_paths.get_save_image_path(prefix, folder)
        return str(full), str(name), int(counter), str(subfolder)


def node_classes() -> list[Any]:
    """The two node classes, made with the host's V3 interface. ImportError on hosts without it."""
    from comfy_api.latest import io

    return [encode_video_class(io), deliver_class(io)]


def encode_video_class(io: Any) -> Any:
    """The class of the node Encode Video."""

    class StagexecEncodeVideo(io.ComfyNode):  # type: ignore[misc]
        """Frames, and sound where there is any, to a closed video file in the temporary folder."""

        @classmethod
        def define_schema(cls) -> Any:
            """The schema that the host asks for."""
            return encode_schema(io)

        @classmethod
        def execute(cls, images: Any, audio: Any = None, **choices: Any) -> Any:
            """Encode; gives the path of the file, and the file as a VIDEO."""
            from comfy_api.latest import InputImpl

            path = nodes.encode_video(ComfyHost(len(images)), images, audio, ffmpeg.Settings(**choices))
            return io.NodeOutput(path, InputImpl.VideoFromFile(path))

    return StagexecEncodeVideo


def encode_schema(io: Any) -> Any:
    """Schema of Encode Video."""
    return io.Schema(
        node_id="StagexecEncodeVideo",
        display_name="Encode Video",
        category=CATEGORY,
        description="Encodes frames with ffmpeg into a temporary file, which Deliver then commits.",
        inputs=[
            io.Image.Input("images", tooltip="Frames, streamed to ffmpeg one after the other."),
            io.Audio.Input("audio", optional=True, tooltip="Sound to go with them."),
            io.Float.Input("fps", default=24.0, min=0.01, max=1000.0, step=0.01),
            io.Combo.Input("codec", options=list(ffmpeg.CODECS), default="libx264"),
            io.String.Input("preset", default="", tooltip="The encoder's own preset; empty leaves it to it."),
            io.Int.Input(
                "quality",
                default=-1,
                min=-1,
                max=100,
                tooltip="crf, cq or q, whichever the encoder has; lower is better; -1 leaves it to it.",
            ),
            io.Combo.Input("pixel_format", options=list(ffmpeg.PIXEL_FORMATS), default="yuv420p"),
            io.String.Input("filters", default="", tooltip="A filter graph for ffmpeg's -vf."),
            io.Combo.Input("container", options=list(ffmpeg.CONTAINERS), default="mp4"),
            io.Int.Input("threads", default=0, min=0, max=256, tooltip="0 leaves it to the encoder."),
            io.Combo.Input("hwaccel", options=list(ffmpeg.HWACCELS), default="none"),
        ],
        outputs=[io.String.Output(display_name="file"), io.Video.Output(display_name="video")],
    )


def deliver_class(io: Any) -> Any:
    """The class of the node Deliver."""

    class StagexecDeliver(io.ComfyNode):  # type: ignore[misc]
        """A file under its final name: whole, synced, verified, and where asked copied or uploaded."""

        @classmethod
        def define_schema(cls) -> Any:
            """The schema that the host asks for."""
            return deliver_schema(io)

        @classmethod
        def execute(cls, artifact: Any, filename_prefix: str, destination: str, overwrite: bool) -> Any:
            """Deliver; gives the final path and the file's SHA-256."""
            done, shown = nodes.deliver_file(ComfyHost(), artifact, filename_prefix, destination, overwrite)
            return io.NodeOutput(done.path, done.sha256, ui=shown)

    return StagexecDeliver


def deliver_schema(io: Any) -> Any:
    """Schema of Deliver."""
    return io.Schema(
        node_id="StagexecDeliver",
        display_name="Deliver",
        category=CATEGORY,
        description="Commits a file: temporary file, fsync, check, atomic rename, then a copy or an upload.",
        is_output_node=True,
        inputs=[
            io.AnyType.Input("artifact", tooltip="A path, a VIDEO, or the file names that a saver gives."),
            io.String.Input("filename_prefix", default="stagexec/ComfyUI"),
            io.String.Input(
                "destination",
                default="",
                tooltip="A folder or an address (sftp://, s3://, webdav://) that gets a copy. "
                f"The person who starts the server lists what is allowed in ${nodes.DESTINATIONS_VARIABLE}.",
            ),
            io.Boolean.Input("overwrite", default=False, tooltip="Replace a file of that name there."),
        ],
        outputs=[io.String.Output(display_name="path"), io.String.Output(display_name="sha256")],
    )


@guarded
def register(_server: ModuleType) -> None:
    """Add the nodes to the host's table. Called when the host's `server` module has been imported."""
    table = getattr(sys.modules.get("nodes"), "NODE_CLASS_MAPPINGS", None)
    if table is None:
        return
    try:
        classes = node_classes()
    except ImportError as error:
        log.info("stagexec: this ComfyUI has no V3 nodes, so it goes without ours (%s).", error)
        return
    names = getattr(sys.modules["nodes"], "NODE_DISPLAY_NAME_MAPPINGS", {})
    for one in classes:
        schema = one.GET_SCHEMA()
        one.RELATIVE_PYTHON_MODULE = MODULE
        table[schema.node_id] = one
        names[schema.node_id] = schema.display_name


def make_extension() -> Any:
    """The extension that a stock ComfyUI asks a pack's `comfy_entrypoint` for."""
    from comfy_api.latest import ComfyExtension

    if live.journal is None:  # our launcher has looked already
        try:
            leftovers.report(paths.ledger_folder(), clean=False)
        except BadPath as error:
            log.warning("stagexec: no ledger folder: %s", error)

    class StagexecExtension(ComfyExtension):  # type: ignore[misc]
        """Our two nodes."""

        async def get_node_list(self) -> list[Any]:
            """Encode Video and Deliver."""
            return node_classes()

    return StagexecExtension()
