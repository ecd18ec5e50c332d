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
    results: Annotated[list[Path], typer.Argument(help="Result files of harness gate, shown as one run.")],
    markdown_: Annotated[Path | None, typer.Option("--markdown", help="Write the table as Markdown.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML.")] = None,
    agreement: Annotated[
        Path | None, typer.Option(help="Write a table of fake-cuda predictions beside cuda measurements.")
    ] = None,
    failures: Annotated[bool, typer.Option("--failures", help="Show what did not pass in full.")] = False,
) -> None:
    """Show stored runs again. Nothing is measured; the exit code is always that of a shown file (0)."""
    runs = [read_run(path) for path in results]
    verdicts = [verdict for run in runs for verdict in run.verdicts]
    if failures:
        for verdict in verdicts:
            if verdict.status is not Status.PASS:
                console.print(failure_panel(verdict))
    console.print(table(verdicts))
    conclusion = "; ".join(
        f"Run of {run.header['started']}" + ("" if run.complete else ", cut short before its end") for run in runs
    )
    console.print(conclusion)
    machines = [run.header["machine"] for run in runs]
    machine = next((found for found in machines if found.get("gpu")), machines[0])
    if markdown_ is not None:
        write_atomically(markdown_, markdown(verdicts, machine, conclusion).encode())
    if agreement is not None:
        write_atomically(agreement, agreement_markdown(pairs(verdicts), machine_line(machine)).encode())
    if junit is not None:
        write_junit(verdicts, junit)
