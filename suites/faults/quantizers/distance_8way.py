"""The nearest code by measuring the distance to all eight."""

from __future__ import annotations

import torch

from kernels.nvfp4.e2m1 import pack_e2m1
from kernels.nvfp4.e4m3 import to_scale_e4m3
from suites.faults.quantizers._steps import Pair, right_divisor


def distance_8way(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """As `quantize_activation_nvfp4`, the bytes included, but over a (..., K, 8) tensor of distances.

    Fault (K10, memory peak): eight fp32 distances an element are 32 bytes, 16 times a bf16 input, and several such
    tensors are alive at once: 37 times the input was measured (4.1 GiB for 8192 x 7168). Nothing else is wrong
    with it, so no numerical gate sees it. Gate: memory.
    """
    global_scale = global_scale.clamp(min=2.0**-126)
    q = x.to(torch.float32, copy=True).reshape(*x.shape[:-1], x.shape[-1] // 16, 16)
    scales = to_scale_e4m3(q.abs().amax(-1).div_(global_scale * 6.0))
    value = scales.float()
    q.div_(right_divisor(value, global_scale).unsqueeze(-1))
    negative = torch.signbit(q).logical_and_((value > 0).unsqueeze(-1))
    a = q.abs_().nan_to_num_(nan=6.0, posinf=6.0).clamp_(max=6.0)
    m = torch.arange(8, device=x.device, dtype=torch.float32)
    grid = torch.maximum(torch.maximum(m * 0.5, m - 2.0), m * 2.0 - 8.0)
    distance = (a.unsqueeze(-1) - grid).abs()
    # Of two codes at the same distance the even one: it counts 2, the odd one 1.
    nearest = (distance == distance.amin(-1, keepdim=True)).float() * (2.0 - m % 2)
    code = nearest.argmax(-1).to(torch.uint8).add_(negative.view(torch.uint8), alpha=8)
    return pack_e2m1(code.view(x.shape)), scales
