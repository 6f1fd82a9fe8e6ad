"""What the verbs share: the ledger option, loading, finding a run, JSON on standard output."""

from __future__ import annotations

import contextlib
import errno
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import msgspec

from stagexec import addresses, files
from stagexec.printable import visible
from stagexec.reading import store
from stagexec.reading.journal import size_of
from stagexec.reading.runs import Run

if TYPE_CHECKING:
    from stagexec.reading.relation import Runs

F = TypeVar("F", bound=Callable[..., Any])


class BadInput(click.ClickException):
    """A user's mistake: one line, exit code 2."""

    exit_code = 2


def say(text: object) -> None:
    """A line for the person, on standard error."""
    click.echo(f"stagexec: {visible(text)}", err=True)


def failed(text: str, problem: OSError) -> click.ClickException:
    """What an OSError ends with: exit code 2 where a path is at fault, 1 where the machine is."""
    at_fault = (
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS),
        *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.ENODEV),
    )
    return BadInput(text) if problem.errno in at_fault else click.ClickException(text)


def target(text: str, option: str) -> pathlib.Path:
    """A path to write to. One that can be none is the user's mistake."""
    try:
        return files.place(text)
    except files.BadPath as problem:
        raise BadInput(f"{option}: {problem}") from None


def ledger_option(function: F) -> F:
    """`--ledger DIR`, given to the verb as `ledger`."""
    text = "Ledger folder; by default $STAGEXEC_LEDGER, else the host's."
    return click.option("--ledger", metavar="DIR", help=text)(function)


def stages_option(function: F) -> F:
    """`--stages FILE`: the verb reads journals by another stage table. The verb itself does not see it."""

    @functools.wraps(function)
    def reads(*args: Any, stages: str | None, **kwargs: Any) -> Any:
        from stagexec.reading import refold

        if stages is None:
            return function(*args, **kwargs)
        if is_parquet(kwargs.get("ledger")):
            raise BadInput("--stages needs journals: a row of Parquet has no seams and classes any more")
        try:
            rules = refold.read(stages)
        except (refold.BadStages, files.BadPath) as error:
            raise BadInput(f"--stages: {error}") from None
        with refold.using(rules):
            return function(*args, **kwargs)

    text = "A seam or node table (TOML): read all journals by it."
    return cast(F, click.option("--stages", metavar="FILE", help=text)(reads))


def is_parquet(ledger: str | None) -> bool:
    """Whether Parquet files are named in place of a ledger."""
    from stagexec.reading.relation import is_files

    return is_files(ledger)


def json_option(function: F) -> F:
    """`--json`, given to the verb as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, times in ns.")(function)


def ledger_path(ledger: str | None) -> pathlib.Path:
    """The ledger's folder. A folder that was named and is not there is the user's mistake."""
    from stagexec.record.paths import ledger_folder

    try:
        folder = ledger_folder(ledger)
        if ledger is not None and not folder.is_dir():
            from stagexec.reading.relation import is_files

            if is_files(ledger):
                raise BadInput(
                    f"{addresses.shown(ledger)}: Parquet files answer runs, failures and plan; "
                    "this needs a ledger folder"
                )
        if folder.exists():
            files.folder(folder)  # one that cannot be read would look like one without runs
        elif ledger is not None:
            raise BadInput(f"no ledger folder {addresses.shown(str(folder))}")
    except files.BadPath as problem:
        raise BadInput(f"no ledger folder: {problem}") from None
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise BadInput(
            f"the ledger's folder {str(folder)!r} has a name that is no UTF-8: rename it"
        ) from None
    return folder


def place(ledger: str | None) -> str:
    """How to name to a person what was read: the folder, or the files as they were named."""
    from stagexec.reading.relation import is_files

    return addresses.shown(str(ledger)) if is_files(ledger) else str(ledger_path(ledger))


LARGE = 64 * 1024**2
"""Journals of more bytes are read by way of the index, a run at a time."""


def is_large(folder: pathlib.Path) -> bool:
    """Whether folding all of the ledger would take a person's patience."""
    return size_of(folder) > LARGE


def load(ledger: str | None, whole: bool = False) -> store.Store:
    """All runs of the ledger; what could not be read is named on standard error.

    Of a large ledger only the runs that are looked for are read, unless it is to be the `whole` one.
    """
    folder = ledger_path(ledger)
    if not whole and is_large(folder):
        from stagexec.reading.lookup import Large

        return Large(folder)
    loaded = store.load(folder)
    for problem in loaded.problems:
        if problem.kind == "unreadable":
            say(f"{problem.file}: {problem.what}")
    odd = sum(p.kind not in ("unreadable", "torn_last") for p in loaded.problems)
    if odd:
        say(f"{odd} lines of the journal were left out; `stagexec audit` names them")
    if not loaded.runs:
        say(f"no runs in {folder}")
    return loaded


@contextlib.contextmanager
def relation(ledger: str | None) -> Iterator[Runs]:
    """The runs of a ledger folder, or of Parquet files named by a path, glob or URL, as a relation."""
    from stagexec.reading import relation as of

    try:
        if ledger is not None and of.is_files(ledger):
            with of.of_files(ledger) as found:
                yield found
            return
    except of.CannotRead as error:
        raise BadInput(str(error)) from None
    with of.of_ledger(ledger_path(ledger)) as found:
        for problem in found.problems:
            say(problem)
        if found.torn:
            text = "lines of the journal were left out; `stagexec audit` names them"
            say(f"{found.torn} {text}")
        yield found


def find(loaded: store.Store, name: str) -> Run:
    """The run that `name` means; a name of none or of many is the user's mistake."""
    try:
        return loaded.find(name)
    except store.NoSuchRun as error:
        raise BadInput(str(error)) from None


def print_json(value: Any) -> None:
    """One JSON value on a line of standard output: UTF-8, whatever the terminal's own encoding is."""
    click.echo(msgspec.json.encode(value))
