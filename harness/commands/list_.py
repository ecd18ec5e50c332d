"""``harness list``: what there is to run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from harness.commands.common import console, find_suites
from harness.gates import GATES
from harness.worlds import WORLD_CLASSES


def list_(
    suite: Annotated[list[str] | None, typer.Option(help="Suite name, file or folder; all by default.")] = None,
    cases: Annotated[bool, typer.Option("--cases", help="Show the case ids too.")] = False,
) -> None:
    """Show suites with their implementations and cases, the gates, and the worlds of this machine."""
    view = Table("suite", "implementations", "cases quick / full", "what it is", header_style="bold")
    entries = find_suites(suite or [])
    for entry in entries:
        declared = entry.suite.cases
        quick = sum(case.tier == "quick" for case in declared)
        view.add_row(
            entry.suite.name, ", ".join(entry.suite.implementations), f"{quick} / {len(declared)}", entry.suite.doc
        )
    console.print(view)
    view = Table("gate", "worlds", "what it proves", header_style="bold")
    for gate in GATES.values():
        view.add_row(gate.name, ", ".join(gate.worlds), (gate.__doc__ or "").strip().splitlines()[0])
    console.print(view)
    for name, world in WORLD_CLASSES.items():
        reason = world().unavailable()
        console.print(f"world {name}: " + ("here" if reason is None else f"not here ({reason})"))
    if cases:
        for entry in entries:
            for case in entry.suite.cases:
                console.print(
                    f"{entry.suite.name}  {case.id}  ({case.tier}; {', '.join(case.worlds)})", highlight=False
                )
