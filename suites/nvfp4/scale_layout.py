"""The 128x4 scale layout by its byte-offset formula, and the ways rows are split among experts."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

SPLITS: dict[str, Callable[[int, int], list[int]]] = {
    "uniform": lambda m, e: [m * (i + 1) // e for i in range(e)],
    "all-to-one": lambda m, e: [0] * (e // 2) + [m] * (e - e // 2),
    "first-empty": lambda m, e: [0] + [m * (i + 1) // (e - 1) for i in range(e - 1)],
    "last-empty": lambda m, e: [m * (i + 1) // (e - 1) for i in range(e - 1)] + [m],
    "every-other-empty": lambda m, e: [m * (i // 2 + 1) // ((e + 1) // 2) for i in range(e)],
}
"""Where each of E experts' rows end among M rows, by routing regime."""


def offset(row: torch.Tensor, column: torch.Tensor, columns: int) -> torch.Tensor:
    """Byte offset of a scale in the swizzled buffer: atoms of 128 rows x 4 columns = 512 bytes, columns fastest."""
    atoms = (columns + 3) // 4
    return ((row // 128) * atoms + column // 4) * 512 + (row % 32) * 16 + (row % 128 // 32) * 4 + column % 4


def scatter_scales(scales: torch.Tensor, padded_row: torch.Tensor, total_rows: int) -> torch.Tensor:
    """Linear scales (rows, C) into the swizzle of ``total_rows`` padded rows; padding is zero."""
    columns = scales.shape[1]
    wide = -(-columns // 4) * 4
    out = torch.zeros(total_rows * wide, dtype=torch.uint8, device=scales.device)
    where = offset(padded_row.unsqueeze(1), torch.arange(columns, device=scales.device), columns)
    out[where.reshape(-1)] = scales.view(torch.uint8).reshape(-1)
    return out.view(total_rows, wide).view(scales.dtype)


def gather_scales(swizzled: torch.Tensor, padded_row: torch.Tensor, columns: int) -> torch.Tensor:
    """Inverse of ``scatter_scales``: linear scales (rows, C) of the rows that lie at ``padded_row``."""
    where = offset(padded_row.unsqueeze(1), torch.arange(columns, device=swizzled.device), columns)
    flat = swizzled.contiguous().view(torch.uint8).reshape(-1)
    return flat[where.reshape(-1)].view(padded_row.shape[0], columns).view(torch.float8_e4m3fn)


def dense_rows(rows: int, device: torch.device) -> tuple[torch.Tensor, int]:
    """Padded row of each row of a dense operand, and the padded rows in all."""
    return torch.arange(rows, device=device), -(-rows // 128) * 128


def grouped_rows(rows: int, expert_offsets: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The same for a grouped operand: each expert starts at a multiple of 128; capacity for any split."""
    held = min(rows, expert_offsets.shape[0] - 1)
    target, base = torch.zeros(rows, dtype=torch.int64), 0
    for start, end in itertools.pairwise(expert_offsets.tolist()):
        target[start:end] = base + torch.arange(end - start)
        base += -(-(end - start) // 128) * 128
    return target.to(expert_offsets.device), ((rows - held) // 128 + held) * 128
