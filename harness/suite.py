"""A suite: the one declaration of an operation from which every gate, test and benchmark is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from harness.case import Case

if TYPE_CHECKING:
    from harness.inputs.draw import Draw

Inputs = dict[str, Any]
"""Keyword arguments of an implementation: tensors, and plain Python values where the operation takes them."""


@dataclass(frozen=True)
class Tolerance:
    """How far an output may be from the reference: ``|found - expected| <= atol + rtol * |expected|``.

    ``exact`` compares bytes. ``row_rtol`` bounds the relative error of each row's norm
    (``||found - expected|| / ||expected||`` along the last axis), which an elementwise bound cannot see: many
    small errors of one sign. A reference may instead return ``Bounded`` with a bound for every element.
    """

    rtol: float = 0.0
    atol: float = 0.0
    row_rtol: float | None = None
    exact: bool = False

    @classmethod
    def bitwise(cls) -> Tolerance:
        """Bytes equal: for codes, indices and everything whose rounding is part of the contract."""
        return cls(exact=True)


@dataclass(frozen=True)
class Bounded:
    """A reference value with its own error bound per element (same shape), e.g. gamma_K * (|A| @ |B|)."""

    value: torch.Tensor
    bound: torch.Tensor


@dataclass(frozen=True)
class Contract:
    """What an operation promises beyond its values. A gate checks exactly what is promised here.

    ``rows``: inputs whose leading axis is a batch of independent rows (batch invariance and permutation
    equivariance are then checked, all of them cut and permuted together; outputs follow the same axis).
    ``strided``: inputs that may have any strides and must then give the right result; the others may refuse.
    ``out``: whether the implementation takes ``out=`` (a tensor, or a tuple in the order of ``outputs``).
    ``mutates``: inputs written in place. ``reuses_output``: a call may overwrite what the call before returned
    (results live in a workspace of the operation). ``max_compiles``: compiled kernels allowed over all sizes of
    ``sweep``. ``compilable``: whether ``torch.compile(fullgraph=True)`` must be able to trace the call.
    """

    capturable: bool = True
    deterministic: bool = True
    rows: tuple[str, ...] = ()
    strided: tuple[str, ...] = ()
    out: bool = False
    mutates: tuple[str, ...] = ()
    reuses_output: bool = False
    max_compiles: int = 0
    compilable: bool = False


@dataclass(frozen=True)
class Cost:
    """What a perfect kernel needs: bytes read and written once each, and floating-point operations."""

    bytes: int
    flops: int = 0


@dataclass(frozen=True)
class Implementation:
    """One way to compute the operation: called with the suite's inputs as keyword arguments.

    ``worlds`` limits where it can run (a CUDA kernel names ``("cuda",)``). ``may_crash`` runs every trial of it
    in a process of its own. ``requires`` returns None, or why it cannot run on this machine. ``kernels`` are names
    (may hold ``*``) of kernels or operators that a call must run: with them a silent fallback to another way of
    computing the same numbers is a failure of the capture gate.
    """

    call: Callable[..., Any]
    worlds: tuple[str, ...] = ("cpu", "fake-cuda", "cuda")
    contract: Contract | None = None
    may_crash: bool = False
    requires: Callable[[], str | None] | None = None
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """One operation: inputs of a case, reference, implementations, tolerance, cost, memory and contract.

    - ``inputs(case, draw)`` builds the keyword arguments; ``draw`` makes tensors of the case's data regime on
      the right device (a fake one in the fake world, where nothing is computed or allocated).
    - ``reference(**inputs)`` computes the outputs in higher precision, in a code path of its own.
    - ``outputs`` names what implementations return (a tensor, or a tuple in this order).
    - ``tolerance`` is one for all outputs or a mapping by output name.
    - ``memory(case)`` is the largest peak in bytes, inputs and outputs included; None means not judged.
    - ``sweep`` names the size along which memory growth and recompiles are examined (usually ``"m"``).
    - ``checkpoint_cases(tensors)`` makes cases from real weights: it gets ``{name: (shape, dtype name)}``.
    """

    name: str
    inputs: Callable[[Case, Draw], Inputs]
    reference: Callable[..., Any]
    implementations: Mapping[str, Implementation]
    cases: Sequence[Case]
    outputs: tuple[str, ...] = ("out",)
    tolerance: Tolerance | Mapping[str, Tolerance] = field(default_factory=Tolerance.bitwise)
    contract: Contract = field(default_factory=Contract)
    cost: Callable[[Case], Cost] | None = None
    memory: Callable[[Case], int] | None = None
    sweep: str | None = None
    checkpoint_cases: Callable[[Mapping[str, tuple[tuple[int, ...], str]]], Sequence[Case]] | None = None
    timeout_s: float = 120.0
    doc: str = ""

    def __post_init__(self) -> None:
        if not self.implementations:
            raise ValueError(f"suite {self.name!r} has no implementations")
        object.__setattr__(self, "cases", tuple(self.cases))  # a generator would be empty the second time
        if not isinstance(self.tolerance, Tolerance) and set(self.tolerance) != set(self.outputs):
            raise ValueError(
                f"suite {self.name!r} has tolerances for {', '.join(self.tolerance)}, "
                f"its outputs are {', '.join(self.outputs)}"
            )
        ids = [case.id for case in self.cases]
        repeated = sorted({name for name in ids if ids.count(name) > 1}) if len(set(ids)) < len(ids) else []
        if repeated:
            raise ValueError(f"suite {self.name!r} declares cases twice: {', '.join(repeated[:5])}")

    def contract_of(self, implementation: str) -> Contract:
        """The implementation's own contract where it has one, else the suite's."""
        return self.implementations[implementation].contract or self.contract

    def tolerance_of(self, output: str) -> Tolerance:
        if isinstance(self.tolerance, Tolerance):
            return self.tolerance
        return self.tolerance[output]

    def named_outputs(self, result: Any) -> dict[str, Any]:
        """What an implementation returned, by the names in ``outputs``; ValueError if the count differs."""
        values = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if len(values) != len(self.outputs):
            raise ValueError(f"{self.name}: expected {len(self.outputs)} outputs {self.outputs}, got {len(values)}")
        return dict(zip(self.outputs, values, strict=True))
