"""Custom-op registration: what torch.compile sees of the linear, one opaque operation that writes its output."""

from __future__ import annotations

import torch

from kernels.linear.gemm import _linear_into


@torch.library.custom_op("kh_linear::nvfp4_linear_out", mutates_args=("out",))
def nvfp4_linear_out(
    x: torch.Tensor,
    weight_codes: torch.Tensor,
    weight_scales: torch.Tensor,
    alpha: torch.Tensor,
    input_global_scale: torch.Tensor,
    out: torch.Tensor,
) -> None:
    _linear_into(x, weight_codes, weight_scales, alpha, input_global_scale, out)


@nvfp4_linear_out.register_fake
def _(
    x: torch.Tensor,
    weight_codes: torch.Tensor,
    weight_scales: torch.Tensor,
    alpha: torch.Tensor,
    input_global_scale: torch.Tensor,
    out: torch.Tensor,
) -> None:
    return None
