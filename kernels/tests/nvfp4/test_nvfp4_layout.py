"""The 128x4 scale swizzle against its offset formula, byte by byte."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernels.nvfp4.layout import (
    grouped_padded_rows,
    padded_columns,
    padded_rows,
    swizzle_scales,
    swizzle_scales_grouped,
    swizzled_bytes,
    unswizzle_scales,
    unswizzle_scales_grouped,
)

ROWS, COLUMNS = [0, 1, 5, 31, 32, 33, 127, 128, 129, 300], [1, 3, 4, 5, 18, 24]


def offset(m: int, k: int, columns: int) -> int:
    """CUTLASS's formula, written out here and not taken from the implementation."""
    atoms = (columns + 3) // 4
    return ((m // 128) * atoms + k // 4) * 512 + (m % 32) * 16 + ((m // 32) % 4) * 4 + k % 4


def unique(rows, columns):
    """Scales that differ from their neighbours near and far; never 0, so that padding shows."""
    return (torch.arange(rows * columns).view(rows, columns) * 7 % 251 + 1).to(torch.uint8)


@pytest.mark.parametrize(("rows", "columns"), list(itertools.product(ROWS, COLUMNS)))
def test_every_byte_lands_where_the_formula_says(rows, columns):
    scales = unique(rows, columns)
    swizzled = swizzle_scales(scales)
    assert swizzled.shape == (padded_rows(rows), padded_columns(columns))
    assert swizzled.numel() == swizzled_bytes(rows, columns * 16)
    flat = torch.zeros(swizzled.numel(), dtype=torch.uint8)
    seen = set()
    for m in range(rows):
        for k in range(columns):
            at = offset(m, k, columns)
            assert at not in seen
            seen.add(at)
            flat[at] = scales[m, k]
    assert torch.equal(swizzled.reshape(-1), flat)  # padding is zero, as flat was
    assert torch.equal(unswizzle_scales(swizzled, rows, columns), scales)


def test_strides_stacks_and_dtypes():
    scales = unique(10, 2 * 40).view(10, 2, 40)[:, :, ::2].transpose(0, 1)  # (2, 10, 20), no stride as it should be
    want = torch.stack([swizzle_scales(s.contiguous()) for s in scales])
    assert torch.equal(swizzle_scales(scales), want)
    e4m3 = scales.contiguous().view(torch.float8_e4m3fn)
    assert torch.equal(swizzle_scales(e4m3).view(torch.uint8), want)
    assert torch.equal(unswizzle_scales(want, 10, 20), scales)
    with pytest.raises(ValueError, match="1-byte"):
        swizzle_scales(torch.zeros(4, 4))
    with pytest.raises(ValueError, match=r"expected \(\.\.\., 128, 4\)"):
        unswizzle_scales(torch.zeros(4, 4, dtype=torch.uint8), 4, 4)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("sizes", [[3], [0, 5], [128, 128], [129, 0, 1, 127], [0, 0, 0], [1] * 9, [300, 2]], ids=str)
def test_grouped_is_each_expert_on_its_own(sizes, dtype):
    rows, columns = sum(sizes), 6
    scales = unique(rows, columns)
    offsets = torch.tensor([0, *itertools.accumulate(sizes)], dtype=dtype)
    swizzled = swizzle_scales_grouped(scales, offsets)
    assert swizzled.shape == (grouped_padded_rows(rows, len(sizes)), 8)
    parts = [swizzle_scales(scales[a:b]) for a, b in itertools.pairwise(offsets.tolist())]
    used = torch.cat(parts)
    assert torch.equal(swizzled[: used.shape[0]], used)
    assert not swizzled[used.shape[0] :].any()
    assert torch.equal(unswizzle_scales_grouped(swizzled, offsets, rows, columns), scales)


def test_grouped_rows_of_no_expert_are_not_written():
    scales = unique(10, 4)
    offsets = torch.tensor([2, 5, 7])
    swizzled = swizzle_scales_grouped(scales, offsets, capacity=256)
    want = torch.cat([swizzle_scales(scales[2:5]), swizzle_scales(scales[5:7])])
    assert torch.equal(swizzled, want)
    back = unswizzle_scales_grouped(swizzled, offsets, 10, 4)
    assert torch.equal(back[2:7], scales[2:7])
    assert not back[:2].any()
    assert not back[7:].any()
    # A capacity that is too small loses rows but never writes outside.
    assert torch.equal(swizzle_scales_grouped(scales, offsets, capacity=128), want[:128])
    with pytest.raises(ValueError, match="multiple of 128"):
        swizzle_scales_grouped(scales, offsets, capacity=100)
    with pytest.raises(ValueError, match="int32 or int64"):
        swizzle_scales_grouped(scales, offsets.float())


def test_grouped_bound_is_the_worst_case():
    for rows, experts in itertools.product([0, 1, 2, 127, 128, 129, 257], [1, 2, 3]):
        worst = max((sum(padded_rows(s) for s in split) for split in _splits(rows, experts)), default=0)
        assert grouped_padded_rows(rows, experts) == worst


def _splits(rows, experts):
    if experts == 1:
        yield (rows,)
        return
    for first in range(rows + 1):
        for rest in _splits(rows - first, experts - 1):
            yield (first, *rest)


def test_model_sizes():
    """Bytes of the published DeepSeek-V4 expert scales: Pro L1 and L2, Flash L1 and L2."""
    assert swizzled_bytes(6144, 7168) == 2_752_512
    assert swizzled_bytes(7168, 3072) == 1_376_256
    assert swizzled_bytes(4096, 4096) == 1_048_576
    assert swizzled_bytes(4096, 2048) == 524_288
    assert swizzled_bytes(5120, 288) == 5120 * 20
