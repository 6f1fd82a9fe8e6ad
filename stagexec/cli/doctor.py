"""`stagexec doctor`: the host's facts and the state of every seam."""

from __future__ import annotations

import contextlib
import sys

import click

from stagexec.cli import common


@click.command("doctor")
@click.option("--comfyui", metavar="DIR", help="The ComfyUI folder; by default $COMFYUI_PATH, else this one.")
@common.json_option
def command(comfyui: str | None, as_json: bool) -> None:
    """Show the host's facts and the state of every seam. Exit code 1 if there are problems."""
    from stagexec.host import doctor

    try:
        # What a host prints while it is inspected must not end up among the JSON.
        with contextlib.redirect_stdout(sys.stderr):
            report = doctor.report(comfyui)
    except (OSError, LookupError, ValueError) as error:
        raise common.BadInput(str(error)) from None
    if as_json:
        common.print_json(report)
    else:
        from stagexec.views import text

        text.print_doctor(text.console(), report)
    if report.get("problems"):
        raise SystemExit(1)
