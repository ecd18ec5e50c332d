"""Recompile: nothing is compiled once an operation is warm."""

from __future__ import annotations

from typing import ClassVar

from harness.case import Case
from harness.compile_watch import watch_compiles
from harness.gates.base import Gate
from harness.suite import Inputs, Suite
from harness.tracing import OperatorWatch, trace_whole
from harness.trial import Trial, check_same, clone
from harness.verdict import Findings

LADDER = (1, 2, 7, 8, 16, 17, 64, 127, 128, 129, 512, 1024, 2048, 4096, 8192)

REFERENCE_UP_TO = 17
"""Sizes of the ladder that are also held against the reference, which takes seconds for the large ones."""


class Recompile(Gate):
    """A second call compiles nothing, all sizes share few kernels, warm kernels are right, tracing sees the truth."""

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
        fresh = trial.inputs(salt=1)
        # the copies: what a kernel has bound itself to must not be what it is given
        trial.compare(trial.call(clone(fresh)), trial.reference(fresh), findings, "other data at other addresses: ")
        if trial.suite.sweep is not None:
            self._sweep(trial, findings)
        self._traced(trial, inputs, findings)  # last: Dynamo gives up on code that it has met under a dispatch mode

    def _traced(self, trial: Trial, inputs: Inputs, findings: Findings) -> None:
        """Custom operators do what they declare, and the call can be traced where that is promised."""
        watch = OperatorWatch()
        with watch:
            expected = clone(trial.call(clone(inputs)))
        findings.measure("custom_operators", len(watch.seen), "", "custom operators held against their declarations")
        for line in watch.problems:
            findings.check(False, line, "what was declared", "something else")
        if not trial.contract.compilable:
            return
        try:
            traced = trial.suite.named_outputs(trace_whole(trial.impl.call, clone(inputs)))
        except Exception as error:
            line = (str(error).strip().splitlines() or ["(no message)"])[0][:160]
            findings.check(
                False, "torch.compile(fullgraph=True) cannot trace it", "one graph", f"{type(error).__name__}: {line}"
            )
            return
        if trial.contract.deterministic:
            check_same(traced, expected, findings, "traced by torch.compile: ")
        else:
            trial.compare(traced, trial.reference(inputs), findings, "traced by torch.compile: ")

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
        for size in (size for size in sizes if size <= REFERENCE_UP_TO):
            inputs = trial.inputs(case=trial.case.replace(**{sweep: size}))
            outputs = trial.call(clone(inputs))
            trial.compare(outputs, trial.reference(inputs), findings, f"{sweep}={size}, warm: ")


def _largest(suite: Suite, case: Case) -> bool:
    """Whether no sibling (equal but for the sweep) that runs in the same worlds and tier is larger."""
    sweep = suite.sweep
    assert sweep is not None
    siblings = [c for c in suite.cases if (c.dtype, c.worlds, c.tier) == (case.dtype, case.worlds, case.tier)]
    same = [c[sweep] for c in siblings if c.replace(**{sweep: case[sweep]}).params == case.params]
    return case[sweep] == max(same, default=case[sweep])
