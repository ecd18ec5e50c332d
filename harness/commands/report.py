"""``harness report``: tables, Markdown and JUnit from a stored result file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.common import console
from harness.files import write_atomically
from harness.report import failure_panel, markdown, table, write_junit
from harness.report.agreement import agreement_markdown, pairs
from harness.report.markdown import machine_line
from harness.results import read_run
from harness.verdict import Status


def report(
    results: Annotated[Path, typer.Argument(help="A result file of harness gate.")],
    markdown_: Annotated[Path | None, typer.Option("--markdown", help="Write the table as Markdown.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML.")] = None,
    agreement: Annotated[
        Path | None, typer.Option(help="Write a table of fake-cuda predictions beside cuda measurements.")
    ] = None,
    failures: Annotated[bool, typer.Option("--failures", help="Show what did not pass in full.")] = False,
) -> None:
    """Show a stored run again. Nothing is measured; the exit code is always that of a shown file (0)."""
    run = read_run(results)
    if failures:
        for verdict in run.verdicts:
            if verdict.status is not Status.PASS:
                console.print(failure_panel(verdict))
    console.print(table(run.verdicts))
    conclusion = f"Run of {run.header['started']}" + ("" if run.complete else ", cut short before its end")
    console.print(conclusion)
    if markdown_ is not None:
        write_atomically(markdown_, markdown(run.verdicts, run.header["machine"], conclusion).encode())
    if agreement is not None:
        text = agreement_markdown(pairs(run.verdicts), machine_line(run.header["machine"]))
        write_atomically(agreement, text.encode())
    if junit is not None:
        write_junit(run.verdicts, junit)
