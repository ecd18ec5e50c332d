"""Operands for the grouped products: random codes with finite scales of wide spread, and routed offsets."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.nvfp4 import swizzle_scales, swizzle_scales_grouped

#: Rows of each expert: the routings under which grouped kernels have failed.
COUNTS = {
    "uniform": [3, 4, 2, 5],
    "one_each": [1, 1, 1, 1, 1],
    "first_empty": [0, 5, 3],
    "middle_empty": [4, 0, 0, 6],
    "last_empty": [7, 2, 0],
    "all_to_one": [0, 9, 0, 0],
    "all_empty": [0, 0, 0],
    "tile_minus_1": [127, 1],
    "tile": [128, 2],
    "tile_plus_1": [129, 3],
    "three_tiles": [2, 257, 0, 1],
    "one_expert": [6],
}


def random_codes(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Uniform bytes: every nibble is a number."""
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def random_scales(generator: torch.Generator, *shape: int, low: int = 0x20, high: int = 0x40) -> torch.Tensor:
    """Finite E4M3, 2^-3 to 2 by default."""
    raw = torch.randint(low, high, shape, dtype=torch.uint8, generator=generator)
    return raw.view(torch.float8_e4m3fn)


def offsets_of(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)


@dataclass(frozen=True)
class Grouped:
    """One grouped problem, scales both linear (for the reference) and swizzled (for the kernels)."""

    a_codes: torch.Tensor
    a_linear: torch.Tensor
    b_codes: torch.Tensor
    b_linear: torch.Tensor
    offsets: torch.Tensor
    alpha: torch.Tensor

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        a_scales = swizzle_scales_grouped(self.a_linear, self.offsets)
        return self.a_codes, self.b_codes, a_scales, swizzle_scales(self.b_linear), self.offsets, self.alpha


def grouped(
    counts: list[int], columns: int, depth: int, *, orphans: int = 0, halves: bool = False, seed: int = 0
) -> Grouped:
    """Rows per expert as in `counts`, then `orphans` rows of no expert. Every expert has scales of its own size."""
    g = torch.Generator().manual_seed(seed)
    rows, experts = sum(counts) + orphans, len(counts)
    b_linear = random_scales(g, experts, columns, depth // 16).float()
    # Gate and up differ by a power of two in scale, experts by another: a swap of either shows.
    b_linear[:, columns // 2 :] *= 4.0
    alpha = torch.rand((experts, 2) if halves else (experts,), generator=g) * 0.02 + 0.003
    return Grouped(
        random_codes(g, rows, depth // 2),
        random_scales(g, rows, depth // 16),
        random_codes(g, experts, columns, depth // 2),
        b_linear.to(torch.float8_e4m3fn),
        offsets_of(counts),
        alpha,
    )
