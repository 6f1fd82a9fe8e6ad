"""Nodes that work past ComfyUI: weights, pipelines, other machines, programs, and code that is not known."""
# ruff: noqa: N802 (the host asks for these names)

import http.server
import os
import subprocess
import sys
import tempfile
import threading
import time

from .kinds import ANY, CATEGORY, SECONDS, required


class StxUnknownWork:
    """Sleeps in a function of its own module, `seconds` long; each run again."""

    CATEGORY = CATEGORY
    RETURN_TYPES = (ANY,)
    FUNCTION = "run"

    @classmethod
    def INPUT_TYPES(cls):
        return required(value=ANY, seconds=SECONDS)

    @classmethod
    def IS_CHANGED(cls, **kwargs):
        return float("nan")

    def run(self, value, seconds):
        find_masks(seconds)
        return (value,)


def find_masks(seconds):
    """The work of StxUnknownWork."""
    time.sleep(seconds)


class StxReadsWeights(StxUnknownWork):
    """Reads a file of 64 MB with safetensors, from the page cache."""

    def run(self, value, seconds):
        import safetensors.torch
        import torch

        path = os.path.join(tempfile.mkdtemp(), "a woman.safetensors")
        safetensors.torch.save_file({"weight": torch.zeros(16_000_000)}, path)
        safetensors.torch.load_file(path)["weight"].sum()
        os.remove(path)
        return (value,)


class Slow(http.server.BaseHTTPRequestHandler):
    """Answers after `seconds`."""

    seconds = 0.0

    def do_GET(self):
        time.sleep(self.seconds)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args):
        return


class StxAsksServer(StxUnknownWork):
    """Asks a server of its own that thinks for `seconds`."""

    def run(self, value, seconds):
        import requests

        answers = type("Answers", (Slow,), {"seconds": seconds})
        server = http.server.HTTPServer(("127.0.0.1", 0), answers)
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert requests.get(f"http://127.0.0.1:{server.server_port}/a_woman_in_red?key=1").text == "ok"
        server.server_close()
        return (value,)


class StxRunsProgram(StxUnknownWork):
    """Waits for a Python that uses the CPU for `seconds` and ends with code 3."""

    def run(self, value, seconds):
        burn = f"import time\nwhile time.process_time() < {seconds}: pass\nraise SystemExit(3)"
        assert subprocess.run([sys.executable, "-c", burn]).returncode == 3
        return (value,)


class StxPipeline(StxUnknownWork):
    """A diffusers pipeline of its own: loads 0.2 s, encodes, samples and decodes for `seconds` each."""

    def run(self, value, seconds):
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pretend")
        sys.path.append(folder)  # behind another pack's
        try:
            from .pipeline import pipeline_of
        finally:
            sys.path.remove(folder)
        pipeline_of().from_pretrained("a/b", slow_ms=200)(seconds)
        return (value,)


_ALL = (StxUnknownWork, StxReadsWeights, StxAsksServer, StxRunsProgram, StxPipeline)
NODES = {cls.__name__: cls for cls in _ALL}
