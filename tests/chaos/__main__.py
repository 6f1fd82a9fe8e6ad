"""`python -m tests.chaos`: harm at random moments, and what is left of it. Exit code 1 if anything is lost.

A seed and a number give the same scene again (`--seed 5 --only 17,33`); how the machine schedules it differs.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.chaos import checks, mini, scenes, shim
from tests.chaos.played import Loss, Played
from tests.chaos.scenes import Scene
from tests.chaos.tally import Tally

BATCH = 25
"""So many ledgers are put together for one look through `stagexec runs` in a process of its own."""

IN_MINIATURE, IN_COMFYUI = "in miniature", "in a ComfyUI"


class Chaos:
    """One run of the suite."""

    def __init__(self, seed: int, folder: Path, minutes: float, loud: bool) -> None:
        self.seed = seed
        self.folder = folder
        self.end = time.monotonic() + minutes * 60
        self.loud = loud
        self.tally = Tally()
        self.left_out = 0
        self.batches = 0
        try:
            self.library: Path | shim.Unavailable = shim.build(folder)
        except shim.Unavailable as problem:
            self.library = problem

    def miniature(self, chosen: Sequence[Scene], jobs: int) -> None:
        """Play these scenes on hosts in miniature."""
        for at in range(0, len(chosen), BATCH):
            with ThreadPoolExecutor(jobs) as pool:
                plays = [
                    played for played in pool.map(self.one, chosen[at : at + BATCH]) if played is not None
                ]
            self.together(plays)

    def one(self, scene: Scene) -> Played | None:
        """Play one scene and look what is lost; None where there was no time for it."""
        if time.monotonic() > self.end:
            self.left_out += 1
            return None
        played = mini.play(scene, self.folder / f"scene-{scene.number}", self.library)
        losses = checks.losses(played) if played.skipped is None else []
        self.tally.add(IN_MINIATURE, played, losses)
        if losses or self.loud:
            self.tell(str(scene), losses)
        return played

    def together(self, plays: list[Played]) -> None:
        """The same by the command, in a process of its own; then the folders of sound scenes are removed."""
        plays = [played for played in plays if played.skipped is None]
        if not plays:
            return
        self.batches += 1
        ledger = self.folder / f"batch-{self.batches}"
        for played in plays:
            if played.ledger.exists():
                shutil.copytree(played.ledger, ledger, dirs_exist_ok=True)
        known = {loss.scene for loss in self.tally.losses}
        losses = [loss for loss in checks.command_losses(ledger, plays) if loss.scene not in known]
        self.tally.more(losses)
        for loss in losses:
            self.tell(loss.scene, [loss])
        shutil.rmtree(ledger, ignore_errors=True)
        known |= {loss.scene for loss in losses}
        for played in plays:
            if played.name not in known:
                shutil.rmtree(played.ledger.parent, ignore_errors=True)

    @staticmethod
    def tell(scene: str, losses: list[Loss]) -> None:
        """Print a scene and what was lost in it."""
        print("\n".join([scene, *(f"    LOST {one.kind}: {one.what}" for one in losses)]), flush=True)


def main(words: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="scenes on hosts in miniature")
    parser.add_argument("--servers", type=int, default=24, help="lives of a real ComfyUI")
    parser.add_argument("--seed", type=int, default=None, help="by default the time")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no scene after so long")
    parser.add_argument("--jobs", type=int, default=2, help="hosts in miniature at once")
    parser.add_argument("--only", help="numbers of scenes in miniature, as 17,33")
    parser.add_argument("--folder", type=Path, help="where to work; what is lost stays there")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print every scene, not only those with losses"
    )
    given = parser.parse_args(words)
    for name in ("SIGINT", "SIGQUIT", "SIGHUP"):
        # A shell starts what runs in the background with these ignored, and so would be every host here.
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) == signal.SIG_IGN:
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    seed = int(time.time()) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"chaos: seed {seed}, {given.kills} scenes in miniature, {given.servers} lives of a ComfyUI")
    chaos = Chaos(seed, folder, given.minutes, given.verbose)
    numbers = [int(one) for one in given.only.split(",")] if given.only else list(range(given.kills))
    chaos.miniature([scenes.draw(seed, number) for number in numbers], given.jobs)
    if given.servers and not given.only:
        from tests.chaos import lives

        lives.play_all(chaos, given.servers)
    print("\n".join(chaos.tally.lines()))
    if chaos.left_out:
        print(f"no time was left for {chaos.left_out} scenes (--minutes)")
    if chaos.tally.losses:
        print(f"what was left is in {folder}")
    elif given.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if chaos.tally.losses else 0


if __name__ == "__main__":
    sys.exit(main())
