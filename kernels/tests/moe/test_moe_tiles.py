"""Row tiles and the scales of grouped operands, from their definitions."""

from __future__ import annotations

import pytest
import torch
from moe_data import COUNTS, offsets_of, random_scales

from kernels.moe.grouped_scales import gather_swizzled_scales
from kernels.moe.tiles import default_tile, max_tiles, row_tiles
from kernels.nvfp4 import swizzle_scales_grouped, unswizzle_scales


def test_scales_of_rows_before_the_first_offset_are_dropped() -> None:
    scales = random_scales(torch.Generator().manual_seed(0), 6, 4)
    offsets = torch.tensor([2, 4, 4, 5], dtype=torch.int32)
    got = unswizzle_scales(gather_swizzled_scales(scales, None, offsets).view(torch.uint8), 384, 4)
    expected = torch.zeros(384, 4, dtype=torch.uint8)
    expected[:2], expected[128] = scales.view(torch.uint8)[2:4], scales.view(torch.uint8)[4]
    assert torch.equal(got, expected)


@pytest.mark.parametrize("rows", [1, 2, 5, 128, 129, 300])
@pytest.mark.parametrize("experts", [1, 3, 7])
@pytest.mark.parametrize("tile", [1, 4, 128])
def test_tiles_cover_each_row_once_within_the_bound(rows: int, experts: int, tile: int) -> None:
    generator = torch.Generator().manual_seed(rows * experts + tile)
    cuts = torch.randint(0, rows + 1, (experts - 1,), generator=generator).sort().values.tolist()
    offsets = torch.tensor([0, *cuts, rows], dtype=torch.int32)
    tiles = row_tiles(offsets, rows, tile)
    seen = []
    for i in range(tiles.count):
        if not tiles.used[i]:
            continue
        mine = set(tiles.rows[i].tolist())
        low, high = offsets[tiles.expert[i]], offsets[tiles.expert[i] + 1]
        assert all(low <= row < high for row in mine)
        first = tiles.rows[i, 0]
        assert torch.equal(tiles.rows[i] - first, tiles.lanes[i])
        seen += sorted(mine)
    assert seen == list(range(rows))
    assert tiles.count == max_tiles(rows, experts, tile)


@pytest.mark.parametrize(
    ("rows", "experts", "tile"),
    [(1, 48, 1), (5, 48, 8), (384, 48, 128), (7000, 48, 256), (49152, 48, 1024), (8192, 1, 1024), (300, 1, 512)],
)
def test_tile_is_a_power_of_two_for_an_even_share(rows: int, experts: int, tile: int) -> None:
    assert default_tile(rows, experts) == tile


@pytest.mark.parametrize("routing", COUNTS)
@pytest.mark.parametrize("columns", [1, 4, 18])
def test_gathered_and_swizzled_scales_are_those_of_the_gathered_rows(routing: str, columns: int) -> None:
    counts = COUNTS[routing]
    generator = torch.Generator().manual_seed(columns)
    scales = random_scales(generator, 9, columns)
    source = torch.randint(0, 9, (sum(counts) + 2,), generator=generator)
    gathered = scales.view(torch.uint8).index_select(0, source).view(scales.dtype)
    expected = swizzle_scales_grouped(gathered, offsets_of(counts))
    got = gather_swizzled_scales(scales, source, offsets_of(counts))
    assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(
        gather_swizzled_scales(gathered, None, offsets_of(counts)).view(torch.uint8), expected.view(torch.uint8)
    )
