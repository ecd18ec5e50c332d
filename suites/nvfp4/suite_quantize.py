"""``quantize_to_nvfp4`` (own global scale) and ``quantize_activation_nvfp4`` (given one): bytes, memory, capture."""

from __future__ import annotations

import functools
from typing import Any

import torch

from harness import Case, Contract, Cost, Draw, Implementation, Inputs, Suite, register
from harness.dtypes import torch_dtype
from kernels.nvfp4 import quantize_activation_nvfp4, quantize_peak_bytes, quantize_to_nvfp4
from suites.nvfp4 import oracle
from suites.nvfp4.cases import EDGES, REAL_QUICK, VALUES, real_activations
from suites.nvfp4.values import GLOBAL_SCALE_ONE, SPECIAL

OVER_INPUT = 2.3
"""Peak over input bytes of a large operand, input included: 1.31 for input and output, the rest is workspace."""


def peak(case: Case) -> int:
    """What the quantiser promises, which is below 2.3 times the input from 8192 x 7168 in bf16 on."""
    promised = quantize_peak_bytes((case["m"], case["k"]), torch_dtype(case.dtype))
    elements = case["m"] * case["k"]
    if elements >= 8192 * 7168 and promised > OVER_INPUT * elements * case.itemsize:
        raise ValueError(f"{case.id}: the quantiser promises {promised} B, more than {OVER_INPUT} x its input")
    return promised


def cost(case: Case) -> Cost:
    """Read the operand once, write codes and scales once."""
    elements = case["m"] * case["k"]
    return Cost(bytes=elements * case.itemsize + elements // 2 + elements // 16)


def _own_scale(case: Case, draw: Draw) -> Inputs:
    x = draw.tensor(case["m"], case["k"])
    if case.regime in SPECIAL and x.numel():
        x[0, 0] = GLOBAL_SCALE_ONE
    return {"x": x}


def _reference_own_scale(x: torch.Tensor, compat: str | None = None) -> tuple[torch.Tensor, ...]:
    scale = oracle.global_scale(x, compat)
    return *oracle.quantize(x, scale, compat), scale


def _given_scale(case: Case, draw: Draw) -> Inputs:
    """Calibrated scales: exactly 1 for the special values, else one under which some of the data saturate."""
    scale = 1.0 if case.regime in SPECIAL else 2.0**-9 * (1.2345 + draw.salt)
    return {"x": draw.tensor(case["m"], case["k"]), "global_scale": draw.full(scale)}


register(
    Suite(
        name="quantize_to_nvfp4",
        doc="NVFP4 codes, block scales and global scale of a tensor",
        inputs=_own_scale,
        reference=_reference_own_scale,
        outputs=("codes", "scales", "global_scale"),
        implementations={"torch": Implementation(quantize_to_nvfp4)},
        cases=(*VALUES, *EDGES, *REAL_QUICK, *real_activations()),
        contract=Contract(strided=("x",)),
        cost=cost,
        memory=peak,
        sweep="m",
    )
)

register(
    Suite(
        name="quantize_to_nvfp4_modelopt",
        doc="the same with the bytes of ModelOpt 0.47, zero and underflow blocks included",
        inputs=_own_scale,
        reference=functools.partial(_reference_own_scale, compat="modelopt"),
        outputs=("codes", "scales", "global_scale"),
        implementations={"torch": Implementation(functools.partial(quantize_to_nvfp4, compat="modelopt"))},
        cases=(*VALUES, *EDGES),
        contract=Contract(strided=("x",)),
        cost=cost,
        memory=peak,
        sweep="m",
    )
)


def _reference_given_scale(x: torch.Tensor, global_scale: torch.Tensor) -> Any:
    return oracle.quantize(x, global_scale)


register(
    Suite(
        name="quantize_activation_nvfp4",
        doc="NVFP4 codes and block scales under a given global scale: the hot path",
        inputs=_given_scale,
        reference=_reference_given_scale,
        outputs=("codes", "scales"),
        implementations={"torch": Implementation(quantize_activation_nvfp4)},
        cases=(*VALUES, *EDGES, *REAL_QUICK, *real_activations()),
        contract=Contract(rows=("x",), strided=("x", "global_scale"), out=True),
        cost=cost,
        memory=peak,
        sweep="m",
    )
)
