"""Compares stored results of two commits, and fails closed: what cannot be compared is never "no change"."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from scipy.stats import mannwhitneyu

from harness.asv.stored import Cell, Stored
from harness.runner import Exit

FACTOR = 1.05
"""Smallest ratio of medians worth a verdict with unlocked clocks: unchanged kernels moved by 4 % from one day to the
next (meta-pytorch/tritonbench#143)."""

P_VALUE = 0.002
"""Two-sided Mann-Whitney p below which process medians differ; the threshold of asv."""

LEAST_SAMPLES = 7
"""Samples a side below which no data could reach ``P_VALUE``: 6 against 6 end at 0.0022."""

NOT_IDENTITY = frozenset({"python", "ram"})
"""Machine parameters that may differ: the interpreter's path, and memory as the kernel happens to count it."""


class Change(StrEnum):
    """What became of one benchmark."""

    SAME = "SAME"
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    INCONCLUSIVE = "INCONCLUSIVE"
    """The medians are further apart than the factor, and the samples too scattered to say so."""
    NOT_COMPARABLE = "NOT COMPARABLE"
    NEW = "NEW"
    """Measured now, and absent from the baseline: nothing to hold it against."""


@dataclass(frozen=True)
class Row:
    """One benchmark with its parameters, before and after. Values are medians in the benchmark's unit."""

    name: str
    change: Change
    reason: str = ""
    before: float | None = None
    after: float | None = None
    p_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """After over before; None where one of them was not measured."""
        return self.after / self.before if self.before and self.after else None

    def __str__(self) -> str:
        numbers = ""
        if self.ratio is not None:
            numbers = f"  {self.before:.4g} -> {self.after:.4g}  x{self.ratio:.4f}"
        if self.p_value is not None:
            numbers += f"  p={self.p_value:.2g}"
        return f"{self.change:<14}  {self.name}{numbers}" + (f"  ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class Comparison:
    rows: tuple[Row, ...]

    def exit_code(self) -> tuple[Exit, str]:
        """1 when something is slower; 3 when anything could not be compared, or nothing was; else 0."""
        counts = Counter(row.change for row in self.rows)
        if counts[Change.SLOWER]:
            return Exit.FAILED, f"{counts[Change.SLOWER]} of {len(self.rows)} benchmarks are slower"
        doubtful = counts[Change.NOT_COMPARABLE] + counts[Change.INCONCLUSIVE]
        if doubtful:
            return Exit.INVALID, f"{doubtful} of {len(self.rows)} benchmarks could not be compared"
        compared = counts[Change.SAME] + counts[Change.FASTER]
        if not compared:
            return Exit.INVALID, "nothing was compared"
        return Exit.OK, f"{compared} benchmarks compared, none slower"


def compare(before: Stored, after: Stored, *, factor: float = FACTOR, waived: Iterable[str] = ()) -> Comparison:
    """Hold every benchmark of ``before`` against ``after``.

    ``waived`` names machine parameters whose difference is accepted (``driver`` after an upgrade, say).
    """
    if factor <= 1.0:
        raise ValueError(f"factor is a ratio above 1, e.g. 1.05 for 5 %; got {factor}")
    other = _machine_differences(before, after, frozenset(waived))
    if other:
        return Comparison((Row("machine", Change.NOT_COMPARABLE, "; ".join(other)),))
    rows = [_judge(cell, after.cells.get(name), factor) for name, cell in before.cells.items()]
    rows += [
        Row(name, Change.NEW, after=cell.value)
        for name, cell in after.cells.items()
        if name not in before.cells and cell.measured
    ]
    rows += [
        Row(name, Change.NOT_COMPARABLE, "failed, and absent from the baseline")
        for name, cell in after.cells.items()
        if name not in before.cells and cell.value is None
    ]
    return Comparison(tuple(row for row in rows if row is not None))


def _machine_differences(before: Stored, after: Stored, waived: frozenset[str]) -> list[str]:
    keys = sorted((set(before.params) | set(after.params)) - NOT_IDENTITY - waived)
    return [
        f"{key}: {before.params.get(key, 'unknown')} against {after.params.get(key, 'unknown')}"
        for key in keys
        if before.params.get(key) != after.params.get(key)
    ]


def _judge(before: Cell, after: Cell | None, factor: float) -> Row | None:
    """The row of one cell of the baseline; None for one that the baseline skipped and that is still skipped."""

    def refuse(reason: str) -> Row:
        return Row(before.name, Change.NOT_COMPARABLE, reason, before.value, after.value if after else None)

    if after is None:
        return None if _skipped(before) else refuse("no new result")
    if _skipped(before) and _skipped(after):
        return None
    if before.version != after.version:
        return refuse(f"measured in another way: version {before.version} against {after.version}")
    if not before.measured:
        return refuse("the baseline has no number")
    if not after.measured:
        return refuse("failed now" if after.value is None else "skipped now")
    if min(len(before.samples), len(after.samples)) < LEAST_SAMPLES:
        return refuse(
            f"{len(before.samples)} against {len(after.samples)} samples can never differ at p < {P_VALUE}; "
            f"at least {LEAST_SAMPLES} a side, stored with --record-samples"
        )
    return _decide(before, after, factor)


def _decide(before: Cell, after: Cell, factor: float) -> Row:
    first, second = statistics.median(before.samples), statistics.median(after.samples)
    if min(first, second) <= 0.0:
        return Row(before.name, Change.NOT_COMPARABLE, "a duration of zero or less", first, second)
    p = float(mannwhitneyu(before.samples, after.samples, alternative="two-sided").pvalue)
    apart = max(first, second) / min(first, second) > factor
    change, reason = Change.SAME, ""
    if apart and p < P_VALUE:
        change = Change.SLOWER if second > first else Change.FASTER
    elif apart:
        change, reason = Change.INCONCLUSIVE, "samples too scattered"
    return Row(before.name, change, reason, first, second, p)


def _skipped(cell: Cell) -> bool:
    return cell.value is not None and cell.value != cell.value
