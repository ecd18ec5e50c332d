"""Safe division by a clamp, and no rule for blocks whose scale rounds to zero."""

from __future__ import annotations

import torch

from suites.faults.quantizers._steps import Pair, quantize_by_steps


def clamp_1e8_no_zero_handling(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """As `quantize_activation_nvfp4`, but divides by max(scale * global_scale, 1e-8) and leaves it at that.

    Fault (K04, special values): a block with 0 < s <= 2^-10 has scale byte 0 but codes up to 6 (x / 1e-8), which
    decode to 0 only by luck; and wherever scale * global_scale is rightly below 1e-8, as with small weights, every
    code of the block is wrong. Gate: correctness (underflow ladder; a tensor of scale 1e-8).
    """
    return quantize_by_steps(x, global_scale, divisor=lambda value, g: (value * g).clamp_(min=1e-8))
