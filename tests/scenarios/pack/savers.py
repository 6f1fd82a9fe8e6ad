"""Nodes that write files: pictures, videos by a process, by PyAV, and by a thread."""

import os
import subprocess

from .kinds import MS, PREFIX, node, required, work

SIZE = 16
FRAMES = 3


def new_file(prefix, suffix):
    """Path of the next free output file, and the history entry that names it."""
    import folder_paths

    folder, name, counter, subfolder, _ = folder_paths.get_save_image_path(
        prefix, folder_paths.get_output_directory()
    )
    file = f"{name}_{counter:05}_.{suffix}"
    return os.path.join(folder, file), {"filename": file, "subfolder": subfolder, "type": "output"}


def save(self, images, filename_prefix, ms):
    """A saver of a pack: its own work on the frames, then Pillow."""
    import numpy
    from PIL import Image

    path, entry = new_file(filename_prefix, "png")
    work(ms)
    Image.fromarray((images[0].numpy() * 255).astype(numpy.uint8)).save(path)
    return {"ui": {"images": [entry]}}


def combine(self, images, frame_rate, filename_prefix, frame_ms, mux_ms=0):
    """Frames to ffmpeg, one after the other, as video packs write them."""
    import imageio_ffmpeg

    path, entry = new_file(filename_prefix, "mp4")
    raw = [
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-s",
        f"{SIZE}x{SIZE}",
        "-r",
        str(frame_rate),
        "-i",
        "-",
        "-pix_fmt",
        "yuv420p",
    ]
    line = [
        imageio_ffmpeg.get_ffmpeg_exe(),
        "-v",
        "error",
        *raw,
        "-pix_fmt",
        "yuv420p",
        "-c:v",
        "mpeg4",
        path,
    ]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for _ in range(FRAMES):
            work(frame_ms)
            process.stdin.write(bytes(SIZE * SIZE * 3))
        process.stdin.close()
        process.stderr.read()
    if process.returncode:
        raise RuntimeError("ffmpeg failed")
    return {"ui": {"gifs": [entry]}}


def write_video(self, images, frame_rate, filename_prefix, frame_ms):
    """The same by PyAV, in the process."""
    import av
    import numpy

    path, entry = new_file(filename_prefix, "mp4")
    with av.open(path, "w") as container:
        stream = container.add_stream("mpeg4", rate=frame_rate)
        stream.width = stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        for _ in range(FRAMES):
            work(frame_ms)
            frame = av.VideoFrame.from_ndarray(numpy.zeros((SIZE, SIZE, 3), numpy.uint8), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return {"ui": {"gifs": [entry]}}


def encode_by_codec(self, images, codec, crf, ms):
    """An encoder that is told no rate, and writes a picture of its film that nothing names."""
    import time

    import folder_paths
    import numpy
    from PIL import Image

    work(ms)
    path = os.path.join(folder_paths.get_output_directory(), f"cover-{time.time_ns()}.png")
    Image.fromarray((images[0].numpy() * 255).astype(numpy.uint8)).save(path)
    return {}


def send(self, images):
    """Sends the picture to the client through the progress bar, and nothing else."""
    import comfy.utils
    import numpy
    from PIL import Image

    bar = comfy.utils.ProgressBar(len(images))
    for at, image in enumerate(images):
        pixels = Image.fromarray((image.numpy() * 255).astype(numpy.uint8))
        bar.update_absolute(at, len(images), ("PNG", pixels, None))
    return {}


def decode_and_save(self, samples, vae, filename_prefix, ms):
    """A saver that decodes first: the decode is none of its own work."""
    return save(self, vae.decode(samples["samples"]), filename_prefix, ms)


MOVES = required(images="IMAGE", frame_rate=("INT", {"default": 8}), filename_prefix=PREFIX, frame_ms=MS)

NODES = {
    "ScnSave": node(
        "ScnSave", required(images="IMAGE", filename_prefix=PREFIX, ms=MS), (), save, OUTPUT_NODE=True
    ),
    "ScnCombine": node("ScnCombine", MOVES, (), combine, OUTPUT_NODE=True),
    "ScnEncodeByCodec": node(
        "ScnEncodeByCodec",
        required(images="IMAGE", codec=(["h264", "vp9"],), crf=("INT", {"default": 20}), ms=MS),
        (),
        encode_by_codec,
        OUTPUT_NODE=True,
    ),
    "ScnSend": node("ScnSend", required(images="IMAGE"), (), send, OUTPUT_NODE=True),
    "ScnWriteVideo": node("ScnWriteVideo", MOVES, (), write_video, OUTPUT_NODE=True),
    "ScnDecodeSave": node(
        "ScnDecodeSave",
        required(samples="LATENT", vae="VAE", filename_prefix=PREFIX, ms=MS),
        (),
        decode_and_save,
        OUTPUT_NODE=True,
    ),
}
