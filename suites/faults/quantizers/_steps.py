"""The right quantiser with its steps as parameters, so that a wrong one states only what it does wrongly."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kernels.nvfp4.arguments import BLOCK
from kernels.nvfp4.chunks import chunks, piece
from kernels.nvfp4.e2m1 import pack_e2m1, round_to_e2m1_magnitude_
from kernels.nvfp4.e4m3 import to_scale_e4m3

Pair = tuple[torch.Tensor, torch.Tensor]


def right_scale(s: torch.Tensor) -> torch.Tensor:
    """fp32 block scale in global-scaled units -> float8_e4m3fn."""
    return to_scale_e4m3(s)


def right_divisor(value: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
    """float(scale) and global scale -> what x is divided by; inf makes the codes of a zero block 0."""
    return (value * global_scale).masked_fill_(value == 0, torch.inf)


def right_codes(a: torch.Tensor) -> torch.Tensor:
    """Non-negative fp32 quotients -> magnitude codes 0..7; may clobber its argument."""
    return round_to_e2m1_magnitude_(a)


def quantize_by_steps(
    x: torch.Tensor,
    global_scale: torch.Tensor,
    *,
    scale: Callable[[torch.Tensor], torch.Tensor] = right_scale,
    divisor: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = right_divisor,
    codes: Callable[[torch.Tensor], torch.Tensor] = right_codes,
) -> Pair:
    """x (..., K), global_scale fp32 0-d -> codes uint8 (..., K/2), scales float8_e4m3fn (..., K/16). With the default
    steps, the bytes of `quantize_activation_nvfp4`."""
    global_scale = global_scale.clamp(min=2.0**-126)
    flat = x.reshape(-1, x.shape[-1])
    packed = torch.empty((flat.shape[0], flat.shape[1] // 2), dtype=torch.uint8, device=x.device)
    scales = torch.empty((flat.shape[0], flat.shape[1] // BLOCK), dtype=torch.float8_e4m3fn, device=x.device)
    for at in chunks(tuple(flat.shape)):
        part = piece(scales, *at)
        q = piece(flat, *at).to(torch.float32, copy=True).reshape(*part.shape, BLOCK)
        part.copy_(scale(q.abs().amax(-1).div_(global_scale * 6.0)))
        value = part.float()
        q.div_(divisor(value, global_scale).unsqueeze(-1))
        negative = torch.signbit(q).logical_and_((value > 0).unsqueeze(-1))
        code = codes(q.abs_()).to(torch.uint8).add_(negative.view(torch.uint8), alpha=8)
        pack_e2m1(code.view(part.shape[0], -1), out=piece(packed, *at))
    return packed.view(*x.shape[:-1], -1), scales.view(*x.shape[:-1], -1)
