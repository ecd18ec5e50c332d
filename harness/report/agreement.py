"""Prediction beside measurement: the fake world and the GPU on the same trials, case by case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.verdict import Status, Verdict

PREDICTED, MEASURED = "fake-cuda", "cuda"


@dataclass(frozen=True)
class Pair:
    """One trial judged in both worlds."""

    predicted: Verdict
    measured: Verdict

    @property
    def agree(self) -> bool:
        """Same status; a memory pair also needs peaks within 2 KiB of each other."""
        if self.predicted.status is not self.measured.status:
            return False
        off = self.peak_difference
        return off is None or abs(off) <= 2048

    @property
    def peak_difference(self) -> int | None:
        """Predicted minus measured peak in bytes (live tensor bytes, inputs included); None but for memory."""
        predicted, measured = self.predicted.figure("peak"), self.measured.figure("peak")
        if predicted is None or measured is None:
            return None
        return int(predicted) - int(measured)


def pairs(verdicts: Iterable[Verdict]) -> list[Pair]:
    """Trials that have a verdict of both worlds, in the order of the prediction."""
    verdicts = list(verdicts)
    measured = {_key(verdict): verdict for verdict in verdicts if verdict.world == MEASURED}
    return [
        Pair(verdict, measured[_key(verdict)])
        for verdict in verdicts
        if verdict.world == PREDICTED and _key(verdict) in measured
    ]


def agreement_markdown(found: Sequence[Pair], machine: str) -> str:
    """Counts and one row a trial; rows that disagree come first."""
    if not found:
        return "No trial was judged in both worlds.\n"
    agreeing = sum(pair.agree for pair in found)
    off = [abs(difference) for pair in found if (difference := pair.peak_difference) is not None]
    exact = sum(difference == 0 for difference in off)
    lines = [
        "# The fake world beside a GPU",
        "",
        f"{agreeing} of {len(found)} trials agree: the same status, and for memory peaks within 2 KiB.",
        f"Of {len(off)} peaks {exact} are predicted to the byte; the largest difference is {max(off, default=0):,} B.",
        f"Measured on {machine}.",
        "",
        "| trial | predicted | measured | predicted peak B | measured peak B | difference B |",
        "|---|---|---|---:|---:|---:|",
    ]
    for pair in sorted(found, key=lambda pair: pair.agree):
        p, m = pair.predicted, pair.measured
        peaks = [p.figure("peak"), m.figure("peak"), pair.peak_difference]
        cells = [f"{value:,}" if isinstance(value, int) else "" for value in peaks]
        name = f"`{p.suite}` {p.implementation} {p.gate} `{p.case}`"
        lines.append(f"| {name} | {_status(p)} | {_status(m)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _key(verdict: Verdict) -> tuple[str, str, str, str]:
    return verdict.suite, verdict.implementation, verdict.gate, verdict.case


def _status(verdict: Verdict) -> str:
    return str(verdict.status) if verdict.status is Status.PASS else f"**{verdict.status}** ({verdict.reason})"
