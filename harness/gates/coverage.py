"""Coverage: every output element is written."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from harness.buffers import POISONS, GuardedAllocations, guarded
from harness.gates.base import Gate
from harness.trial import Trial, bits, clone, first_difference, same_bits, tensors_of
from harness.verdict import Findings


class Coverage(Gate):
    """Two different poisons in every fresh buffer give identical bits, and ``out=`` is the buffer written."""

    name: ClassVar[str] = "coverage"
    worlds: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    def judge(self, trial: Trial, findings: Findings) -> None:
        inputs = trial.inputs()
        plain = clone(trial.call(clone(inputs)))
        runs = []
        for poison in POISONS:
            with GuardedAllocations(poison=poison) as allocations:
                outputs = trial.call(clone(inputs))
            runs.append(tensors_of(clone(outputs)))
            for operator in sorted(allocations.opaque):
                findings.note(f"{operator} allocates inside; what it leaves unwritten shows only if it is an output")
        self._compare(trial, runs, findings, "")
        if trial.contract.out:
            self._given_out(trial, inputs, plain, findings)

    def _given_out(self, trial: Trial, inputs: dict[str, Any], plain: dict[str, Any], findings: Findings) -> None:
        runs = []
        for poison in POISONS:
            buffers = {
                name: guarded(value, f"out {name}", 0xA5, fill=poison) for name, value in tensors_of(plain).items()
            }
            given = tuple(buffer.tensor for buffer in buffers.values())
            outputs = trial.call(clone(inputs), out=given if len(given) > 1 else given[0])
            for (name, value), own in zip(outputs.items(), given, strict=True):
                findings.check(
                    value.data_ptr() == own.data_ptr() and value.shape == own.shape,
                    f"{name}: out= was given, and another tensor was returned",
                    "the tensor given as out=",
                    "other memory",
                )
            for buffer in buffers.values():
                damage = buffer.damage()
                findings.check(damage is None, damage or "", "writes inside out= only")
            runs.append(dict(zip(outputs, map(torch.clone, given), strict=True)))
        self._compare(trial, runs, findings, "out= ")
        if trial.contract.deterministic:
            for name, value in runs[0].items():
                findings.check(
                    same_bits(value, plain[name]),
                    f"out= {name} differs from the result without it",
                    "the same bits",
                    "" if same_bits(value, plain[name]) else first_difference(plain[name], value),
                )

    def _compare(self, trial: Trial, runs: list[dict[str, Any]], findings: Findings, what: str) -> None:
        first, second = runs
        for name, value in first.items():
            unwritten = _still_poison(value, second[name])
            findings.check(
                unwritten is None,
                f"{what}{name}: elements were never written" + (f", {unwritten}" if unwritten else ""),
                "every element written",
                "poison left in the output",
            )
            if trial.contract.deterministic and unwritten is None:
                equal = same_bits(value, second[name])
                findings.check(
                    equal,
                    f"{what}{name} depends on what fresh memory held",
                    "identical bits under both poisons",
                    "" if equal else first_difference(value, second[name]),
                )


def _still_poison(first: torch.Tensor, second: torch.Tensor) -> str | None:
    """Elements that hold the first poison in one run and the second in the other, in words, or None."""
    size = first.element_size()
    a, b = bits(first).view(-1, size), bits(second).view(-1, size)
    if a.shape != b.shape:
        return None
    left = (a == POISONS[0]).all(1) & (b == POISONS[1]).all(1)
    count = int(left.sum())
    if not count:
        return None
    flat = int(left.to(torch.uint8).argmax())
    index = []
    for extent in reversed(first.shape):
        index.append(flat % extent)
        flat //= extent
    return f"{count} of {first.numel()}, the first at {list(reversed(index))}"
