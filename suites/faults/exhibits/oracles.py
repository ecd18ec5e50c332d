"""Suites that cannot judge: their verdicts must be INVALID, however right the implementation is."""

from __future__ import annotations

from typing import Any

import torch

from harness import Case, Contract, Draw, Inputs, Tolerance, grid, register
from harness.verdict import Status
from suites.faults.operations import affine, affine_inputs, affine_reference
from suites.faults.rooms import Room

T = torch.Tensor


def _narrow(case: Case, draw: Draw) -> Inputs:
    """Values in [0.5, 1): a tolerance of 0.5 holds for every constant among them."""
    return {"x": draw.make(lambda s, g: 0.5 + 0.5 * torch.rand(s, generator=g), case["m"], case["k"], dtype="fp32")}


def _softmax_like(x: T) -> T:
    return x.double()


WIDE = Room(
    "museum_oracle_wide_tolerance",
    doc="values between 0.5 and 1 under an absolute tolerance of 0.5",
    inputs=_narrow,
    reference=_softmax_like,
    cases=grid(m=8, k=16, dtype="fp32"),
    tolerance=Tolerance(atol=0.5),
)


@WIDE.fault("K23", gate="correctness", mirrors="mlir-air#1427", severity="critical", status=Status.INVALID)
def oracle_tolerance_wider_than_range(x: T) -> T:
    """The tolerance is as wide as the range of the values, so every constant passes."""
    return x.clone()


register(WIDE.suite())

RELATIVE = Room(
    "museum_oracle_relative_tolerance",
    doc="2 x + y under a relative tolerance above 1",
    inputs=affine_inputs,
    reference=affine_reference,
    cases=grid(m=8, k=16, dtype="fp32"),
    tolerance=Tolerance(rtol=1.5, atol=0.1),
)


@RELATIVE.fault("K23", gate="correctness", mirrors="tritonbench defaults", severity="critical", status=Status.INVALID)
def oracle_zero_passes(x: T, y: T) -> T:
    """A relative tolerance above 100 % accepts zeros."""
    return affine(x, y)


register(RELATIVE.suite())


def _all_nan(x: T, y: T) -> T:
    return affine_reference(x, y) * float("nan")


NAN = Room(
    "museum_oracle_nan",
    doc="a reference that is NaN for finite inputs",
    inputs=affine_inputs,
    reference=_all_nan,
    cases=grid(m=8, k=16, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-6),
)


@NAN.fault(
    "K23",
    gate="correctness",
    mirrors="Liger-Kernel#259, cudnn-frontend#898",
    severity="critical",
    status=Status.INVALID,
)
def oracle_reference_is_nan(x: T, y: T) -> T:
    """The reference is NaN everywhere, and so is the kernel: they agree, and nothing was compared."""
    return affine(x, y) * float("nan")


register(NAN.suite())


def _shared(x: T, y: T) -> T:
    """What the kernel and its reference have in common, mistake included."""
    return 2 * x + y * 1.125


SHARED = Room(
    "museum_oracle_shared_code",
    doc="a reference that is the implementation",
    inputs=affine_inputs,
    reference=_shared,
    cases=grid(m=8, k=16, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-6),
)
SHARED.fault(
    "K23",
    gate="correctness",
    mirrors="aiter#3992: the reference had the kernel's rule",
    severity="critical",
    status=Status.INVALID,
    name="oracle_reference_is_kernel",
)(_shared)
register(SHARED.suite())


def _constant_inputs(case: Case, draw: Draw) -> Inputs:
    return {"x": draw.full(0.0, case["m"], case["k"])}


NOTHING = Room(
    "museum_oracle_nothing_to_see",
    doc="an input that is zero in the only case there is",
    inputs=_constant_inputs,
    reference=lambda x: 3.0 * x.double(),
    cases=grid(m=8, k=16, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-6),
)


@NOTHING.fault(
    "K23", gate="correctness", mirrors="eshkol#501: a gate that cannot fail", severity="high", status=Status.INVALID
)
def oracle_all_zero_data(x: T) -> T:
    """All data are zero in every case of the suite, so a kernel that does nothing is right."""
    return torch.zeros_like(x)


register(NOTHING.suite())


def _symmetric(case: Case, draw: Draw) -> Inputs:
    return {"x": draw.tensor(1, case["k"]).expand(case["m"], case["k"]).contiguous()}


ROWS = Room(
    "museum_oracle_equal_rows",
    doc="rows that are all the same",
    inputs=_symmetric,
    reference=lambda x: 3.0 * x.double(),
    cases=grid(m=8, k=16, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-6),
    contract=Contract(),
)


@ROWS.fault(
    "K23",
    gate="correctness",
    mirrors="public commit log: inputs that cannot tell",
    severity="high",
    status=Status.INVALID,
)
def oracle_rows_indistinguishable(x: T) -> T:
    """Every row of the data is the same: rows could be exchanged, and nobody would see it."""
    return 3 * x.roll(1, 0)


register(ROWS.suite())


def _huge_bound(**inputs: Any) -> Any:
    from harness import Bounded

    value = affine_reference(**inputs)
    return Bounded(value, torch.full_like(value, torch.inf))


BOUND = Room(
    "museum_oracle_infinite_bound",
    doc="a reference whose bound is infinite",
    inputs=affine_inputs,
    reference=_huge_bound,
    cases=grid(m=8, k=16, dtype="fp32"),
)


@BOUND.fault(
    "K23", gate="correctness", mirrors="BackendBench: tolerances ignored", severity="high", status=Status.INVALID
)
def oracle_infinite_bound(x: T, y: T) -> T:
    """The error bound overflows to infinity, and holds for everything."""
    return affine(x, y)


register(BOUND.suite())
