"""The launcher: `python -m stagexec.main <ComfyUI's arguments>` starts the user's ComfyUI under our loop."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import platform
import runpy
import sys
from pathlib import Path

from stagexec import __version__, addresses, files
from stagexec.host import warmup
from stagexec.host.hooks import Hooks, begin
from stagexec.host.locate import HostNotFound, locate
from stagexec.host.tables import TableError, load
from stagexec.printable import Visible, visible
from stagexec.record import ends, live, paths
from stagexec.record.process import started_of
from stagexec.record.safe import print_error
from stagexec.stages import EXECUTORS, TIMING_MODES

USAGE = 2
FAILED = 1


def parser() -> argparse.ArgumentParser:
    """Our own options. Everything else belongs to the host and is never parsed here."""
    own = argparse.ArgumentParser(
        prog="python -m stagexec.main",
        description="Start ComfyUI with stagexec's execution loop and stage ledger.",
        epilog="All other arguments are ComfyUI's own and are passed on untouched.",
        add_help=False,
        allow_abbrev=False,
    )
    own.add_argument(
        "--stagexec-comfyui", metavar="DIR", help="ComfyUI's folder (else $COMFYUI_PATH, else here)"
    )
    own.add_argument(
        "--stagexec-ledger",
        metavar="DIR",
        help="the ledger's folder (else $STAGEXEC_LEDGER, else in ComfyUI's user folder)",
    )
    own.add_argument(
        "--stagexec-executor",
        choices=EXECUTORS,
        help="native: our loop; host: ComfyUI's own, with the ledger around it",
    )
    own.add_argument(
        "--stagexec-timing", choices=TIMING_MODES, default="baseline", help="how time is taken (baseline)"
    )
    own.add_argument(
        "--stagexec-nvml",
        metavar="SECONDS",
        type=period,
        help="sample NVIDIA devices this often while runs execute (memory, power, energy; off)",
    )
    own.add_argument(
        "--stagexec-patches",
        metavar="FILE",
        action="append",
        default=[],
        help="a seam table of your own (repeatable)",
    )
    own.add_argument("--stagexec-strict", action="store_true", help="a refused seam ends the start")
    own.add_argument(
        "--stagexec-clean",
        action="store_true",
        help="remove temporary files that our nodes left when an earlier process was killed",
    )
    own.add_argument(
        "--stagexec-record-text",
        action="store_true",
        help="let error messages, which may hold prompts, into the ledger",
    )
    own.add_argument(
        "--stagexec-warmup", metavar="FILE", help="a workflow (API format) to run once at start, flagged"
    )
    return own


def period(text: str) -> float:
    """Seconds between two samples: 0.01 at least, since NVML itself takes a millisecond or more."""
    seconds = float(text)
    if not 0.01 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.01 and 3600 seconds")
    return seconds


def main(argv: list[str] | None = None) -> int:
    """Run ComfyUI until it ends. Gives the exit code where the host does not exit by itself."""
    arguments = sys.argv[1:] if argv is None else argv
    own = parser()
    mine, theirs = own.parse_known_args(arguments)
    if "-h" in theirs or "--help" in theirs:
        own.print_help()
        print("\nComfyUI's own arguments:\n", flush=True)
    unknown = [word for word in theirs if word.startswith("--stagexec-")]
    if unknown:
        return fail(USAGE, f"unknown option {addresses.shown(unknown[0])}; see --help")
    logging.getLogger("stagexec").addFilter(Visible())
    try:
        tree = locate(mine.stagexec_comfyui)
        tables = load(mine.stagexec_patches)
        warm = warmup.read(mine.stagexec_warmup) if mine.stagexec_warmup is not None else None
    except (HostNotFound, TableError, warmup.WarmupError) as error:
        return fail(USAGE, str(error))
    if problem := ledger_problem(mine.stagexec_ledger, mine.stagexec_strict):
        return fail(USAGE, problem)
    live.timing = mine.stagexec_timing
    live.record_text = mine.stagexec_record_text
    process = {
        "ledger": mine.stagexec_ledger,
        "format_version": format_version(),
        "pid": os.getpid(),
        "pid_started": started_of(),
        "hostname": platform.node(),
        "stagexec_version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host_path": str(tree),
        "argv": addresses.shown_words(theirs),
        "timing": mine.stagexec_timing,
        "executor_asked": mine.stagexec_executor,
    }
    hooks = Hooks(tables, mine.stagexec_executor, mine.stagexec_timing, mine.stagexec_strict, process)
    hooks.nvml_period_s = mine.stagexec_nvml
    hooks.clean = mine.stagexec_clean
    main_file = tree / "main.py"
    begin(
        hooks,
        ["-m", "stagexec.main", "--stagexec-comfyui", str(tree), *own_words(own, arguments)],
        main_file,
    )
    if warm is not None:
        warmup.start(warm)
    return run_host(tree, main_file, theirs)


def ledger_problem(named: str | None, strict: bool) -> str | None:
    """Why a ledger that was asked for by name cannot be had. None where it can; where it only cannot be
    written to now, that is said aloud and ComfyUI starts all the same, unless `strict`.
    """
    source = "--stagexec-ledger" if named is not None else f"${paths.VARIABLE}"
    if named is None and not os.environ.get(paths.VARIABLE):
        return None
    try:
        reason = files.unkept(paths.ledger_folder(named))
    except files.BadPath as error:
        return f"{source}: {error}"
    if reason is None or strict:
        return None if reason is None else f"{source}: the ledger cannot be kept: {reason}"
    fail(0, f"NO RUN WILL BE RECORDED: the ledger named by {source} cannot be kept: {reason}")
    return None


def own_words(own: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """What of the command line was ours, as it was and in order, for a restart; the host's tree apart, which
    is named again each time."""
    takes_value = {name: action.nargs != 0 for action in own._actions for name in action.option_strings}
    found: list[str] = []
    at = 0
    while at < len(words) and words[at] != "--":
        name, equals, _ = words[at].partition("=")
        size = 2 if takes_value.get(name) and not equals else 1
        if name in takes_value and name != "--stagexec-comfyui":
            found += words[at : at + size]
        at += size
    return found


without_password = addresses.shown


def run_host(tree: Path, main_file: Path, theirs: list[str]) -> int:
    """The host's main.py as `__main__`, as `python main.py` runs it: argv and sys.path[0] are its own."""
    sys.argv = [str(main_file), *theirs]
    if sys.path and Path(sys.path[0] or ".").absolute() == Path.cwd():
        sys.path.pop(0)  # put there by `python -m`; a folder `utils` beside the user would hide the host's
    sys.path.insert(0, str(tree))
    returned = False
    try:
        runpy.run_path(str(main_file), run_name="__main__")
        returned = True
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL) or "address" not in str(
            error
        ):
            raise
        return fail(
            FAILED,
            f"ComfyUI cannot listen: {error.strerror or error}. Choose another with --port or --listen.",
        )
    finally:
        ends.leaving(sys.exc_info()[1], returned)
    return 0


def format_version() -> int:
    """Version of the journal's format."""
    from stagexec.format import VERSION

    return VERSION


def fail(code: int, text: str) -> int:
    """One line for the person, and the exit code."""
    print_error(f"stagexec: {visible(text)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
