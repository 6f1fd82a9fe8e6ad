"""`stagexec profile --next`: arm profile timing for the next run that begins."""

from __future__ import annotations

import click

from stagexec.cli import common
from stagexec.printable import visible


@click.command("profile")
@common.ledger_option
@common.json_option
@click.option("--next", "arm", is_flag=True, help="Arm the next run.")
@click.option("--cancel", is_flag=True, help="Disarm it again.")
def command(ledger: str | None, as_json: bool, arm: bool, cancel: bool) -> None:
    """Profile one run: the next that a server of this ledger begins to execute.

    Its trace lands in the ledger's folder profiles/<run id>/ and is one of the run's artifacts. The run is
    flagged with timing mode `profile`, and never compared with others.
    """
    from stagexec.record.paths import profile_flag

    if arm and cancel:
        raise common.BadInput("--next and --cancel contradict each other")
    flag = profile_flag(common.ledger_path(ledger))
    try:
        if arm:
            flag.parent.mkdir(parents=True, exist_ok=True)
            flag.touch()
        elif cancel:
            flag.unlink(missing_ok=True)
    except OSError as problem:
        raise common.BadInput(f"{flag}: {problem.strerror or problem}") from None
    armed = flag.exists()
    if as_json:
        common.print_json({"armed": armed, "flag": str(flag)})
    else:
        said = "The next run of a server with this ledger will be profiled" if armed else "No run is armed"
        click.echo(f"{said}: {visible(common.place(ledger))}")
