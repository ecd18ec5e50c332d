"""Offline quantisation of weights: any layout in, K-major out."""

from __future__ import annotations

import torch

from kernels.nvfp4.arguments import (
    require_choice,
    require_finite,
    require_global_scale,
    require_operand,
)
from kernels.nvfp4.layout import SCALE_LAYOUTS
from kernels.nvfp4.quantize import (
    COMPAT,
    _empty_outputs,
    _lay_out,
    _quantize_into,
    compute_global_scale,
)


@torch.no_grad()
def quantize_weight_to_nvfp4(
    w: torch.Tensor,
    *,
    k_dim: int = -1,
    global_scale: torch.Tensor | None = None,
    compat: str | None = None,
    scale_layout: str = "linear",
    check_finite: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantise a linear weight or a stack of experts; K, the reduction axis, is the one that is packed.

    w: (N, K) or (E, N, K) with `k_dim=-1`; (K, N) or (E, K, N) with `k_dim=-2`; bf16, fp16 or fp32, any strides.
    Whatever the input, the result is K-major and contiguous: codes uint8 (..., N, K/2), scales float8_e4m3fn
    (..., N, K/16) (or swizzled, each expert on its own), and the global scale fp32: 0-d for a matrix, (E,) for a
    stack, as experts are tensors of their own in every checkpoint and their kernels take one alpha an expert.
    global_scale: use this one (0-d or one element, shared by the whole stack, or (E,)) instead of amax / 2688;
    gate and up of one expert must share one if their product is fused: pass the larger.
    check_finite: refuse NaN and inf (waits for the device: offline use). False: the rule of the hot path applies.
    """
    if not isinstance(w, torch.Tensor):
        raise TypeError(f"w: expected a torch.Tensor, got {type(w).__name__}")
    if w.dim() not in (2, 3):
        raise ValueError(f"w: expected (N, K), (K, N), (E, N, K) or (E, K, N), got shape {tuple(w.shape)}")
    if k_dim not in (-1, -2, w.dim() - 1, w.dim() - 2):
        raise ValueError(f"k_dim: expected -1 for (..., N, K) or -2 for (..., K, N), got {k_dim}")
    if k_dim % w.dim() == w.dim() - 2:
        w = w.transpose(-1, -2)  # a view; the chunks are read through its strides
    require_operand(w, "w")
    require_choice(compat, COMPAT, "compat")
    require_choice(scale_layout, SCALE_LAYOUTS, "scale_layout")
    if check_finite:
        require_finite(w, "w")

    stack = w if w.dim() == 3 else w.unsqueeze(0)
    experts = stack.shape[0]
    if global_scale is None:
        own = [compute_global_scale(stack[e], compat=compat) for e in range(experts)]
    elif w.dim() == 3 and isinstance(global_scale, torch.Tensor) and tuple(global_scale.shape) == (experts,):
        own = [require_global_scale(global_scale[e], w) for e in range(experts)]
    else:
        own = [require_global_scale(global_scale, w)] * experts
    codes, scales = _empty_outputs(stack)
    for e in range(experts):
        _quantize_into(stack[e], own[e], codes[e], scales[e], compat, stack.numel())
    if w.dim() == 2:
        return codes[0], _lay_out(scales[0], scale_layout), own[0]
    per_expert = torch.stack(own) if own else torch.empty((0,), dtype=torch.float32, device=w.device)
    return codes, _lay_out(scales, scale_layout), per_expert
