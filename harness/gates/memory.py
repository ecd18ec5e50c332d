"""Memory: the peak stays within the suite's formula, at every size, and nothing grows."""

from __future__ import annotations

from typing import ClassVar

from harness.case import Case
from harness.gates.base import Gate
from harness.suite import Suite
from harness.trial import Trial
from harness.verdict import Findings
from harness.worlds.base import Call, MemoryAnswer

SLOPE_SLACK = 0.05
"""Share by which measured growth may exceed the formula's: rounding of small pieces, not a hidden factor."""

SLOPE_FLOOR = 1 << 20
"""Bytes of growth that are never held against anyone: the allocator's own granularity."""


DEVICE_GRANULE = 2 << 20
"""Bytes in which a CUDA driver hands out memory; one of them can come and go without anybody's doing."""


class Memory(Gate):
    """Peak bytes are within the formula at several sizes (the slope finds a hidden factor), and do not grow."""

    name: ClassVar[str] = "memory"
    worlds: ClassVar[tuple[str, ...]] = ("fake-cuda", "cuda")
    exclusive: ClassVar[bool] = True

    def applies(self, suite: Suite, implementation: str, case: Case) -> str | None:
        if suite.memory is None:
            return "the suite declares no memory formula"
        return super().applies(suite, implementation, case)

    def judge(self, trial: Trial, findings: Findings) -> None:
        formula = trial.suite.memory
        assert formula is not None
        answer = _ask(trial, trial.case)
        limit = formula(trial.case)
        findings.measure("inputs", answer.inputs, "B", "inputs of the call")
        findings.measure("peak", answer.requested, "B", "largest sum of live tensor bytes, inputs included")
        findings.measure("peak_allocated", answer.allocated, "B", "the same in blocks of the caching allocator")
        findings.measure("limit", limit, "B", "the suite's formula")
        if answer.inputs:
            findings.measure("peak_over_inputs", round(answer.requested / answer.inputs, 4), "x")
        for line in answer.alive:
            findings.note(f"alive at the peak: {line}")
        if answer.lower_bound:
            findings.note(f"a lower bound: hidden temporaries of {', '.join(answer.lower_bound)} are not predicted")
        findings.check(
            answer.requested <= limit,
            f"peak memory is above the formula (reached in {answer.at or 'the call'})",
            f"<= {_mib(limit)}",
            f"{_mib(answer.requested)} ({answer.requested / max(answer.inputs, 1):.2f} x the inputs)",
        )
        findings.check(
            answer.growth <= 0,
            "memory grows with every call",
            "no bytes held after results are dropped",
            f"{answer.growth} B more",
        )
        if answer.graph_pool is not None:
            findings.measure("graph_pool", answer.graph_pool, "B", "kept by a captured graph of the call")
        if answer.device is not None:
            findings.measure("device_lost", answer.device, "B", "device memory that further calls left taken")
            findings.check(
                answer.device < DEVICE_GRANULE,
                "calls leave device memory taken outside the allocator",
                f"less than {_mib(DEVICE_GRANULE)}, the driver's granule",
                _mib(answer.device),
            )
        self._slope(trial, answer, findings)

    def _slope(self, trial: Trial, answer: MemoryAnswer, findings: Findings) -> None:
        """Halve the sweep size twice: the peak may not grow faster than the formula says."""
        sweep, formula = trial.suite.sweep, trial.suite.memory
        if sweep is None or formula is None or trial.case[sweep] < 4:
            return
        larger, peak = trial.case, answer.requested
        for _ in range(2):
            smaller = larger.replace(**{sweep: larger[sweep] // 2})
            below = _ask(trial, smaller, ledgers=False).requested
            allowed = formula(larger) - formula(smaller)
            grown = peak - below
            findings.check(
                grown <= allowed * (1 + SLOPE_SLACK) + SLOPE_FLOOR,
                f"peak memory grows too fast from {sweep}={smaller[sweep]} to {larger[sweep]}",
                f"<= {_mib(allowed)} more",
                f"{_mib(grown)} more",
            )
            larger, peak = smaller, below


def _ask(trial: Trial, case: Case, *, ledgers: bool = True) -> MemoryAnswer:
    def build() -> Call:
        return trial.bound(trial.inputs(case=case))

    return trial.world.memory(build, ledgers=ledgers)


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.2f} MiB"
