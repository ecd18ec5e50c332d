"""What the capture lint reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch


class Severity(StrEnum):
    """How bad a finding is, worst last."""

    WARMUP = "warmup"
    """Happens only before the capture: a table made on the first call, a kernel compiled once."""
    NOTE = "note"
    """Legal; what the owner of the graph must know (a buffer to keep alive, an operator not looked into)."""
    HAZARD = "hazard"
    """The capture succeeds and a replay is stale, does less than the call, or reads memory that moved."""
    BREAK = "break"
    """The capture raises."""
    ERROR = "error"
    """The call could not be followed to its end, so nothing is known about the rest of it."""


@dataclass(frozen=True)
class Finding:
    """One thing seen.

    ``rule`` is a stable name to filter by, ``what`` the sentence for a person, ``where`` the line of the caller's
    code, ``call`` the number of the call (1 up to the number of warm-ups, then the captured ones).
    """

    rule: str
    severity: Severity
    what: str
    where: str = ""
    call: int = 0

    def __str__(self) -> str:
        return f"[{self.severity}] {self.rule}: {self.what} ({self.where}, call {self.call})"


@dataclass(frozen=True)
class TensorMeta:
    """What is known of a tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str


@dataclass(frozen=True)
class CaptureReport:
    """The lint of one callable: everything found, and what the captured call did."""

    findings: tuple[Finding, ...]
    op_trace: tuple[str, ...]
    """Names of the operators and kernels of the last captured call, in order."""
    device_ops: int
    """How many of them put work on the device (views and allocations do not): 0 means an empty graph."""
    result: Any
    """The result with ``TensorMeta`` in place of tensors; None if the call raised."""

    @property
    def verdict(self) -> str:
        """``break``, ``error``, ``hazard`` or ``ok``.

        A break outranks an error, since a call often raises as a consequence of it; an error outranks a hazard,
        since what was not seen may be worse.
        """
        severities = {finding.severity for finding in self.findings}
        order = (Severity.BREAK, Severity.ERROR, Severity.HAZARD)
        return next((str(severity) for severity in order if severity in severities), "ok")

    def of(self, *severities: Severity) -> tuple[Finding, ...]:
        """The findings with one of these severities."""
        return tuple(finding for finding in self.findings if finding.severity in severities)

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {len(self.op_trace)} operators, {self.device_ops} on the device"]
        return "\n".join([*lines, *(f"  {finding}" for finding in self.findings)])
