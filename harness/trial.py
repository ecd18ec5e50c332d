"""A trial: one implementation of one suite on one case in one world, as a gate sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from harness.annotate import annotate
from harness.case import Case
from harness.compare import Comparison, compare
from harness.suite import Bounded, Contract, Implementation, Inputs, Suite, Tolerance
from harness.verdict import Findings
from harness.worlds.base import World


@dataclass(frozen=True)
class Trial:
    """What a gate judges, with the few things every gate does with it."""

    suite: Suite
    implementation: str
    case: Case
    world: World

    @property
    def impl(self) -> Implementation:
        return self.suite.implementations[self.implementation]

    @property
    def contract(self) -> Contract:
        return self.suite.contract_of(self.implementation)

    def inputs(self, salt: int = 0, case: Case | None = None) -> Inputs:
        """Fresh inputs of the case (or of a sibling case); another salt gives other data of the same regime."""
        with annotate("inputs", "phase"):
            chosen = case or self.case
            return self.suite.inputs(chosen, self.world.draw(chosen, salt))

    def call(self, inputs: Inputs, **extra: Any) -> dict[str, Any]:
        """Call the implementation and wait for it; outputs by name."""
        with annotate(f"{self.suite.name}:{self.implementation}", "kernel"):
            result = self.impl.call(**inputs, **extra)
            self.world.synchronize()
        return self.suite.named_outputs(result)

    def bound(self, inputs: Inputs) -> Callable[[], Any]:
        """The bare call, for worlds that capture or meter it: no ranges, no synchronisation."""
        return lambda: self.impl.call(**inputs)

    def reference(self, inputs: Inputs) -> dict[str, Any]:
        """The reference on clones of the inputs, so that it can neither be fed nor spoiled by an implementation."""
        with annotate("reference", "phase"):
            return self.suite.named_outputs(self.suite.reference(**clone(inputs)))

    def compare(
        self, outputs: dict[str, Any], expected: dict[str, Any], findings: Findings, what: str = ""
    ) -> dict[str, Comparison]:
        """Check every output against its reference under the suite's tolerance."""
        results = {}
        for name, value in outputs.items():
            result = compare(value, expected[name], self.suite.tolerance_of(name))
            results[name] = result
            label = f"{what}{name}: " if len(outputs) > 1 or what else ""
            findings.check(
                result.ok,
                f"{label}{result.reason}" + (f", {result.where}" if result.where else ""),
                result.expected,
                result.found,
            )
        return results


def tensors_of(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensor arguments among inputs or outputs."""
    return {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}


def clone(values: Any) -> Any:
    """A deep copy of tensors in a structure, strides kept; everything else as it is."""

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_contiguous():
            return value.clone()
        fresh = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        # an expanded tensor has fewer elements than its shape says; copy what is there
        extent = (
            1 + sum((s - 1) * st for s, st in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
        )
        fresh.as_strided((extent,), (1,)).copy_(value.as_strided((extent,), (1,)))
        return fresh

    return tree_map(copy, values)


def overwrite(target: Inputs, source: Inputs) -> None:
    """Copy new values into the buffers of ``target``: same addresses, new data.

    As a raw kernel or a replayed graph does it: the version counters of the tensors do not move.
    """
    for name, value in tensors_of(target).items():
        value.data.copy_(source[name])


def bits(value: torch.Tensor) -> torch.Tensor:
    """Bytes of a tensor as a fresh flat uint8 tensor, for bitwise comparison and checksums."""
    dense = value.detach().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # a single element may have any stride, and view() minds
    return (flat if flat.dtype is torch.uint8 else flat.view(torch.uint8)).clone()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors, on any devices, have the same shape, dtype and bytes (signs of zero and NaN included)."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(bits(a), bits(b).to(a.device)))


def first_difference(a: torch.Tensor, b: torch.Tensor) -> str:
    """Where two tensors of one shape differ, in words."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{tuple(a.shape)} {a.dtype} against {tuple(b.shape)} {b.dtype}".replace("torch.", "")
    result = compare(b, a, Tolerance.bitwise())
    return f"{result.reason}, {result.where}: {result.expected} and {result.found}"


def check_same(outputs: dict[str, Any], expected: dict[str, Any], findings: Findings, what: str) -> None:
    """Check that every output has the very bits of ``expected``; ``what`` opens the reason ("repeat 2: ")."""
    for name, value in tensors_of(outputs).items():
        equal = same_bits(value, expected[name])
        difference = "" if equal else first_difference(expected[name], value)
        findings.check(equal, f"{what}{name} has other bits", "identical bits", difference)


def value_of(expected: torch.Tensor | Bounded) -> torch.Tensor:
    return expected.value if isinstance(expected, Bounded) else expected
