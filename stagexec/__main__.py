"""`python -m stagexec`: the `stagexec` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    from stagexec.cli import command

    command(prog_name="stagexec")


if __name__ == "__main__":
    main()
