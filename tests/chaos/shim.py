"""The fault layer: a library that stands between a process and its disk and clocks, and the rules for it.

It is compiled when it is first wanted; where there is no C compiler, or the system has no LD_PRELOAD, `build`
says so, and the scenes that need it are told as not played.
"""

from __future__ import annotations

import dataclasses
import errno
import mmap
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")

CLOCKS = struct.Struct("<qq")
RULE = struct.Struct("<iiqqqq472s")
RULES = 4
SIZE = CLOCKS.size + RULES * RULE.size

OPEN_WRITE, OPEN_READ, WRITE, NAMES, LOOK, SYNC = 1, 2, 4, 8, 16, 32


@dataclasses.dataclass(frozen=True)
class Rule:
    """What happens to calls of the kinds `ops` on paths that begin with the rule's folder."""

    ops: int
    error: int = 0
    delay_s: float = 0.0
    full: bool = False
    room: int = 0


RULE_OF = {
    "full": Rule(WRITE, full=True),
    "read_only": Rule(OPEN_WRITE | WRITE | NAMES, errno.EROFS),
    "broken": Rule(OPEN_WRITE | OPEN_READ | WRITE | NAMES | LOOK | SYNC, errno.EIO),
    "stale": Rule(OPEN_WRITE | OPEN_READ | NAMES | LOOK, errno.ESTALE),
    "slow": Rule(OPEN_WRITE | WRITE | NAMES | LOOK | SYNC, delay_s=0.06),
}
"""Each way in which a disk goes wrong, by the name that scenes use."""


class Unavailable(Exception):
    """There is no fault layer on this machine; the text says why."""


def build(folder: Path) -> Path:
    """The compiled library in `folder`. Raises Unavailable."""
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"no LD_PRELOAD of this kind on {sys.platform}")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable("no C compiler")
    library = folder / "chaos-shim.so"
    words = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise Unavailable(f"the C compiler refused: {done.stderr.strip()[:300]}")
    return library


class Shim:
    """The rules of one process: made before it starts, changed while it runs."""

    def __init__(self, library: Path, control: Path) -> None:
        self.library = library
        self.control = control
        control.write_bytes(bytes(SIZE))
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to be under these rules."""
        before = os.environ.get("LD_PRELOAD")
        return {
            "LD_PRELOAD": f"{self.library}:{before}" if before else str(self.library),
            "CHAOS_CONTROL": str(self.control),
        }

    def injure(self, name: str, folder: Path, at: int = 0, room: int | None = None) -> None:
        """From now on the disk under `folder` is `name` (a key of RULE_OF)."""
        rule = RULE_OF[name]
        place = os.fsencode(folder)
        assert len(place) < 472, f"too long for a rule: {folder}"
        left = rule.room if room is None else room
        fields = (rule.ops, rule.error, round(rule.delay_s * 1e6), int(rule.full), left, 0, place)
        RULE.pack_into(self._map, CLOCKS.size + at * RULE.size, 0, *fields[1:])
        struct.pack_into("<i", self._map, CLOCKS.size + at * RULE.size, rule.ops)  # last: now it counts

    def heal(self) -> None:
        """The disks are as before."""
        for at in range(RULES):
            struct.pack_into("<i", self._map, CLOCKS.size + at * RULE.size, 0)

    def hits(self, at: int = 0) -> int:
        """How many calls the rule has met."""
        return int(RULE.unpack_from(self._map, CLOCKS.size + at * RULE.size)[5])

    def step(self, wall_s: float = 0.0, boot_s: float = 0.0) -> None:
        """The wall clock, and the one that counts a machine's sleep, are ahead by so much from now on."""
        CLOCKS.pack_into(self._map, 0, round(wall_s * 1e9), round(boot_s * 1e9))

    def close(self) -> None:
        """Let go of the rules; they stay as they are."""
        self._map.close()
