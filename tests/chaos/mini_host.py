"""A host in miniature: our recorder, a thread that accepts prompts as a server does, and a worker.

    python -m tests.chaos.mini_host LEDGER OUTPUT WITNESS

Reads one JSON object a line: {"id", "number", "kind", "seconds"}; answers `200 <id> <ns>` when the prompt is
accepted. It starts in a tenth of a second, so that a thousand of them can be killed.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import queue
import re
import socket
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

from stagexec.delivery import commit
from stagexec.format import VERSION
from stagexec.record import live
from stagexec.record.process import started_of
from tests.chaos import witness

CHUNK = 4096


def content_of(name: str, size: int) -> bytes:
    """The bytes that are delivered under a name: a reader of the file knows what must be in it."""
    return hashlib.shake_128(name.encode()).digest(CHUNK) * max(1, size // CHUNK)


def size_of(seconds: float) -> int:
    """How much a delivery of so many seconds writes, in bytes."""
    return int(seconds * 12_000_000)


class Worker:
    """Executes orders one after the other, as the host's worker does."""

    def __init__(self, output: Path, pen: witness.Pen) -> None:
        self.output = output
        self.pen = pen
        self.orders: queue.Queue[dict[str, Any]] = queue.Queue()

    def loop(self) -> None:
        """Its whole life."""
        while True:
            order = self.orders.get()
            run = live.start(order["id"])
            self.pen.write(witness.STARTED, order["number"])
            if run is None:  # a fault of ours: a host's worker goes on without a record, and so does this one
                self.pen.write(witness.DONE, order["number"])
                continue
            history = {"host_status": "success"}
            try:
                getattr(self, order["kind"])(run, order)
            except Exception as error:  # noqa: BLE001 (a node's failure is no end of the worker)
                run.error = {
                    "cause": "node_exception", "stage": "sampling", "visit": None, "node_id": "1",
                    "node_class": order["kind"], "list_index": None, "exception_type": type(error).__name__,
                    "message": None,
                }  # fmt: skip
                history = {"host_status": "error"}
            live.finish(run, history, {})
            self.pen.write(witness.DONE, order["number"])

    def quick(self, run: Any, order: dict[str, Any]) -> None:
        """Nothing to do."""

    def steps(self, run: Any, order: dict[str, Any]) -> None:
        """A segment each millisecond; each one's end is told to the witness."""
        end = time.monotonic() + order["seconds"]
        while time.monotonic() < end:
            depth = run.enter("sampling", "step")
            time.sleep(0.001)
            run.leave(depth)
            self.pen.write(witness.EVENT)

    def sleep(self, run: Any, order: dict[str, Any]) -> None:
        """One long segment."""
        depth = run.enter("conditioning", "encode")
        self.pen.write(witness.EVENT)
        time.sleep(order["seconds"])
        run.leave(depth)

    def fail(self, run: Any, order: dict[str, Any]) -> None:
        """A node that raises."""
        self.steps(run, order)
        raise RuntimeError("a node failed")

    def hold_sleep(self, run: Any, order: dict[str, Any]) -> None:
        """Sleeps with the interpreter's lock held: no other thread of the process runs."""
        self.steps(run, {**order, "seconds": 0.1})
        depth = run.enter("sampling", "step")
        self.pen.write(witness.HOLD)
        nap = ctypes.PyDLL(None).usleep
        for _ in range(max(1, int(order["seconds"] * 2))):
            nap(500_000)
        run.leave(depth)

    def hold_pattern(self, run: Any, order: dict[str, Any]) -> None:
        """A pattern that never ends: work in C with the lock held."""
        self.steps(run, {**order, "seconds": 0.1})
        depth = run.enter("sampling", "step")
        self.pen.write(witness.HOLD)
        end, size = time.monotonic() + order["seconds"], 20
        while time.monotonic() < end:
            re.match(r"(a+)+$", "a" * size + "b")
            size = min(size + 1, 25)
        run.leave(depth)

    def deliver(self, run: Any, order: dict[str, Any]) -> None:
        """A file under its final name, whole or not at all."""
        name = f"deliver-{order['id']}.bin"
        source = self.output.parent / "temp" / name
        source.parent.mkdir(exist_ok=True)
        size = size_of(order["seconds"])
        source.write_bytes(content_of(name, size))
        self.pen.write(witness.DELIVER)
        commit.deliver(source, self.output / name)

    def close_ours(self, run: Any, order: dict[str, Any]) -> None:
        """A node closes the descriptors of our files; what it opens then gets their numbers."""
        self._close(lambda number, path: "/ledger/" in path)

    def close_all(self, run: Any, order: dict[str, Any]) -> None:
        """A node closes every descriptor of a file or a pipe from 3 on, as daemons do."""
        self._close(lambda number, path: True)

    def _close(self, which: Any) -> None:
        for number in range(3, 256):
            try:
                kind = os.fstat(number).st_mode
                path = os.readlink(f"/proc/self/fd/{number}")
            except OSError:
                continue
            if not stat.S_ISSOCK(kind) and which(number, path):
                os.close(number)
        # What the user opens next gets the number: nothing of ours may be written to it.
        mine = [os.open(self.output / "user.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(12)]
        os.write(mine[0], b"the user's\n")


def answer(text: str) -> None:
    """A line to the one who posts, in one write."""
    os.write(1, text.encode() + b"\n")


def fields_of(order: dict[str, Any]) -> dict[str, Any]:
    """What is known of a prompt when it is accepted."""
    return {
        "number": order["number"], "validate_ns": 1000, "selected_outputs": ["1"], "nodes": ["1"],
        "classes": [order["kind"]], "links": [[]], "output_nodes": ["1"], "number_of_nodes": 1,
    }  # fmt: skip


def settled(ledger: Path) -> None:
    """Wait as long as a host takes to load its nodes, but no longer than the recorder takes to begin."""
    end = time.monotonic() + 2.0
    while not list(ledger.glob("journal/*/*.life")) and time.monotonic() < end:
        time.sleep(0.01)


def serve(ledger: Path, output: Path, sheet: Path) -> None:
    """Accept what comes on the standard input."""
    pen = witness.Pen(sheet)
    live.begin_process(
        ledger, watched=True, format_version=VERSION, pid=os.getpid(), pid_started=started_of(),
        hostname=socket.gethostname(), stagexec_version="0", python=platform.python_version(),
        platform=platform.platform(), host_path=None, argv=[], timing="baseline", executor_asked="native",
    )  # fmt: skip
    threading.Thread(target=witness.watch_lateness, args=(pen,), daemon=True).start()
    worker = Worker(output, pen)
    threading.Thread(target=worker.loop, daemon=True).start()
    settled(ledger)
    answer("ready")
    for text in sys.stdin:
        order = json.loads(text)
        live.accept(order["id"], fields_of(order))
        worker.orders.put(order)
        answer(f"200 {order['id']} {time.perf_counter_ns()}")


if __name__ == "__main__":
    serve(*map(Path, sys.argv[1:4]))
