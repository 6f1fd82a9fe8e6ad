"""The `stagexec` command: a verb a file, each imported only when it is called."""

from __future__ import annotations

import errno
import importlib
import io
import sys
from typing import Any

import click

from stagexec import __version__
from stagexec.files import BadPath, said, shortened
from stagexec.printable import visible

VERBS = {
    "demo": "Set up what is missing and run the demo.",
    "runs": "List the runs of the ledger.",
    "show": "Show one run in full.",
    "diff": "Say what made one run faster than another.",
    "failures": "Say how often runs fail, where, and what that costs.",
    "plan": "Say what a faster stage would bring.",
    "span": "Time a command and add it to a run.",
    "audit": "Look for contradictions in the journal.",
    "profile": "Arm a profile for the next run.",
    "export": "Write runs in the formats of other tools.",
    "bench": "Run a plan of arms and units, and report what is shown.",
    "doctor": "Show the host's facts and the state of every seam.",
}
"""verb -> help line. The verb's command is `command` in `stagexec.cli.<verb>`."""


def bad(text: str) -> click.ClickException:
    """A user's mistake."""
    from stagexec.cli import common  # no more than the table of verbs is needed for --help

    return common.BadInput(text)


class Verbs(click.Group):
    """A group that knows its verbs by name, so that `--help` imports none of them."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run, on a standard output that takes every character: what its encoding lacks becomes `?`."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")
        return super().main(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb; None for a word that is none."""
        if cmd_name not in VERBS:
            return None
        found = importlib.import_module(f"stagexec.cli.{cmd_name}").command
        assert isinstance(found, click.Command)
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out a verb. What a person can cause ends in one line that holds nothing but visible text."""
        try:
            return super().invoke(ctx)
        except click.ClickException as problem:
            vars(problem)["message"] = visible(problem.message, keep="" if problem.exit_code == 2 else "\n")
            raise
        except BadPath as problem:
            raise bad(visible(problem)) from None
        except RecursionError:
            raise bad("what was given is nested too deeply") from None
        except OSError as problem:
            if problem.errno == errno.EPIPE:
                raise  # the reader has had enough: click ends quietly
            named = f"{shortened(str(problem.filename))}: " if problem.filename else ""
            from stagexec.cli import common

            raise common.failed(visible(f"{named}{said(problem)}"), problem) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of verbs, from VERBS alone."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=Verbs, subcommand_metavar="VERB [ARGS]...", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="stagexec")
def command() -> None:
    """Read the ledger that `python -m stagexec.main` keeps of every ComfyUI run.

    A RUN is a run's id, a unique prefix of it, a prompt_id, `last` or `last~N`. `stagexec VERB --help` says
    what a verb takes. Exit codes: 0 done, 1 it ran and the answer is bad, 2 wrong usage.
    """
