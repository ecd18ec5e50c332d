"""The table at the end of a run, and the panel of one failure."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from harness.report.summary import summarize
from harness.verdict import Status, Verdict

STYLES = {
    Status.PASS: "green",
    Status.FAIL: "bold red",
    Status.INVALID: "magenta",
    Status.INCONCLUSIVE: "yellow",
    Status.SKIPPED: "dim",
}

_MARKS = {Status.PASS: "✓", Status.FAIL: "✗", Status.INVALID: "?", Status.INCONCLUSIVE: "~", Status.SKIPPED: "-"}


def table(verdicts: Iterable[Verdict]) -> RenderableType:
    """Operations down, gates of each world across; a cell is the number passed, or passed/all when not all did."""
    summary = summarize(verdicts)
    view = Table(title=None, header_style="bold", pad_edge=False, collapse_padding=True)
    view.add_column("operation")
    view.add_column("implementation")
    for world, gate in summary.columns:
        view.add_column(f"{world}\n{gate}", justify="right")
    for (suite, implementation), row in summary.cells.items():
        cells = []
        for column in summary.columns:
            cell = row.get(column)
            cells.append(
                Text("·", style="dim")
                if cell is None
                else Text(f"{_MARKS[cell.worst]} {cell}", style=STYLES[cell.worst])
            )
        view.add_row(Text(suite), Text(implementation), *cells)
    counts = ", ".join(f"{count} {status}" for status, count in sorted(summary.counts.items()))
    return Group(view, Text(f"{counts or 'no verdicts'} in {summary.seconds:.1f} s of trials", style="dim"))


def failure_panel(verdict: Verdict) -> RenderableType:
    """Everything about one verdict that is not PASS, with the command that shows it again."""
    lines = [Text(verdict.reason, style=STYLES[verdict.status])]
    if verdict.expected:
        lines.append(Text(f"expected  {verdict.expected}"))
    if verdict.found:
        lines.append(Text(f"found     {verdict.found}"))
    lines += [Text(f"          {line}", style="dim") for line in verdict.details[:12]]
    lines.append(Text(f"again     {verdict.reproduce}", style="cyan"))
    names = (verdict.suite, verdict.implementation, verdict.gate, verdict.world, verdict.case)
    title = Text(f"{verdict.status} {' · '.join(names)}")
    return Panel(Group(*lines), title=title, title_align="left", border_style=STYLES[verdict.status])
