"""Zeroing every block whose scale is below the smallest E4M3 number."""

from __future__ import annotations

import torch

from suites.faults.quantizers._steps import Pair, quantize_by_steps, right_scale


def zero_threshold_2e_9(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """As `quantize_activation_nvfp4`, but a block with s < 2^-9 is zero.

    Fault (K04, special values): rounding to nearest sends s to 0 only up to 2^-10; from there to 2^-9 it rounds UP to
    2^-9, so these blocks are representable and are thrown away (block maximum 0.007 under global scale 1: 0.0078
    becomes 0). Gate: correctness (underflow ladder).
    """
    return quantize_by_steps(x, global_scale, scale=lambda s: right_scale(s.masked_fill_(s < 2.0**-9, 0.0)))
