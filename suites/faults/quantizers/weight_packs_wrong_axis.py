"""A weight quantiser that packs N and not K."""

from __future__ import annotations

import torch

from kernels.nvfp4 import quantize_weight_to_nvfp4


def weight_packs_wrong_axis(w: torch.Tensor, *, k_dim: int = -1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `quantize_weight_to_nvfp4`, but blocks of 16 run along N, and so do the nibble pairs.

    Fault (K16, argument layout): (E, K, N) taken for (E, N, K). Every number is near enough in isolation, so a round
    trip through the same mistake looks right; the matrix product reads other elements (cosine .71 in the report). A
    square weight even has the right shapes, so the test shapes must not be square. Gate: correctness.
    """
    axis = k_dim % w.dim()
    other = -2 if axis == w.dim() - 1 else -1
    return quantize_weight_to_nvfp4(w, k_dim=other)
