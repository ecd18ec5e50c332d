"""What a gate is: a name, the worlds it can judge in, and one function from a trial to findings."""

from __future__ import annotations

from typing import ClassVar

from harness.case import DEFAULT_REGIME, Case
from harness.suite import Suite
from harness.trial import Trial
from harness.verdict import Findings


class Gate:
    """Judges one trial. A subclass has a one-line doc: the sentence ``harness list`` and the docs show for it."""

    name: ClassVar[str]
    worlds: ClassVar[tuple[str, ...]]
    every_regime: ClassVar[bool] = False
    """Whether the verdict can depend on the values; if not, one data regime per shape is enough."""
    may_crash: ClassVar[bool] = False
    """Whether the gate provokes faults that can kill the process on a GPU: it then runs in one of its own."""

    exclusive: ClassVar[bool] = False
    """Whether the gate needs the GPU to itself: another process would change what it reads of the device."""

    def applies(self, suite: Suite, implementation: str, case: Case) -> str | None:
        """None, or why the gate has nothing to judge there (such a trial is never made)."""
        if not self.every_regime and not stands_for_shape(suite, case):
            return "the verdict does not depend on the data regime"
        return None

    def judge(self, trial: Trial, findings: Findings) -> None:
        """Make checks on ``findings``. An exception is a FAIL of the trial, with the exception as its reason."""
        raise NotImplementedError


def stands_for_shape(suite: Suite, case: Case) -> bool:
    """The normal regime stands for a shape; a shape without it is represented by its first case."""
    siblings = [c for c in suite.cases if (c.params, c.dtype, c.routing) == (case.params, case.dtype, case.routing)]
    regimes = [c.regime for c in siblings]
    if not siblings:  # a case from outside the suite's own list: real weights
        return False
    chosen = DEFAULT_REGIME if DEFAULT_REGIME in regimes else regimes[0]
    return case.regime == chosen and case.source is None
