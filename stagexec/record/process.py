"""This process among others: which one it is, and a tiny process beside it that notes until when it lived.

A thread of ours cannot write a sign of life while a node holds the interpreter's lock, nor after `kill -9`.
The watcher is no child of ours (it is orphaned at once), has no file of ours open, and ends with us. It waits
for the kernel to say that we ended (pidfd where there is one), so the moment of death is exact.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from pathlib import Path

LOOK_S = 0.5
"""How often the watcher notes that we live, while runs are open. A killed container kills the watcher too."""

SIZE = 2048
"""Bytes of the file: it is overwritten in place, which needs no room on a full disk."""

SHOWN = 1600
"""Bytes of the memory that both processes see: what is open in this one."""

BUSY, IDLE = b"b", b"i"


def started_of(pid: int | str = "self") -> str | None:
    """What tells a process from a later one with its number; None where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
        return f"{boot}:{namespace}:{fields[19]}"
    except (OSError, IndexError):
        return None


class Watcher:
    """The watcher of this process. `start` waits for a process to begin; `tell` returns at once."""

    def __init__(self, life: Path) -> None:
        self.life = life
        self._pipe: int | None = None
        self._identity: tuple[int, int] | None = None
        self._told = IDLE
        self._seen: mmap.mmap | None = None

    def start(self) -> str | None:
        """Start the process; why it could not be, or None."""
        import subprocess  # here: the watcher itself runs this file, and needs little

        if sys.platform == "win32":
            return "this system has no way to wait for a process and a pipe at once"
        theirs: list[int] = []
        try:
            end, ours = os.pipe()
            theirs.append(end)
            os.set_blocking(ours, False)
            memory = _shared()
            if memory is not None:
                theirs.append(memory)
                self._seen = mmap.mmap(memory, SHOWN)
            command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(self.life)]
            with subprocess.Popen(
                [*command, *map(str, theirs[1:])],
                stdin=end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self.life.anchor,
                pass_fds=theirs[1:],
            ) as child:
                child.wait(10)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            for one in theirs:
                os.close(one)
        self._pipe, self._identity = ours, _identity(ours)
        return None

    def show(self, what: bytes) -> None:
        """Let the watcher see a short JSON text, for the case that this is the last that is heard of us."""
        seen = self._seen
        if seen is not None and len(what) <= SHOWN - 4:
            seen[0:4] = bytes(4)  # a kill in the middle of this leaves nothing to see
            seen[4 : 4 + len(what)] = what
            seen[0:4] = len(what).to_bytes(4, "little")

    def tell(self, busy: bool) -> None:
        """Are runs open? Only then a sign of life is worth a write each half second."""
        word = BUSY if busy else IDLE
        if self._pipe is None or word == self._told:
            return
        try:
            if _identity(self._pipe) != self._identity:  # a node closed it; its own file has the number
                self._pipe = None
                return
            os.write(self._pipe, word)
            self._told = word
        except OSError:  # the watcher is gone, or other code closed the pipe: then there is none
            self._pipe = None


def _identity(file: int) -> tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino


def _shared() -> int | None:
    """A descriptor of memory that no file name leads to: nothing can cut it short under a mapping."""
    try:
        memory = os.memfd_create("stagexec")
    except (AttributeError, OSError):
        return None
    os.ftruncate(memory, SHOWN)
    return memory


def watch(pid: int, life: str, memory: int | None = None) -> None:
    """The watcher's own main: note in the file `life` until when process `pid` was alive."""
    import select

    file = os.open(life, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
    os.write(file, b" " * SIZE)
    death, program = _death_of(pid), _program_of(pid)
    heard = [0]
    busy = False
    try:
        while True:
            wait_s = LOOK_S if busy or death is None else 3600.0
            ready, _, _ = select.select(heard if death is None else [*heard, death], [], [], wait_s)
            if death in ready:
                break
            if 0 in ready:
                word = os.read(0, 64)
                if not word:  # it ended, became another program by exec, or a node closed the pipe
                    if death is not None:
                        select.select([death], [], [], 0.2)
                    if program is None or _program_of(pid) != program or _ended_orderly(life):
                        break
                    heard, word = [], BUSY
                busy = word.endswith(BUSY)
            if death is None and not _lives(pid):
                break
            if busy:
                _note(file, pid, "alive", memory)
    finally:
        if os.path.exists(life):
            _note(file, pid, "died", memory)
        os.close(file)
    if _ended_orderly(life):
        os.unlink(life)


def _death_of(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _program_of(pid: int) -> bytes | None:
    """What changes when a process becomes another program by exec: where its memory lies, drawn by chance."""
    try:
        with open(f"/proc/{pid}/auxv", "rb") as stream:
            return stream.read() or None
    except OSError:
        return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _note(file: int, pid: int, state: str, memory: int | None) -> None:
    told: dict[str, object] = {
        "pid": pid,
        "mono_ns": time.perf_counter_ns(),
        "wall_ns": time.time_ns(),
        "state": state,
    }
    told["open"] = None if memory is None else _shown(os.pread(memory, SHOWN, 0))
    os.lseek(file, 0, os.SEEK_SET)
    os.write(file, json.dumps(told).ljust(SIZE - 1).encode() + b"\n")


def _shown(memory: bytes) -> object:
    try:
        return json.loads(memory[4 : 4 + int.from_bytes(memory[:4], "little")] or b"null")
    except ValueError:  # cut by the kill
        return None


def _ended_orderly(life: str) -> bool:
    journal = life.removesuffix(".life") + ".jsonl"
    try:
        with open(journal, "rb") as stream:
            stream.seek(-min(4096, os.path.getsize(journal)), os.SEEK_END)
            return b'"event_type":"process_end"' in stream.read()
    except OSError:
        return False


def _main() -> None:
    os.setsid()  # a kill of our process group leaves it its last word
    if os.fork():
        os._exit(0)
    watch(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)


if __name__ == "__main__":
    _main()
