"""Nodes that deliver: badly, too little, text, or nothing."""
# ruff: noqa: N802 (the host asks for these names)

import errno
import os

from .kinds import ANY, CATEGORY, NUMBER, PREFIX, required


def new_file(prefix, suffix):
    """Path of the next free output file of `prefix`, and the history entry that names it."""
    import folder_paths

    folder, name, counter, subfolder, _ = folder_paths.get_save_image_path(
        prefix, folder_paths.get_output_directory()
    )
    file = f"{name}_{counter:05}_.{suffix}"
    return os.path.join(folder, file), {"filename": file, "subfolder": subfolder, "type": "output"}


class StxNaNImage:
    """A black image with one pixel that is not a number."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(size=("INT", {"default": 8, "min": 1, "max": 4096}))

    def run(self, size):
        import torch

        image = torch.zeros(1, size, size, 3)
        image[0, 0, 0, 0] = float("nan")
        return (image,)


class StxNoise:
    """Images of noise, which no format makes small. The first `flat` of them are black instead."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(size=NUMBER, batch=NUMBER, flat=NUMBER, seed=NUMBER)

    def run(self, size, batch, flat, seed):
        import torch

        images = torch.rand(batch, size, size, 3, generator=torch.Generator().manual_seed(seed))
        images[:flat] = 0.0
        return (images,)


class StxFileLimit:
    """From now on no file of this process grows beyond `bytes`: a disk that is full. 0 lifts the limit."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    OUTPUT_NODE = True
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, bytes=NUMBER)

    @classmethod
    def IS_CHANGED(cls, **_):
        return float("nan")

    def run(self, value, bytes):  # noqa: A002
        import resource

        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes or hard, hard))
        return (value,)


class Saver:
    """What the output nodes here share."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ()
    OUTPUT_NODE = True
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(images="IMAGE", filename_prefix=PREFIX)


class StxSaveLimited(Saver):
    """Saves two PNG files of a batch of three; the disk is full at the third."""

    def run(self, images, filename_prefix):
        from PIL import Image

        for at in range(3):
            if at == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            pixels = (images[at % len(images)].cpu().numpy() * 255).astype("uint8")
            path, _ = new_file(filename_prefix, "png")
            Image.fromarray(pixels).save(path)
        return {"ui": {"images": []}}


class StxCopies(Saver):
    """Saves the same PNG file many times, which costs the node little and the checks of its files much."""

    @classmethod
    def INPUT_TYPES(cls):
        return required(images="IMAGE", filename_prefix=PREFIX, copies=NUMBER)

    def run(self, images, filename_prefix, copies):
        import io

        from PIL import Image

        content = io.BytesIO()
        pixels = (images[0].cpu().numpy() * 255).astype("uint8")
        Image.fromarray(pixels).save(content, "png", compress_level=1)
        entries = []
        for _ in range(copies):
            path, entry = new_file(filename_prefix, "png")
            with open(path, "wb") as file:
                file.write(content.getvalue())
            entries.append(entry)
        return {"ui": {"images": entries}}


class StxTruncatedVideo(Saver):
    """Writes a video, cuts it in half, and reports it under its final name as if all were well."""

    def run(self, images, filename_prefix):
        import av

        path, entry = new_file(filename_prefix, "mp4")
        with av.open(path, mode="w") as container:
            stream = container.add_stream("mpeg4", rate=8)
            stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
            for at in range(24):
                frame = av.VideoFrame(64, 64, "yuv420p")
                for plane in frame.planes:
                    plane.update(bytes([at * 10]) * plane.buffer_size)
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        os.truncate(path, os.path.getsize(path) // 2)
        return {"ui": {"images": [entry], "animated": (True,)}}


class StxMissingFile(Saver):
    """Reports a file that it never wrote."""

    def run(self, images, filename_prefix):
        _, entry = new_file(filename_prefix, "png")
        return {"ui": {"images": [entry]}}


class StxText:
    """An output node that shows text and writes no file."""

    CATEGORY = CATEGORY
    RETURN_TYPES = ()
    OUTPUT_NODE = True
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY)

    def run(self, value):
        return {"ui": {"text": [str(value)]}}


class StxSilent(StxText):
    """An output node that neither shows nor writes anything."""

    def run(self, value):
        return {}


def picture(path, size=8):
    """Write a small picture."""
    from PIL import Image

    Image.new("RGB", (size, size)).save(path)


def output_file(name):
    """Path of an output file of this very name."""
    import folder_paths

    return os.path.join(folder_paths.get_output_directory(), name)


class StxSleepShow(StxText):
    """An output node that works for a while, looks at no interrupt, and shows a text."""

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, seconds=("FLOAT", {"default": 1.0}))

    def run(self, value, seconds):
        import time

        time.sleep(seconds)
        return {"ui": {"text": ["done"]}}


class StxFixedName(StxText):
    """A saver that writes a picture under the same name each time."""

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, name=PREFIX, size=NUMBER)

    def run(self, value, name, size):
        picture(output_file(name), size)
        return {"ui": {"images": [{"filename": name, "subfolder": "", "type": "output"}]}}


class StxUnnamed(StxFixedName):
    """A saver that writes a text file and names it nowhere."""

    def run(self, value, name, size):
        with open(output_file(name), "w", encoding="utf-8") as file:
            file.write("x" * size)
        return {}


class StxSequence(StxFixedName):
    """A saver of `size` pictures that history names by their pattern."""

    def run(self, value, name, size):
        for at in range(1, size + 1):
            picture(output_file(name % at))
        return {"ui": {"gifs": [{"filename": name, "subfolder": "", "type": "output"}]}}


class StxLateFile(StxFixedName):
    """A saver whose thread writes the picture after the node has returned."""

    def run(self, value, name, size):
        import threading

        threading.Timer(0.7, picture, (output_file(name), size)).start()
        return {"ui": {"images": [{"filename": name, "subfolder": "", "type": "output"}]}}


class StxSocket(StxText):
    """An output node that sends its pictures by socket: to the prompt's client, or to `client`."""

    @classmethod
    def INPUT_TYPES(cls):
        return required(images=("IMAGE",), client=PREFIX)

    def run(self, images, client):
        import server
        from PIL import Image

        host = server.PromptServer.instance
        for _ in images:
            shown = ("PNG", Image.new("RGB", (8, 8)), None)
            host.send_sync(server.BinaryEventTypes.UNENCODED_PREVIEW_IMAGE, shown, client or host.client_id)
        return {}


NODES = {
    cls.__name__: cls
    for cls in (
        StxNaNImage,
        StxNoise,
        StxFileLimit,
        StxSaveLimited,
        StxCopies,
        StxTruncatedVideo,
        StxMissingFile,
        StxText,
        StxSilent,
        StxSleepShow,
        StxFixedName,
        StxUnnamed,
        StxSequence,
        StxLateFile,
        StxSocket,
    )
}
