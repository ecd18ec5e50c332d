"""The operands of a grouped product, checked; and the pieces of them that one tile needs, dequantised.

    a   codes uint8 (M, K/2), rows in expert order; scales swizzled, each expert's rows padded to 128 and swizzled on
        their own: (padded rows, padded K/16) with at least `grouped_padded_rows(M, E)` rows
    b   codes uint8 (E, N, K/2), K-major; scales swizzled, each expert on its own: (E, padded N, padded K/16)

A code times its block scale is exact in fp32, and so is the product of two of them; only the sum over K rounds. It is
exact in TF32 and bf16 too, so the precision that torch is set to use for fp32 products loses no bit of an operand.
The global scales stay out of it and come in the epilogue as alpha.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.moe.arguments import BLOCK, INDEX_DTYPES, SCALE_DTYPES, require_tensor
from kernels.moe.tiles import RowTiles, default_tile, max_tiles, row_tiles
from kernels.nvfp4 import dequantize_nvfp4, unswizzle_scales
from kernels.nvfp4.chunks import CHUNK_ELEMENTS
from kernels.nvfp4.layout import ATOM_ROWS, grouped_padded_rows, padded_columns, padded_rows

#: Rows of an expert's weights dequantised at a time; a multiple of 128, so that a piece is whole swizzle atoms.
WEIGHT_ROWS = 1024


@dataclass(frozen=True)
class GroupedOperands:
    """A checked set of operands. M rows, E experts, N columns, K deep."""

    a_codes: torch.Tensor
    a_scales: torch.Tensor
    b_codes: torch.Tensor
    b_scales: torch.Tensor
    expert_offsets: torch.Tensor
    alpha: torch.Tensor

    def __post_init__(self) -> None:
        device = self.a_codes.device
        require_tensor("a_codes", self.a_codes, (None, None), (torch.uint8,), device)
        rows, half = self.a_codes.shape
        require_tensor("b_codes", self.b_codes, (None, None, half), (torch.uint8,), device)
        experts, columns, _ = self.b_codes.shape
        if half == 0 or half % (BLOCK // 2):
            raise ValueError(f"a_codes: expected K/2 a positive multiple of {BLOCK // 2}, got {half}; pad K")
        if experts == 0:
            raise ValueError("b_codes: expected at least one expert, got 0")
        wide = padded_columns(2 * half // BLOCK)
        require_tensor("b_scales", self.b_scales, (experts, padded_rows(columns), wide), SCALE_DTYPES, device)
        require_tensor("a_scales", self.a_scales, (None, wide), SCALE_DTYPES, device)
        least = grouped_padded_rows(rows, experts)
        if self.a_scales.shape[0] < least or self.a_scales.shape[0] % ATOM_ROWS:
            raise ValueError(
                f"a_scales: expected a multiple of 128 rows, at least {least}, each expert's padded to 128, got "
                f"{self.a_scales.shape[0]}; swizzle with kernels.nvfp4.swizzle_scales_grouped"
            )
        require_tensor("expert_offsets", self.expert_offsets, (experts + 1,), INDEX_DTYPES, device)
        if self.alpha.dim() == 1:
            require_tensor("alpha", self.alpha, (experts,), (torch.float32,), device)
        else:
            require_tensor("alpha", self.alpha, (experts, 2), (torch.float32,), device)
        for name, tensor in (("a_codes", self.a_codes), ("b_codes", self.b_codes)):
            if tensor.numel() and tensor.stride(-1) != 1:
                raise ValueError(
                    f"{name}: expected K-major memory (last stride 1), got strides {tuple(tensor.stride())}; "
                    "a transposed view is another operand, not a layout of this one"
                )

    @property
    def rows(self) -> int:
        return self.a_codes.shape[0]

    @property
    def columns(self) -> int:
        return self.b_codes.shape[1]

    @property
    def experts(self) -> int:
        return self.b_codes.shape[0]

    @property
    def depth(self) -> int:
        return 2 * self.a_codes.shape[1]

    def tiles(self) -> RowTiles:
        """The row tiles; only for rows > 0."""
        return row_tiles(self.expert_offsets, self.rows, default_tile(self.rows, self.experts))

    def padded_a_scales(self) -> torch.Tensor:
        """Bytes (padded rows, K/16), unswizzled, each expert's rows from a multiple of 128."""
        return unswizzle_scales(self.a_scales.view(torch.uint8), self.a_scales.shape[0], self.depth // BLOCK)

    def a_tile(self, tiles: RowTiles, index: int, padded_scales: torch.Tensor) -> torch.Tensor:
        """fp32 (tile, K): the rows of a tile, exact, without the global scale."""
        scales = padded_scales.index_select(0, tiles.padded_rows[index]).view(torch.float8_e4m3fn)
        codes = self.a_codes.index_select(0, tiles.rows[index])
        return dequantize_nvfp4(codes, scales, dtype=torch.float32)

    def b_piece(self, expert: torch.Tensor, start: int, size: int) -> torch.Tensor:
        """fp32 (size, K): `size` rows from `start`, a multiple of 128, of the expert in `expert` (1,)."""
        codes = self.b_codes.narrow(1, start, size).index_select(0, expert).squeeze(0)
        atoms = self.b_scales.view(torch.uint8).narrow(1, start, padded_rows(size)).index_select(0, expert)
        scales = unswizzle_scales(atoms.squeeze(0), size, self.depth // BLOCK).view(torch.float8_e4m3fn)
        return dequantize_nvfp4(codes, scales, dtype=torch.float32)

    def column_alpha(self, expert: torch.Tensor) -> torch.Tensor:
        """fp32 (N,): alpha of each column for the expert in `expert` (1,)."""
        alpha = self.alpha.reshape(self.experts, -1).index_select(0, expert).squeeze(0)
        return alpha.unsqueeze(1).expand(-1, self.columns // alpha.shape[0]).reshape(self.columns)


def tile_workspace_bytes(rows: int, experts: int, columns: int, depth: int) -> int:
    """Upper bound of the bytes that one tile's work holds: its fp32 rows and product, one piece of weights, the maps.

    Independent of the number of experts but for their offsets and the padding of the scales: the weights are never
    dequantised as a whole.
    """
    tile = default_tile(rows, experts)
    piece = min(WEIGHT_ROWS, columns)
    # fp32 results and the gathered packed codes; and what `dequantize_nvfp4` holds of one chunk while it decodes.
    dequantised = 5 * (piece + tile) * depth
    dequantised += 16 * min(max(piece, tile) * depth, max(CHUNK_ELEMENTS, depth))
    scales = 4 * (padded_rows(piece) + tile) * padded_columns(depth // BLOCK)
    product = 4 * 4 * tile * max(columns, piece)
    grouped = 3 * grouped_padded_rows(rows, experts) * padded_columns(depth // BLOCK)
    maps = 64 * (experts + 1) + 48 * tile * (max_tiles(rows, experts, tile) + 1)
    return dequantised + scales + product + grouped + maps + (1 << 16)
