"""Counts of verdicts by operation, world and gate: what every table shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.gates import GATES
from harness.verdict import Status, Verdict

_WORST_FIRST = (Status.FAIL, Status.INVALID, Status.INCONCLUSIVE, Status.SKIPPED, Status.PASS)


@dataclass
class Cell:
    """All verdicts of one operation under one gate in one world."""

    counts: Counter[Status] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def worst(self) -> Status:
        """The status that decides the cell's colour."""
        return next(status for status in _WORST_FIRST if self.counts[status])

    def __str__(self) -> str:
        passed = self.counts[Status.PASS]
        return f"{passed}" if passed == self.total else f"{passed}/{self.total}"


@dataclass
class Summary:
    """``cells[(suite, implementation)][(world, gate)]``, and the columns in the order to show them."""

    cells: dict[tuple[str, str], dict[tuple[str, str], Cell]] = field(default_factory=dict)
    columns: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[Status] = field(default_factory=Counter)
    seconds: float = 0.0


def summarize(verdicts: Iterable[Verdict]) -> Summary:
    """Count verdicts into a summary."""
    summary = Summary()
    seen: set[tuple[str, str]] = set()
    for verdict in verdicts:
        row = summary.cells.setdefault((verdict.suite, verdict.implementation), {})
        row.setdefault((verdict.world, verdict.gate), Cell()).counts[verdict.status] += 1
        seen.add((verdict.world, verdict.gate))
        summary.counts[verdict.status] += 1
        summary.seconds += verdict.seconds
    worlds = list(dict.fromkeys(world for world, _ in seen))
    order = {name: position for position, name in enumerate(("cpu", "fake-cuda", "cuda", "codegen"))}
    worlds.sort(key=lambda world: order.get(world, len(order)))
    summary.columns = [(world, gate) for world in worlds for gate in GATES if (world, gate) in seen]
    return summary
