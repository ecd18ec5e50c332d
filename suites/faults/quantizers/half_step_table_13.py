"""Rounding to half steps first, then to E2M1 by a table of 13 entries."""

from __future__ import annotations

import torch

from suites.faults.quantizers._steps import Pair, quantize_by_steps


def half_step_table_13(x: torch.Tensor, global_scale: torch.Tensor) -> Pair:
    """As `quantize_activation_nvfp4`, but clamp to [0, 6], double, round, and look the code up in 13 entries.

    Fault (K05, double rounding): above 2 the grid is coarser than the half steps, so (2.5, 2.75) becomes 2 and not 3,
    (3.25, 3.5) becomes 4 and not 3, (5, 5.25) becomes 4 and not 6: 9 % of the codes of Gaussian data, 12.5 % of
    uniform. No other 13 entries do better. Values on the grid come out right, so requantising a checkpoint shows
    nothing, and a cosine falls from .9953 to .9938 only. Gate: correctness (bit-exact, on the midpoints' neighbours).
    """
    # The best table there is, 0 1 2 3 4 4 5 6 6 6 6 7 7, written as comparisons: only its numbers are at fault.
    return quantize_by_steps(x, global_scale, codes=_codes)


def _codes(a: torch.Tensor) -> torch.Tensor:
    i = a.nan_to_num_(nan=6.0, posinf=6.0).clamp_(max=6.0).mul_(2.0).round_()
    return i.clamp(max=4).add_((i >= 6).float()).add_((i >= 7).float()).add_((i >= 11).float())
