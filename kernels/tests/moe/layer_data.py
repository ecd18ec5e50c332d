"""A small expert layer, asymmetric in everything, and its stages in double precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.moe import L1Layout, MoEWeights, convert_l1_weights, reference, stack_moe_weights
from kernels.moe.regimes import routed_ids
from kernels.nvfp4 import quantize_weight_to_nvfp4


@dataclass(frozen=True)
class Layer:
    """Float weights, their stacked NVFP4 form in [gate | up], and a routed batch."""

    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    stacked: tuple[torch.Tensor, ...]
    hidden: torch.Tensor
    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    start: int
    l1_input_scale: torch.Tensor
    l2_input_scale: torch.Tensor

    @property
    def experts(self) -> int:
        return self.gate.shape[0]

    def weights(self, target: str | L1Layout) -> MoEWeights:
        return stack_moe_weights(*self.stacked, target=target)

    def in_layout(self, layout: str) -> tuple[torch.Tensor, ...]:
        """The stacked weights as a checkpoint in another convention would hold them."""
        codes, scales = convert_l1_weights(*self.stacked[:2], "vllm_cutlass", layout)
        return (codes, scales, *self.stacked[2:])

    def decoded(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """fp64 gate, up, down as the NVFP4 bytes and global scales mean them."""
        codes, scales, global_scale, down_codes, down_scales, down_global = self.stacked
        l1 = reference.decode(codes, scales)
        gate, up = l1.chunk(2, dim=1)
        both = global_scale.double().reshape(self.experts, -1)
        down = reference.decode(down_codes, down_scales) * down_global.double()[:, None, None]
        return gate * both[:, :1, None], up * both[:, -1:, None], down


def make_layer(
    tokens: int = 13,
    experts: int = 5,
    hidden: int = 64,
    intermediate: int = 48,
    top_k: int = 3,
    regime: str = "uniform",
    start: int = 2,
    halves: bool = False,
    seed: int = 0,
    device: str = "cpu",
) -> Layer:
    """Gate is wider than up by 3 and shifted, every expert has its own magnitude, both clamps are hit.

    With `halves` gate and up are quantised apart, with global scales 2.4 apart; else they share the larger one.
    """
    g = torch.Generator().manual_seed(seed)
    size = torch.linspace(0.6, 1.7, experts)[:, None, None]
    gate = (torch.randn(experts, intermediate, hidden, generator=g) * 0.9 + 0.05) * size
    up = (torch.randn(experts, intermediate, hidden, generator=g) * 0.37 - 0.02) / size
    down = torch.randn(experts, hidden, intermediate, generator=g) * 0.2 * size
    if halves:
        parts = [quantize_weight_to_nvfp4(part) for part in (gate, up)]
        l1 = [torch.cat([part[i].view(torch.uint8) for part in parts], dim=1) for i in range(2)]
        stacked = (l1[0], l1[1].view(torch.float8_e4m3fn), torch.stack([parts[0][2], parts[1][2]], dim=1))
    else:
        stacked = quantize_weight_to_nvfp4(torch.cat([gate, up], dim=1))
    x = torch.randn(tokens, hidden, generator=g) * torch.linspace(0.3, 2.0, max(tokens, 1))[:tokens, None]
    ids = routed_ids(regime, tokens, experts + 3, top_k, seed)
    return Layer(
        gate.to(device), up.to(device), down.to(device),
        tuple(t.to(device) for t in (*stacked, *quantize_weight_to_nvfp4(down))),
        x.bfloat16().to(device), (torch.rand(tokens, top_k, generator=g) + 0.2).to(device), ids.to(device), start,
        torch.full((), 8.0 / 2688, device=device), torch.full((), 60.0 / 2688, device=device),
    )  # fmt: skip
