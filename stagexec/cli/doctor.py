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
    from stagexec.host.doctor import DoctorFailed, report
    from stagexec.host.locate import HostNotFound

    try:
        # What a host prints while it is inspected must not end up among the JSON.
        with contextlib.redirect_stdout(sys.stderr):
            found = report(comfyui)
    except HostNotFound as error:
        raise common.BadInput(str(error).replace("--stagexec-comfyui", "--comfyui")) from None
    except DoctorFailed as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        common.print_json(found)
    else:
        from stagexec.views import text

        text.print_doctor(text.console(), found)
    if found.get("problems"):
        raise SystemExit(1)
