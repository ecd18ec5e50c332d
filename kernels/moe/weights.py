"""The weights of an expert layer, checked and laid out once, in memory of their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.moe.arguments import require_codes_and_scales, require_tensor
from kernels.moe.layouts import L1Layout, convert_l1_weights, resolve_layout
from kernels.nvfp4 import swizzle_scales


@dataclass(frozen=True)
class MoEWeights:
    """E experts of hidden size H and intermediate size I, as `run_nvfp4_moe` and `run_nvfp4_moe_fused` take them."""

    l1_codes: torch.Tensor
    """uint8 (E, 2*I, H/2), rows in the order of `layout`."""

    l1_scales: torch.Tensor
    """float8_e4m3fn (E, padded 2*I, padded H/16), each expert swizzled by itself."""

    l1_global_scale: torch.Tensor
    """fp32 (E,), or (E, 2) for gate and up quantised apart; multiplies on dequantisation."""

    l2_codes: torch.Tensor
    """uint8 (E, H, I/2)."""

    l2_scales: torch.Tensor
    """float8_e4m3fn (E, padded H, padded I/16), each expert swizzled by itself."""

    l2_global_scale: torch.Tensor
    """fp32 (E,)."""

    layout: L1Layout
    """Row order of L1: whole halves for the plain product, interleaved for the fused one."""

    @property
    def experts(self) -> int:
        return self.l1_codes.shape[0]

    @property
    def hidden(self) -> int:
        return self.l2_codes.shape[1]

    @property
    def intermediate(self) -> int:
        return self.l1_codes.shape[1] // 2

    def tensors(self) -> list[torch.Tensor]:
        """All of it but the layout, in the order of the fields."""
        return [
            self.l1_codes, self.l1_scales, self.l1_global_scale,
            self.l2_codes, self.l2_scales, self.l2_global_scale,
        ]  # fmt: skip

    def copy_from(self, other: MoEWeights) -> None:
        """Take over another set's values in place, so that captured graphs keep valid addresses."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs)


def stack_moe_weights(
    l1_codes: torch.Tensor,
    l1_scales: torch.Tensor,
    l1_global_scale: torch.Tensor,
    l2_codes: torch.Tensor,
    l2_scales: torch.Tensor,
    l2_global_scale: torch.Tensor,
    *,
    source: L1Layout | str = "vllm_cutlass",
    target: L1Layout | str = "vllm_cutlass",
) -> MoEWeights:
    """Convert L1 from the `source` to the `target` row order, swizzle all scales, and copy everything.

    l1_codes uint8 (E, 2*I, H/2) with linear scales (E, 2*I, H/16), l2_codes uint8 (E, H, I/2) with linear scales
    (E, H, I/16); scales float8_e4m3fn or bytes. Global scales fp32 (E,); (E, 2) for l1 if the checkpoint quantised
    gate and up apart: they cannot be merged into one without rescaling the block scales, so they are kept.
    Nothing in the result shares memory with the arguments.

    Raises:
        TypeError, ValueError: shapes that do not belong together, other dtypes, an unknown layout.
    """
    source, target = resolve_layout(source), resolve_layout(target)
    if target.k_first:
        raise ValueError("target: expected K-major storage, got a k_first layout; kernels read K-major memory only")
    codes, scales = convert_l1_weights(l1_codes, l1_scales, source, target)
    require_codes_and_scales(l2_codes, l2_scales)
    device = codes.device
    if codes.dim() != 3 or codes.shape[0] == 0:
        raise ValueError(f"l1_codes: expected (E, 2*I, H/2) with E > 0, got {tuple(codes.shape)}")
    experts, double, half_hidden = codes.shape
    require_tensor("l2_codes", l2_codes, (experts, 2 * half_hidden, double // 4), (torch.uint8,), device)
    if double % 32:
        raise ValueError(f"l1_codes: expected I a multiple of 16, got 2*I = {double}; pad_l1_weights, pad_l2_weights")
    both = (experts, 2) if l1_global_scale.dim() == 2 else (experts,)
    require_tensor("l1_global_scale", l1_global_scale, both, (torch.float32,), device)
    require_tensor("l2_global_scale", l2_global_scale, (experts,), (torch.float32,), device)
    return MoEWeights(
        _own(codes.contiguous(), l1_codes),
        _own(swizzle_scales(scales.view(torch.uint8)), l1_scales).view(torch.float8_e4m3fn),
        _own(l1_global_scale.contiguous(), l1_global_scale),
        _own(l2_codes.contiguous(), l2_codes),
        _own(swizzle_scales(l2_scales.view(torch.uint8)), l2_scales).view(torch.float8_e4m3fn),
        _own(l2_global_scale.contiguous(), l2_global_scale),
        target,
    )


def collapse_input_scales(scales: torch.Tensor) -> torch.Tensor:
    """One activation global scale from those of all experts, fp32 (E,) -> 0-d: the largest.

    A smaller one, such as the mean, would saturate the activations of the experts above it.
    """
    require_tensor("scales", scales, (None,), (torch.float32,), scales.device)
    return scales.amax()


def _own(result: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """`result`, copied if it still shares the caller's memory."""
    shared = torch._C._is_alias_of(result, source)  # type: ignore[attr-defined]
    return result.clone() if shared else result
