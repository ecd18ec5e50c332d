"""Row tiles of a grouped operand: which expert and which rows each tile holds, worked out on the device.

The rows of an expert are cut into tiles of `tile` rows; no tile holds rows of two experts. How many tiles there are
depends on the routing, which only the device knows, so the host walks the most there can be and the surplus tiles are
marked unused. That keeps every shape static and every call the same sequence of kernels: what capture asks for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.nvfp4.layout import ATOM_ROWS, grouped_padded_rows


@dataclass(frozen=True)
class RowTiles:
    """`count` tiles of `tile` lanes."""

    count: int
    tile: int

    expert: torch.Tensor
    """int64 (count,): the expert, some valid number for an unused tile."""

    used: torch.Tensor
    """bool (count, 1)."""

    rows: torch.Tensor
    """int64 (count, tile): the row in each lane; lanes past the last row of the tile repeat that row."""

    lanes: torch.Tensor
    """int64 (count, tile): the lane that holds the row named in `rows`; lanes that repeat a row repeat its lane."""

    padded_rows: torch.Tensor
    """int64 (count, tile): the row in the padded numbering of the scales, 0 in an unused tile."""


def max_tiles(rows: int, experts: int, tile: int) -> int:
    """The most tiles that `rows` rows of `experts` experts can need: one row each in as many experts as possible."""
    nonempty = min(rows, experts)
    return nonempty + (rows - nonempty) // tile


def default_tile(rows: int, experts: int) -> int:
    """Rows of a tile, a power of two that depends on the shape alone.

    Every tile dequantises its expert's weights anew, so tiles are large: an expert's even share of the rows, between
    128 and 1024, and no more than all the rows.
    """
    share = 1 << max(-(-rows // experts) - 1, 0).bit_length()
    return min(max(share, 128), 1024, 1 << max(rows - 1, 0).bit_length())


def row_tiles(expert_offsets: torch.Tensor, rows: int, tile: int) -> RowTiles:
    """Cut `rows` > 0 rows by `expert_offsets` (E + 1,). Offsets are data: rows they put past the end are dropped."""
    device, experts = expert_offsets.device, expert_offsets.shape[0] - 1
    start, end, padded_start = _ranges(expert_offsets, rows)
    needed = (end - start + (tile - 1)).div(tile, rounding_mode="floor").clamp(min=0)
    stop = needed.cumsum(0)
    count = max_tiles(rows, experts, tile)
    index = torch.arange(count, device=device)
    # right=True: tile `stop[e]` is the first of the next expert that has any; empty experts are passed over.
    expert = torch.searchsorted(stop, index, right=True)
    used = (expert < experts).unsqueeze(1)
    expert = expert.clamp(max=experts - 1)
    first = start.index_select(0, expert) + (index - (stop - needed).index_select(0, expert)) * tile
    last = end.index_select(0, expert) - 1
    lanes = torch.minimum(torch.arange(tile, device=device), (last - first).unsqueeze(1)).clamp(min=0)
    tile_rows = torch.where(used, first.unsqueeze(1) + lanes, 0).clamp(0, rows - 1)
    shift = (padded_start - start).index_select(0, expert).unsqueeze(1)
    return RowTiles(count, tile, expert, used, tile_rows, lanes, torch.where(used, tile_rows + shift, 0))


def padded_row_of_row(expert_offsets: torch.Tensor, rows: int) -> torch.Tensor:
    """int64 (rows,): each row in the padded numbering of grouped scales; `grouped_padded_rows` for rows of no expert.

    The rows of each expert begin at a multiple of 128, which is where its own swizzle begins.
    """
    experts = expert_offsets.shape[0] - 1
    start, end, padded_start = _ranges(expert_offsets, rows)
    row = torch.arange(rows, device=expert_offsets.device)
    # right=True: the row at an expert's end belongs to the next expert that has any.
    expert = torch.searchsorted(end, row, right=True)
    owned = (expert < experts) & (row >= start[0])
    shift = (padded_start - start).index_select(0, expert.clamp(max=experts - 1))
    return torch.where(owned, row + shift, grouped_padded_rows(rows, experts))


def store_tile(out: torch.Tensor, tiles: RowTiles, index: int, values: torch.Tensor) -> None:
    """Write a tile's values (tile, C) to its rows of `out` (M, C); an unused tile writes back what is there.

    Lanes that repeat a row repeat its value too, so rows written twice are written the same.
    """
    rows = tiles.rows[index]
    values = values.index_select(0, tiles.lanes[index])
    out.index_copy_(0, rows, torch.where(tiles.used[index], values, out.index_select(0, rows)))


def _ranges(expert_offsets: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """First row, end and first padded row of each expert, int64 (E,)."""
    offsets = expert_offsets.long().clamp(0, rows)
    start, end = offsets.narrow(0, 0, offsets.shape[0] - 1), offsets.narrow(0, 1, offsets.shape[0] - 1)
    padded = (end - start + (ATOM_ROWS - 1)).div(ATOM_ROWS, rounding_mode="floor").clamp(min=0).mul(ATOM_ROWS)
    return start, end.contiguous(), padded.cumsum(0) - padded
