"""Scales that are any bytes at all."""

from __future__ import annotations

import torch

from kernels.nvfp4 import quantize_activation_nvfp4
from suites.faults.quantizers._steps import Pair


def random_bytes_as_scale(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """As `quantize_activation_nvfp4`, but the scale bytes are random, as in a benchmark that only wants timings.

    Fault (K23, the test's own): two of 256 patterns are NaN and half have a sign that the matrix hardware ignores,
    so a kernel "verified" on them is verified on NaN. Gate: correctness (NaN where the reference has none).
    """
    codes, scales = quantize_activation_nvfp4(x, global_scale)
    noise = torch.randint(0, 256, scales.shape, dtype=torch.uint8, device=x.device)
    return codes, noise.view(torch.float8_e4m3fn)
