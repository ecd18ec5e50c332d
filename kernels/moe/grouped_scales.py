"""Block scales of a grouped operand: gathered into expert order, padded and swizzled, each expert on its own."""

from __future__ import annotations

import torch

from kernels.moe.tiles import padded_row_of_row
from kernels.nvfp4 import swizzle_scales
from kernels.nvfp4.layout import grouped_padded_rows, padded_columns


def gather_swizzled_scales(
    scales: torch.Tensor, source_rows: torch.Tensor | None, expert_offsets: torch.Tensor
) -> torch.Tensor:
    """Linear scales (S, K/16) to the grouped swizzle of the rows `scales[source_rows]`.

    source_rows int64 (M,), the source of each row in expert order; None takes the rows as they are. Returns
    (grouped_padded_rows(M, E), padded K/16) of the scales' dtype: what `kernels.nvfp4.swizzle_scales_grouped` gives
    for the gathered rows, without an index for each byte. Since every expert begins at a multiple of 128 rows, one
    swizzle of the padded rows is the swizzle of each expert by itself. Padding is zero.
    """
    rows = scales.shape[0] if source_rows is None else source_rows.shape[0]
    capacity = grouped_padded_rows(rows, expert_offsets.shape[0] - 1)
    raw = scales.view(torch.uint8)
    if source_rows is not None:
        raw = raw.index_select(0, source_rows)
    # One row more than the result, for the rows of no expert.
    padded = raw.new_zeros((capacity + 1, padded_columns(scales.shape[1])))
    if rows:
        padded.narrow(1, 0, scales.shape[1]).index_copy_(0, padded_row_of_row(expert_offsets, rows), raw)
    return swizzle_scales(padded.narrow(0, 0, capacity)).view(scales.dtype)


def gather_swizzled_peak_bytes(rows: int, experts: int, depth: int) -> int:
    """Upper bound of the bytes that `gather_swizzled_scales` allocates at its peak, result included."""
    columns = depth // 16
    padded = (grouped_padded_rows(rows, experts) + 1) * padded_columns(columns)
    return rows * columns + 2 * padded + 64 * (rows + experts + 1) + (1 << 14)
