"""Replay: a captured graph computes the right result when everything around it has changed."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from harness.gates.base import Gate
from harness.trial import Trial, check_same, clone, overwrite, tensors_of
from harness.verdict import Findings
from harness.worlds.cuda import captured


class Replay(Gate):
    """Replays with new values, lengths and routing, poisoned outputs and moved neighbours equal the eager call."""

    name: ClassVar[str] = "replay"
    worlds: ClassVar[tuple[str, ...]] = ("cuda",)
    may_crash: ClassVar[bool] = True

    def judge(self, trial: Trial, findings: Findings) -> None:
        if not trial.contract.capturable:
            findings.note("declared not capturable")
            findings.check(True, "")
            return
        inputs = trial.inputs()
        graph, static = captured(trial.bound(inputs))
        outputs = trial.suite.named_outputs(static)
        self._replay(trial, graph, outputs, inputs, findings, "the same data: ")
        for salt in (1, 2, 3):
            fresh = trial.inputs(salt=salt)
            if any(fresh[name].shape != value.shape for name, value in tensors_of(inputs).items()):
                findings.note(f"draw {salt} has other shapes; a graph has one")
                continue
            overwrite(inputs, fresh)
            _disturb(salt)
            self._replay(trial, graph, outputs, inputs, findings, f"new data {salt}: ")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._replay(trial, graph, outputs, inputs, findings, "on another stream: ")
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        self._compare(trial, outputs, inputs, findings, "after 20 replays back to back: ")

    def _replay(
        self, trial: Trial, graph: Any, outputs: dict[str, Any], inputs: dict[str, Any], findings: Findings, what: str
    ) -> None:
        mutated = {name: inputs[name].clone() for name in trial.contract.mutates}
        for name, value in tensors_of(outputs).items():
            if name not in trial.contract.mutates and not _is_input(value, inputs):
                _poison(value)
        graph.replay()
        torch.cuda.synchronize()
        got = clone(outputs)
        for name, value in mutated.items():
            inputs[name].copy_(value)
        self._compare(trial, got, inputs, findings, what)

    def _compare(
        self, trial: Trial, got: dict[str, Any], inputs: dict[str, Any], findings: Findings, what: str
    ) -> None:
        eager = trial.call(clone(inputs))
        if trial.contract.deterministic:
            check_same(got, eager, findings, what)
        else:
            trial.compare(got, trial.reference(inputs), findings, what)


def _is_input(value: torch.Tensor, inputs: dict[str, Any]) -> bool:
    return any(value.data_ptr() == tensor.data_ptr() for tensor in tensors_of(inputs).values())


def _poison(value: torch.Tensor) -> None:
    """All ones in every element the output can reach, so that a replay that writes nothing is seen."""
    if value.is_contiguous():
        value.as_strided((value.numel(),), (1,)).view(torch.uint8).fill_(0xFF)
    else:
        value.copy_(torch.full(value.shape, 0xFF, dtype=torch.uint8, device=value.device).to(value.dtype))


def _disturb(seed: int) -> None:
    """Free, reallocate and fill the memory around: a stale address now holds something else."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    kept = [torch.full((1 << shift,), 0xA5 ^ seed, dtype=torch.uint8, device="cuda") for shift in range(9, 27)]
    torch.cuda.synchronize()
    del kept
