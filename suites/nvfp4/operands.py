"""Random NVFP4 operands for products, and the exact product that they stand for.

Codes are uniform bytes: all sixteen are numbers. Block scales are powers and their neighbours around 1, and every block
row has another one, so that a scale taken from a wrong row or column shows.
"""

from __future__ import annotations

import torch

from harness import Bounded, Draw
from suites.nvfp4 import oracle

FP32 = 2.0**-24
BF16 = 2.0**-8
_LOW, _HIGH = 0x28, 0x48
"""E4M3 bytes 0.25 to 4.0."""


def draw_codes(draw: Draw, *shape: int) -> torch.Tensor:
    """Packed codes: uint8 of this shape (the last axis is K / 2)."""
    return draw.integers(0, 256, *shape, dtype="u8")


def draw_scales(draw: Draw, *shape: int) -> torch.Tensor:
    """Linear block scales, float8_e4m3fn of this shape (the last axis is K / 16)."""
    return draw.integers(_LOW, _HIGH, *shape, dtype="u8").view(torch.float8_e4m3fn)


def exact(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """value(code) * scale in float64, linear scales."""
    return oracle.dequantize(codes, scales, None)


def product(a: torch.Tensor, b: torch.Tensor, alpha: torch.Tensor, rounding: float = BF16) -> Bounded:
    """``alpha * a @ b.T`` of float64 operands, with the bound of fp32 accumulation in any order and one rounding.

    gamma_K = K u / (1 - K u) with u = 2^-24 (Higham, Accuracy and Stability, section 3.1), one more term for alpha;
    then ``rounding`` of the result's magnitude.
    """
    value = (a @ b.T) * alpha.double()
    terms = a.shape[1] + 2
    gamma = terms * FP32 / (1 - terms * FP32)
    accumulated = gamma * ((a.abs() @ b.abs().T) * alpha.double().abs())
    return Bounded(value, accumulated + rounding * (value.abs() + accumulated))
