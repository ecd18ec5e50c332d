"""A run as Markdown, for a pull request or a file beside the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.report.summary import summarize
from harness.verdict import Status, Verdict

_MARKS = {Status.PASS: "✓", Status.FAIL: "✗", Status.INVALID: "?", Status.INCONCLUSIVE: "~", Status.SKIPPED: "–"}


def markdown(verdicts: Sequence[Verdict], machine: Mapping[str, Any], conclusion: str) -> str:
    """Heading, machine, table of all cells, and every verdict that is not PASS."""
    summary = summarize(verdicts)
    lines = ["# Gates", "", conclusion + ".", "", machine_line(machine), ""]
    if summary.columns:
        head = ["operation", "implementation", *(f"{world}<br>{gate}" for world, gate in summary.columns)]
        lines += ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * len(summary.columns)]
        for (suite, implementation), row in summary.cells.items():
            cells = [
                f"{_MARKS[row[column].worst]} {row[column]}" if column in row else "" for column in summary.columns
            ]
            lines.append("| " + " | ".join([f"`{suite}`", implementation, *cells]) + " |")
        lines.append("")
    bad = [verdict for verdict in verdicts if verdict.status is not Status.PASS]
    if bad:
        lines += ["## Not passed", ""]
    for verdict in bad:
        lines.append(f"- **{verdict.status}** `{verdict.suite}` {verdict.implementation}, {verdict.gate} in")
        lines[-1] += f" {verdict.world}, `{verdict.case}`: {verdict.reason}"
        if verdict.expected:
            lines.append(f"  - expected {verdict.expected}; found {verdict.found or 'otherwise'}")
        lines.append(f"  - `{verdict.reproduce}`")
    return "\n".join(lines).rstrip() + "\n"


def machine_line(machine: Mapping[str, Any]) -> str:
    """``NVIDIA H200, driver 580.159.04, torch 2.11.0, Python 3.12.3`` - what is known of it, in one line."""
    parts = [
        str(machine.get("gpu") or machine.get("cpu") or "unknown machine"),
        f"driver {machine['driver']}" if machine.get("driver") else "",
        f"torch {machine.get('torch')}",
        f"CuTe DSL {machine['package:nvidia-cutlass-dsl']}" if machine.get("package:nvidia-cutlass-dsl") else "",
        f"Python {machine.get('python')}",
        f"commit {machine['commit'][:10]}{' (dirty)' if machine.get('dirty') else ''}" if machine.get("commit") else "",
    ]
    return ", ".join(part for part in parts if part)
