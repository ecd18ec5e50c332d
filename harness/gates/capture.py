"""Capture: a CUDA graph can record the operation, and records all of it."""

from __future__ import annotations

import fnmatch
from collections import Counter
from typing import ClassVar

from harness.gates.base import Gate
from harness.trial import Trial, tensors_of
from harness.verdict import Findings


class Capture(Gate):
    """Nothing in the call breaks or poisons a CUDA-graph capture; on a GPU it is captured and its kernels counted."""

    name: ClassVar[str] = "capture"
    worlds: ClassVar[tuple[str, ...]] = ("fake-cuda", "cuda")

    def judge(self, trial: Trial, findings: Findings) -> None:
        inputs = trial.inputs()
        answer = trial.world.capture(trial.bound(inputs), inputs)
        for line in answer.notes:
            findings.note(line)
        if not trial.contract.capturable:
            findings.note("declared not capturable; what stands in the way:")
            for line in (*answer.breaks, *answer.hazards):
                findings.note(line)
            findings.check(
                bool(answer.breaks or answer.hazards),
                "declared not capturable, and nothing stands in the way",
                "a break or a hazard, or Contract(capturable=True)",
                "none",
            )
            return
        for line in answer.breaks:
            findings.check(False, f"capture breaks: {line}", "nothing that breaks a capture")
        for line in answer.hazards:
            findings.check(False, f"capture hazard: {line}", "nothing that makes a replay stale")
        findings.check(not answer.breaks and not answer.hazards, "not safe to capture")
        self._declared(trial, answer.ran, findings)
        if answer.nodes is not None:
            work = _work(inputs) and not answer.passes_through
            self._nodes(trial, answer.nodes, answer.kernels, answer.eager_kernels, findings, work)

    def _declared(self, trial: Trial, ran: tuple[str, ...] | None, findings: Findings) -> None:
        """The kernels that the implementation names really ran: something else may have stepped in for them."""
        if ran is None or not trial.impl.kernels:
            return
        for pattern in trial.impl.kernels:
            findings.check(
                any(fnmatch.fnmatchcase(name, pattern) for name in ran),
                f"no kernel {pattern} ran: another way of computing the result has stepped in",
                f"a kernel called {pattern}",
                ", ".join(dict.fromkeys(ran)) or "nothing",
            )

    def _nodes(
        self,
        trial: Trial,
        nodes: int,
        kernels: tuple[str, ...] | None,
        eager: tuple[str, ...] | None,
        findings: Findings,
        work: bool,
    ) -> None:
        findings.measure("graph_nodes", nodes, "", "nodes of the captured graph")
        if work:
            findings.check(nodes > 0, "the captured graph is empty: a replay does nothing", "at least one node", "0")
        if kernels is None or eager is None:
            findings.note("the profiler saw no kernels on this machine, so graph and eager kernels are not compared")
            return
        findings.measure("kernels", len(kernels), "", "kernels of one replay")
        missing, extra = Counter(eager) - Counter(kernels), Counter(kernels) - Counter(eager)
        findings.check(
            not missing and not extra,
            "the graph does not run the kernels of the eager call",
            f"{len(eager)} kernels, as eagerly",
            f"missing {_names(missing)}; extra {_names(extra)}",
        )


def _work(inputs: dict[str, object]) -> bool:
    """Whether there is anything to compute: an empty batch may well be an empty graph."""
    return all(tensor.numel() for tensor in tensors_of(inputs).values())


def _names(counter: Counter[str]) -> str:
    return ", ".join(f"{name[:80]} x{count}" for name, count in counter.most_common(4)) or "none"
