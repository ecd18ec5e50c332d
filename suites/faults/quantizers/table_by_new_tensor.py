"""A table of boundaries made with new_tensor inside the call."""

from __future__ import annotations

import torch

from suites.faults.quantizers._steps import Pair, quantize_by_steps
from suites.faults.quantizers.table_by_torch_tensor import BOUNDARIES, TIES_UP, by_boundaries


def table_by_new_tensor(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """As `table_by_torch_tensor`, with `new_tensor`: the remedy that public commits name, and no remedy.

    Fault (K08, capture-illegal work): `new_tensor(list)` is the same host list and the same copy; a capture fails in
    the same way (measured on an H200 with torch 2.11). `torch.full`, `torch.arange` or arithmetic are kernels and
    capture. Gate: capture.
    """
    boundaries = global_scale.new_tensor(BOUNDARIES)
    ties_up = global_scale.new_tensor(TIES_UP)
    return quantize_by_steps(x, global_scale, codes=lambda a: by_boundaries(a, boundaries, ties_up))
