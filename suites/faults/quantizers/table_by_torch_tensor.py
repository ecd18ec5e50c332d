"""A table of boundaries made with torch.tensor inside the call."""

from __future__ import annotations

import torch

from suites.faults.quantizers._steps import Pair, quantize_by_steps

BOUNDARIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
TIES_UP = (0.75, 1.75, 3.5)


def by_boundaries(a: torch.Tensor, boundaries: torch.Tensor, ties_up: torch.Tensor) -> torch.Tensor:
    """Codes of a >= 0 by search: right, ties included."""
    a = a.nan_to_num_(nan=6.0, posinf=6.0)
    tie = (a.unsqueeze(-1) == ties_up).any(-1)
    return torch.bucketize(a, boundaries, out_int32=True).to(torch.uint8).add_(tie.to(torch.uint8))


def table_by_torch_tensor(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """As `quantize_activation_nvfp4`, the bytes included, but with its table from `torch.tensor(list, device=...)`.

    Fault (K08, capture-illegal work): the list is a CPU tensor first, and the copy to the GPU is synchronous from
    pageable memory. Eager calls work and wait; a capture fails ("Cannot copy between CPU and CUDA tensors during CUDA
    graph capture", measured on an H200 with torch 2.11). Gate: capture.
    """
    boundaries = torch.tensor(BOUNDARIES, device=x.device)
    ties_up = torch.tensor(TIES_UP, device=x.device)
    return quantize_by_steps(x, global_scale, codes=lambda a: by_boundaries(a, boundaries, ties_up))
