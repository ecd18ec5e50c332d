"""``dequantize_nvfp4``: every code under every scale, exactly."""

from __future__ import annotations

import functools

import torch

from harness import Case, Contract, Cost, Draw, Implementation, Inputs, Suite, Tolerance, grid, register
from kernels.nvfp4 import dequantize_nvfp4
from suites.nvfp4 import oracle

_ALL_SCALES = 127
"""E4M3 bytes 0x00 to 0x7E: the finite non-negative scales."""


def _random_bytes(case: Case, draw: Draw) -> Inputs:
    """Uniform bytes: every code is a number, so random nibbles are valid; scales leave out NaN only."""
    codes = draw.integers(0, 256, case["m"], case["k"] // 2, dtype="u8")
    scales = draw.integers(0, _ALL_SCALES, case["m"], case["k"] // 16, dtype="u8")
    return {"codes": codes, "scales": scales.view(torch.float8_e4m3fn)}


def _with_global(case: Case, draw: Draw) -> Inputs:
    return {**_random_bytes(case, draw), "global_scale": draw.full(2.0**-12 * (1.37 + draw.salt))}


def cost(case: Case) -> Cost:
    """Read codes and scales once, write bf16 once."""
    elements = case["m"] * case["k"]
    return Cost(bytes=elements // 2 + elements // 16 + 2 * elements)


def peak(case: Case) -> int:
    """Codes, scales and output, and one chunk's workspace in fp32."""
    elements = case["m"] * case["k"]
    return elements // 2 + elements // 16 + 2 * elements + 20 * min(elements, 1 << 22) + (1 << 17)


CASES = (
    grid(m=[0, 1, 2, 127, 129], k=576, dtype="bf16")
    + grid(m=64, k=[16, 288, 4096], dtype="bf16")
    + grid(m=[128, 8192], k=7168, dtype="bf16", worlds=("fake-cuda", "cuda"))
)

register(
    Suite(
        name="dequantize_nvfp4_bf16",
        doc="value(code) * block scale, exact in bf16",
        inputs=_random_bytes,
        reference=lambda codes, scales: oracle.dequantize(codes, scales, None),
        implementations={"torch": Implementation(dequantize_nvfp4)},
        cases=CASES,
        tolerance=Tolerance(rtol=0.0, atol=0.0),  # at most 6 significant bits: no rounding at all
        contract=Contract(rows=("codes", "scales"), strided=("codes", "scales"), out=True),
        cost=cost,
        memory=peak,
        sweep="m",
    )
)

register(
    Suite(
        name="dequantize_nvfp4_global",
        doc="value(code) * block scale * global scale, rounded once to bf16",
        inputs=_with_global,
        reference=lambda codes, scales, global_scale: oracle.dequantize(codes, scales, global_scale),
        implementations={"torch": Implementation(functools.partial(dequantize_nvfp4, dtype=torch.bfloat16))},
        cases=CASES,
        # one fp32 product (unit roundoff 2^-24), then one rounding to bf16 (2^-8)
        tolerance=Tolerance(rtol=2.0**-8 + 2.0**-23, row_rtol=2.0**-8),
        contract=Contract(rows=("codes", "scales"), strided=("codes", "scales"), out=True),
        cost=cost,
        memory=peak,
        sweep="m",
    )
)
