"""``harness gate``: run the gates and say whether the change may be merged."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.commands.common import console, find_suites
from harness.files import write_atomically
from harness.plan import Plan, Selection, make_plan
from harness.report import failure_panel, markdown, table, write_junit
from harness.results import ResultFile, read_run
from harness.runner import ISOLATION, exit_code, run_plan
from harness.verdict import Status, Verdict

FEW = 40
"""Tasks that one process does before another is worth its start (3 s of imports)."""

_SHOWN = 10
"""Failures shown in full on the terminal; the result file has them all."""


def gate(
    suite: Annotated[
        list[str] | None, typer.Option(help="Suite name, file, FILE::NAME or folder; all by default.")
    ] = None,
    case: Annotated[list[str] | None, typer.Option(help="Case id, may hold *.")] = None,
    implementation: Annotated[list[str] | None, typer.Option(help="Implementation name, may hold *.")] = None,
    gate: Annotated[list[str] | None, typer.Option(help="Gate name.")] = None,
    world: Annotated[
        list[str] | None, typer.Option(help="cpu, fake-cuda or cuda; all of this machine by default.")
    ] = None,
    tier: Annotated[str, typer.Option(help="quick, or full for every case.")] = "quick",
    checkpoint: Annotated[
        list[Path] | None, typer.Option(help="Real weights: a .safetensors file whose tensors become cases.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Result file (JSON lines); reports/ by default.")] = None,
    markdown_: Annotated[Path | None, typer.Option("--markdown", help="Write the table as Markdown.")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML.")] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first FAIL.")] = False,
    jobs: Annotated[
        int, typer.Option(help="Child processes that share the trials; 0 for one per core, at most 8.")
    ] = 0,
    isolate: Annotated[str, typer.Option(help="Child processes: auto, all or none.")] = "auto",
    waive: Annotated[
        list[str] | None,
        typer.Option(
            help="Accept INVALID of SUITE/IMPLEMENTATION/GATE/WORLD/CASE (may hold *), or world:NAME missing."
        ),
    ] = None,
) -> None:
    """Run gates over cases; exit 0 when all passed, 1 on a failure, 3 when nothing or nothing valid was measured."""
    if isolate not in ISOLATION:
        raise ValueError(f"unknown --isolate {isolate!r}; expected one of {', '.join(ISOLATION)}")
    if jobs < 0:
        raise ValueError(f"--jobs: expected 0 or more, got {jobs}")
    selection = Selection(
        worlds=tuple(world or ()),
        gates=tuple(gate or ()),
        implementations=tuple(implementation or ()),
        cases=tuple(case or ()),
        tier=tier,
        checkpoints=tuple(checkpoint or ()),
    )
    plan = make_plan(find_suites(suite or []), selection)
    target = json or Path("reports") / time.strftime(f"gate-%Y%m%d-%H%M%S-{os.getpid()}.jsonl")
    results = ResultFile(target)
    count = jobs or min(os.cpu_count() or 1, 8, 1 + len(plan.tasks) // FEW)
    verdicts = _run(plan, results, isolate, fail_fast, count)
    code, conclusion = exit_code(verdicts, plan, tuple(waive or ()))
    _show(verdicts, plan, conclusion, target)
    machine = read_run(target).header["machine"]
    if markdown_ is not None:
        write_atomically(markdown_, markdown(verdicts, machine, conclusion).encode())
    if junit is not None:
        write_junit(verdicts, junit)
    raise typer.Exit(code)


def _run(plan: Plan, results: ResultFile, isolate: str, fail_fast: bool, jobs: int) -> list[Verdict]:
    verdicts: list[Verdict] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("gates", total=len(plan.tasks))
        for verdict in run_plan(plan, mode=isolate, fail_fast=fail_fast, jobs=jobs):
            results.write(verdict)
            verdicts.append(verdict)
            failed = sum(v.status is Status.FAIL for v in verdicts)
            label = escape(f"{verdict.suite} {verdict.gate} {verdict.world}")
            label += f"  [red]{failed} failed" if failed else ""
            progress.update(bar, advance=1, description=label)
    results.close()
    order = {task.key: position for position, task in enumerate(plan.tasks)}
    return sorted(verdicts, key=lambda verdict: order[verdict.key])


def _show(verdicts: list[Verdict], plan: Plan, conclusion: str, target: Path) -> None:
    bad = [verdict for verdict in verdicts if verdict.status is not Status.PASS]
    # one cause usually fails many cases of one cell: the first of each cell is the one to read
    shown = list({(v.suite, v.implementation, v.gate, v.world): v for v in reversed(bad)}.values())[::-1][:_SHOWN]
    for verdict in shown:
        console.print(failure_panel(verdict))
    if len(bad) > len(shown):
        console.print(f"... and {len(bad) - len(shown)} more; all of them are in {target}", style="dim")
    console.print(table(verdicts))
    for name, reason in plan.not_here.items():
        console.print(f"not on this machine: {name} ({reason})", style="dim")
    for name, reason in plan.unavailable.items():
        console.print(f"world {name} is not here: {reason}", style="magenta")
    console.print(f"{conclusion}; results in {target}", style="bold", highlight=False)
