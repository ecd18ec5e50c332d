"""An output twice as wide as it should be."""

from __future__ import annotations

import torch

from kernels.nvfp4 import quantize_activation_nvfp4
from suites.faults.quantizers._steps import Pair


def n_doubled(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """As `quantize_activation_nvfp4`, but the codes are (..., K) bytes wide and only the first half is written.

    Fault (K12, unwritten output): a width that was doubled for elements and again for nibbles. A consumer that takes
    the width from the tensor reads uninitialised memory. Gate: correctness (the shape), and coverage (two poisons).
    """
    codes, scales = quantize_activation_nvfp4(x, global_scale)
    wide = torch.empty((*x.shape[:-1], x.shape[-1]), dtype=torch.uint8, device=x.device)
    wide.narrow(-1, 0, codes.shape[-1]).copy_(codes)
    return wide, scales
