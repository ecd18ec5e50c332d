"""C4A index mapping against brute force, golden vectors and edge cases."""

from __future__ import annotations

import pytest
import sparse_oracle
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.sparse import BASELINE, BOUNDS, MASKED, MetadataOptions, compute_c4a_global_topk

POISON = -99
Backend = dict[str, str]
Rows = list[list[int]]


def run(
    backend: Backend,
    indices: Rows,
    requests: list[int],
    table: Rows,
    block_size: int,
    valid: list[bool] | list[int],
    options: MetadataOptions = BASELINE,
    valid_dtype: torch.dtype = torch.bool,
    in_place: bool = False,
) -> tuple[Rows, list[int]]:
    device, rows, width = backend["device"], len(indices), len(indices[0]) if indices else 0
    source = torch.full((rows, width + 3), 1 << 30, dtype=torch.int32, device=device)
    source[:, :width] = torch.tensor(indices, dtype=torch.int32, device=device).view(rows, width)
    columns = len(table[0]) if table else 0
    wide_table = torch.full((len(table), columns + 2), 1 << 30, dtype=torch.int32, device=device)
    if columns:
        wide_table[:, :columns] = torch.tensor(table, dtype=torch.int32, device=device)
    target = source if in_place else torch.full((rows, width + 5), POISON, dtype=torch.int32, device=device)
    before, lens = target.clone(), torch.full((rows,), POISON, dtype=torch.int32, device=device)
    out, got_lens = compute_c4a_global_topk(
        source[:, :width],
        torch.tensor(requests, dtype=torch.int32, device=device),
        wide_table[:, :columns],
        block_size,
        torch.tensor(valid, device=device).to(valid_dtype),
        out=target[:, :width],
        lens=lens,
        options=options,
        implementation=backend["implementation"],
    )
    assert not width or out.data_ptr() == target.data_ptr()
    assert got_lens is lens
    assert torch.equal(target[:, width:], before[:, width:])
    return out.tolist(), lens.tolist()


GOLDEN = ([[0, 3, 4, -1], [2, 5, -1, -1], [1, 7, -1, -1]], [0, 1, 1], [[10, 11, 12], [20, 21, 22]], 4)


def test_golden_baseline_maps_padded_rows(backend: Backend) -> None:
    out, lens = run(backend, *GOLDEN, [True, True, False])
    assert out == [[40, 43, 44, -1], [82, 85, -1, -1], [81, 87, -1, -1]]
    assert lens == [3, 2, 0]


def test_golden_masked_blanks_padded_rows(backend: Backend) -> None:
    out, lens = run(backend, *GOLDEN, [True, True, False], MASKED)
    assert out == [[40, 43, 44, -1], [82, 85, -1, -1], [-1] * 4]
    assert lens == [3, 2, 0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_golden_valid_flags_of_every_width(backend: Backend, dtype: torch.dtype) -> None:
    out, lens = run(backend, [[0, 70, -1], [3, 66, 1]], [0, 1], [[5, 6], [9, 0]], 64, [1, 0], valid_dtype=dtype)
    assert out == [[320, 390, -1], [579, 2, 577]]
    assert lens == [2, 0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_each_row_reads_its_own_flag(backend: Backend, dtype: torch.dtype) -> None:
    valid = [0, 1, 1, 0, 0, 0, 1, 0, 1]
    _, lens = run(backend, [[0, 1]] * 9, [0] * 9, [[5]], 64, valid, valid_dtype=dtype)
    assert lens == [2 * flag for flag in valid]


@pytest.mark.parametrize(("dtype", "value"), [(torch.int32, 256), (torch.int64, 1 << 40), (torch.int32, -1)])
def test_any_non_zero_flag_is_valid(backend: Backend, dtype: torch.dtype, value: int) -> None:
    _, lens = run(backend, [[0, 1]], [0], [[5]], 64, [value], valid_dtype=dtype)
    assert lens == [2]


def test_golden_columns_outside_the_table(backend: Backend) -> None:
    rows = [[0, 63, 64, 128, 256, 320, 500, 10000], [10, 20, 255, 256, 1000, -1, 512, 1024]]
    out, lens = run(backend, rows, [0, 0], [[4, 3, 2, 1]], 64, [True, True], BOUNDS)
    assert out == [[256, 319, 192, 128, -1, -1, -1, -1], [266, 276, 127, -1, -1, -1, -1, -1]]
    assert lens == [4, 3]


@pytest.mark.parametrize("in_place", [False, True])
def test_golden_interior_gaps_are_kept(backend: Backend, in_place: bool) -> None:
    out, lens = run(
        backend, [[0, 1, -1, 5], [2, -1, 3, 4]], [0, 1], [[10, 11], [20, 21]], 4, [True, True], in_place=in_place
    )
    assert out == [[40, 41, -1, 45], [82, -1, 83, 84]]
    assert lens == [3, 3]


def test_golden_a_nan_pattern_as_an_index_is_not_followed(backend: Backend) -> None:
    rows = [[0, 8, 0x7FC00000, 5], [2, -1, 3, 4]]
    out, lens = run(backend, rows, [0, 1], [[10, 11], [20, 21]], 4, [True, True], BOUNDS)
    assert out == [[40, -1, -1, 45], [82, -1, 83, 84]]
    assert lens == [2, 3]


def test_golden_requests_outside_the_table(backend: Backend) -> None:
    out, lens = run(backend, [[0, 1]] * 5, [0, 1, 2, 100, -1], [[3], [4]], 4, [True] * 5, BOUNDS)
    assert out == [[12, 13], [16, 17], [-1, -1], [-1, -1], [-1, -1]]
    assert lens == [2, 2, 0, 0, 0]


def test_lengths_never_count_what_bounds_reject(backend: Backend) -> None:
    """The bug: only `index >= 0` was checked, so a bad entry was read past the table and counted as real."""
    out, lens = run(backend, [[4, 0]], [0], [[7]], 4, [True], BOUNDS)
    assert (out, lens) == ([[-1, 28]], [1])


@pytest.mark.parametrize("topk", [1, 3, 4, 5, 127, 128, 129, 511, 513])
@pytest.mark.parametrize("in_place", [False, True])
def test_widths_around_vectors_and_blocks(backend: Backend, topk: int, in_place: bool) -> None:
    generator = torch.Generator().manual_seed(topk)
    rows = torch.randint(-2, 400, (3, topk), generator=generator).tolist()
    table = torch.randperm(300, generator=generator).view(3, 100).tolist()
    requests, valid = [2, 0, 1], [True, False, True]
    expected = sparse_oracle.c4a(rows, requests, table, 4, valid, MASKED)
    assert run(backend, rows, requests, table, 4, valid, MASKED, in_place=in_place) == expected


def test_slots_near_the_int32_limit(backend: Backend) -> None:
    out, _ = run(backend, [[0, 63, 64]], [0], [[2**25 - 1, 2**31 - 1]], 64, [True])
    assert out == [[2**31 - 64, 2**31 - 1, -64]]  # the last is past the limit: wraps, everywhere alike


def test_no_tokens_and_no_columns(backend: Backend) -> None:
    empty = torch.empty((0, 4), dtype=torch.int32, device=backend["device"])
    none = torch.empty(0, dtype=torch.int32, device=backend["device"])
    out, lens = compute_c4a_global_topk(empty, none, empty, 4, none, implementation=backend["implementation"])
    assert out.shape == (0, 4)
    assert lens.shape == (0,)
    assert run(backend, [[], []], [0, 0], [[1]], 4, [True, True]) == ([[], []], [0, 0])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_batch(backend: Backend, data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 20))
    table_rows, columns = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 4))
    index = st.integers(-2, 24) | st.integers(-(2**31), 2**31 - 1)
    matrix = lambda item, r, c: st.lists(  # noqa: E731
        st.lists(item, min_size=c, max_size=c), min_size=r, max_size=r
    )
    arguments = (
        data.draw(matrix(index, rows, width)),
        data.draw(st.lists(st.integers(-1, 4), min_size=rows, max_size=rows)),
        data.draw(matrix(st.integers(-1, 2**31 - 1), table_rows, columns)) if columns else [[]] * table_rows,
        data.draw(st.integers(1, 6)),
        data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)),
        MetadataOptions(*data.draw(st.tuples(st.booleans(), st.booleans()))),
    )
    in_place = data.draw(st.booleans())
    assert run(backend, *arguments, in_place=in_place) == sparse_oracle.c4a(*arguments)
