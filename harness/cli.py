"""The ``harness`` command line. Each command is a file of its own under ``harness/commands``."""

from __future__ import annotations

import sys

import typer

from harness.commands.faults import faults
from harness.commands.gate import gate
from harness.commands.list_ import list_
from harness.commands.report import report
from harness.runner import Exit

app = typer.Typer(
    help="Benchmark and regression harness for GPU kernels.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("list")(list_)
app.command("gate")(gate)
app.command("faults")(faults)
app.command("report")(report)


@app.callback()
def _commands() -> None:
    """Exit codes: 0 all passed, 1 a gate failed, 2 wrong usage, 3 invalid or nothing measured."""


def main() -> None:
    """Console entry: a user's mistake ends with one line and exit code 2, never with a stack trace."""
    try:
        app()
    except (ValueError, KeyError, OSError) as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        print(f"harness: {text}", file=sys.stderr)
        sys.exit(Exit.USAGE)


if __name__ == "__main__":
    main()
