"""Recompile: nothing is compiled once an operation is warm."""

from __future__ import annotations

from typing import ClassVar

from harness.case import Case
from harness.compile_watch import watch_compiles
from harness.gates.base import Gate
from harness.suite import Suite
from harness.trial import Trial, check_same, clone
from harness.verdict import Findings

LADDER = (1, 2, 7, 8, 16, 17, 64, 127, 128, 129, 512, 1024, 2048, 4096, 8192)


class Recompile(Gate):
    """A second call compiles nothing, all sizes share a few kernels, warm kernels are right at other addresses."""

    name: ClassVar[str] = "recompile"
    worlds: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    def applies(self, suite: Suite, implementation: str, case: Case) -> str | None:
        reason = super().applies(suite, implementation, case)
        if reason is None and suite.sweep is not None and not _largest(suite, case):
            return f"the case with the largest {suite.sweep} goes through all sizes"
        return reason

    def judge(self, trial: Trial, findings: Findings) -> None:
        inputs = trial.inputs()
        with watch_compiles() as first_call:
            first = clone(trial.call(clone(inputs)))
        with watch_compiles() as events:
            second = trial.call(clone(inputs))
        findings.measure("compiles_first_call", len(first_call), "", "compiles in the first call of this process")
        findings.check(not events, "the second call compiled", "no compile", ", ".join(events[:5]))
        if trial.contract.deterministic:
            check_same(second, first, findings, "other addresses: ")
        if trial.suite.sweep is not None:
            self._sweep(trial, findings)

    def _sweep(self, trial: Trial, findings: Findings) -> None:
        """The whole ladder of sizes up and down: few compiles on the way up, none on the way down."""
        sweep = trial.suite.sweep
        assert sweep is not None
        top = trial.case[sweep]
        sizes = [size for size in LADDER if size <= top] or [top]
        with watch_compiles() as events:
            warm = {size: clone(trial.call(trial.inputs(case=trial.case.replace(**{sweep: size})))) for size in sizes}
        findings.measure("compiles_sweep", len(events), "", f"compiles over {sweep} from {sizes[0]} to {sizes[-1]}")
        limit = trial.contract.max_compiles
        findings.check(
            len(events) <= limit,
            f"too many kernels for {sweep} from {sizes[0]} to {sizes[-1]}",
            f"at most {limit} compiles",
            f"{len(events)}: {', '.join(events[:5])}",
        )
        with watch_compiles() as events:
            back = {
                size: trial.call(trial.inputs(case=trial.case.replace(**{sweep: size}))) for size in reversed(sizes)
            }
        findings.check(not events, "going through the sizes again compiled", "no compile", ", ".join(events[:5]))
        if trial.contract.deterministic:
            for size in sizes:
                check_same(back[size], warm[size], findings, f"{sweep}={size}, in the other order: ")


def _largest(suite: Suite, case: Case) -> bool:
    """Whether no sibling (equal but for the sweep) that runs in the same worlds and tier is larger."""
    sweep = suite.sweep
    assert sweep is not None
    siblings = [c for c in suite.cases if (c.dtype, c.worlds, c.tier) == (case.dtype, case.worlds, case.tier)]
    same = [c[sweep] for c in siblings if c.replace(**{sweep: case[sweep]}).params == case.params]
    return case[sweep] == max(same, default=case[sweep])
