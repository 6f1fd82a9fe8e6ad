"""A node that lets a text into every place where a node could bring one."""
# ruff: noqa: N802 (the host asks for these names)

import logging
import shutil
import subprocess
import sys
import threading
import warnings

from .kinds import ANY, CATEGORY

NAMES = ("sampler_name", "scheduler", "steps", "cfg", "guidance", "fps", "length", "frames", "width")


def ffmpeg():
    found = shutil.which("ffmpeg")
    if found is None:
        import imageio_ffmpeg

        found = imageio_ffmpeg.get_ffmpeg_exe()
    return found


class StxPlant:
    """Brings `text` to the place that `where` names, and hands its value on."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls):
        text = ("STRING", {"default": ""})
        return {
            "required": {"value": (ANY,), "where": text, "text": text},
            "optional": dict.fromkeys(NAMES, text),
        }

    @classmethod
    def IS_CHANGED(cls, text, **_):
        return text

    def run(self, value, where, text, **_):
        return getattr(self, where)(value, text)

    def nowhere(self, value, text):
        return (value,)

    def message(self, value, text):
        raise ValueError(text)

    def kind(self, value, text):
        raise type(text, (ValueError,), {})(text)

    def thread(self, value, text):
        import stagexec

        def work():
            with stagexec.stage("encode_mux", "encode"):
                pass

        thread = threading.Thread(target=work, name=text)
        thread.start()
        thread.join()
        return (value,)

    def part(self, value, text):
        import stagexec

        with stagexec.stage("postprocess", text), stagexec.stage("postprocess", "the author's own word"):
            pass
        return (value,)

    def blocker(self, value, text):
        from comfy_execution.graph_utils import ExecutionBlocker

        return (ExecutionBlocker(text),)

    def said(self, value, text):
        logging.warning("planted: %s", text)
        print(text, file=sys.stderr)
        warnings.warn(text, stacklevel=1)
        return (value,)

    def shown(self, value, text):
        entry = {"filename": "nowhere.png", "subfolder": "", "type": text}
        return {"ui": {"images": [entry], "text": (text,), text: (text,)}, "result": (value,)}

    def child(self, value, text):
        line = [ffmpeg(), "-f", "lavfi", "-i", f"color={text}", "-metadata", f"comment={text}"]
        subprocess.run([*line, "-c:v", text, "-vf", f"{text}=1", "-y", f"nowhere-{text}/x.mp4"], check=True)


NODES = {"StxPlant": StxPlant}
