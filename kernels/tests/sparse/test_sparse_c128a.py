"""C128A metadata against brute force, golden vectors and edge cases."""

from __future__ import annotations

from typing import Any

import pytest
import sparse_oracle
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.sparse import (
    BASELINE,
    BOUNDS,
    CONTEXT_PARALLEL,
    MASKED,
    MetadataOptions,
    build_c128a_topk_metadata,
)

POISON = -99
Backend = dict[str, str]


def strided(rows: list[list[int]], extra: int, device: str, columns: int | None = None) -> torch.Tensor:
    """An int32 matrix whose rows are `extra` elements further apart than they are wide, poison in between."""
    columns = len(rows[0]) if rows else (columns or 0)
    full = torch.full((len(rows), columns + extra), 1 << 30, dtype=torch.int32, device=device)
    if rows and columns:
        full[:, :columns] = torch.tensor(rows, dtype=torch.int32, device=device)
    return full[:, :columns]


def run(
    backend: Backend,
    positions: list[int],
    num_decode: int,
    requests: list[int],
    table: list[list[int]],
    block_size: int,
    slots: list[int],
    width: int,
    capacity: int | None = None,
    ratio: int = 128,
    table_columns: int = 0,
    **keywords: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Call it on buffers full of poison, with row strides that differ between the buffers."""
    device, capacity, tokens = backend["device"], capacity or width, len(positions)
    decode_rows = torch.full((tokens + 2, capacity + 5), POISON, dtype=torch.int32, device=device)
    prefill_rows = torch.full((tokens + 1, capacity + 7), POISON, dtype=torch.int32, device=device)
    lens = torch.full((tokens + 3,), POISON, dtype=torch.int32, device=device)
    result = build_c128a_topk_metadata(
        torch.tensor(positions, dtype=torch.int64, device=device),
        ratio,
        num_decode,
        torch.tensor(requests, dtype=torch.int32, device=device),
        strided(table, 3, device, table_columns),
        block_size,
        torch.tensor(slots, dtype=torch.int64, device=device),
        decode_rows[:, :capacity],
        lens,
        prefill_rows[:, :capacity],
        width,
        implementation=backend["implementation"],
        **keywords,
    )
    decode, prefill = num_decode, tokens - num_decode
    # Nothing past the width, past the used rows, or in the gaps between rows is touched.
    assert bool((decode_rows[:, width:] == POISON).all())
    assert bool((decode_rows[decode:] == POISON).all())
    assert bool((prefill_rows[:, width:] == POISON).all())
    assert bool((prefill_rows[prefill:] == POISON).all())
    assert bool((lens[decode:] == POISON).all())
    return result


def check(result: tuple[torch.Tensor, ...], expected: sparse_oracle.C128AResult, width: int) -> None:
    decode, lens, prefill = (part.cpu().tolist() for part in result)
    assert [row[:width] for row in decode] == expected.decode
    assert lens == expected.lens
    assert [row[:width] for row in prefill] == expected.prefill


def compare(backend: Backend, *arguments: Any, capacity: int | None = None, **keywords: Any) -> None:
    oracle_names = {"actual_num_query_tokens": "actual", "dcp_world_size": "world", "dcp_rank": "rank"}
    oracle_names |= {"dcp_interleave": "interleave"}
    oracle = {oracle_names.get(k, k): v for k, v in keywords.items() if k != "table_columns"}
    expected = sparse_oracle.c128a(*arguments, **oracle)
    check(run(backend, *arguments, capacity=capacity, **keywords), expected, arguments[6])


def test_golden_one_decode_one_prefill(backend: Backend) -> None:
    decode, lens, prefill = run(backend, [255, 511], 1, [0, 0], [[3]], 256, [0, 1], 128)
    assert decode[0, :128].tolist() == [768, 769] + [-1] * 126
    assert lens.tolist() == [2]
    assert prefill[0, :128].tolist() == [0, 1, 2, 3] + [-1] * 124


GOLDEN_COUNTS = {126: 0, 127: 1, 128: 1, 254: 1, 255: 2, 383: 3, 384: 3, 511: 4, 512: 4, 639: 5, 1023: 8}


def test_golden_counts(backend: Backend) -> None:
    positions, tokens = list(GOLDEN_COUNTS), len(GOLDEN_COUNTS)
    table = [[10 * r + c for c in range(8)] for r in range(tokens)]
    _, lens, _ = run(backend, positions, tokens, list(range(tokens)), table, 2, [0] * tokens, 128)
    assert lens.tolist() == list(GOLDEN_COUNTS.values())


MIXED = ([255, 256, 511, 512, 0, 127, 128, 255, 384], 4, [0, 0, 1, 1, 2, 2, 3, 3, 3])
MIXED_TABLE = [[11 - 3 * r - c for c in range(3)] for r in range(4)]  # reversed block ids
MIXED_SLOTS = [0, -1, 2, 3, 4, 5, -1, 7, 8]


@pytest.mark.parametrize("options", [BASELINE, MASKED, BOUNDS, MetadataOptions(bounds=True), CONTEXT_PARALLEL])
def test_golden_mixed_batch(backend: Backend, options: MetadataOptions) -> None:
    compare(backend, *MIXED, MIXED_TABLE, 2, MIXED_SLOTS, 128, options=options, capacity=130)


def test_padded_rows_are_mapped_in_the_baseline_and_blank_if_masked(backend: Backend) -> None:
    arguments = ([255, 255], 1, [0, 0], [[7]], 2, [-1, -1], 4)
    decode, lens, prefill = run(backend, *arguments)
    assert decode[0, :4].tolist() == [14, 15, -1, -1]
    assert lens.tolist() == [0]
    assert prefill[0, :4].tolist() == [0, 1, -1, -1]
    decode, lens, prefill = run(backend, *arguments, options=MASKED)
    assert decode[0, :4].tolist() == [-1] * 4
    assert lens.tolist() == [0]
    assert prefill[0, :4].tolist() == [-1] * 4


@pytest.mark.parametrize("options", [MASKED, BOUNDS])
def test_golden_invalid_decode_is_not_dereferenced(backend: Backend, options: MetadataOptions) -> None:
    decode, lens, _ = run(backend, [127], 1, [1024], [[11]], 2, [-1], 1, options=options)
    assert decode[0, :1].tolist() == [-1]
    assert lens.tolist() == [0]


@pytest.mark.parametrize(("rank", "expected"), [(0, [22, 23, 34]), (1, [22, 23])])
def test_golden_context_parallel(backend: Backend, rank: int, expected: list[int]) -> None:
    decode, lens, prefill = run(
        backend, [639, 639, 639], 1, [0, 0, 0], [[11, 17]], 2, [-1] * 3, 8,
        options=CONTEXT_PARALLEL, actual_num_query_tokens=2, dcp_world_size=2, dcp_rank=rank,
    )  # fmt: skip
    assert decode[0, :8].tolist() == expected + [-1] * (8 - len(expected))
    assert lens.tolist() == [len(expected)]
    assert prefill[:, :8].tolist() == [[0, 1, 2, 3, 4, -1, -1, -1], [-1] * 8]


@pytest.mark.parametrize("interleave", [1, 2, 3])
@pytest.mark.parametrize("world", [2, 3])
def test_context_parallel_deals_every_token_once(backend: Backend, world: int, interleave: int) -> None:
    total = 0
    for rank in range(world):
        arguments = ([1407, 700], 2, [0, 1], [[5, 6, 7, 8, 9, 10], [21, 22, 23, 24, 25, 26]], 2, [0, 0], 16)
        keywords = {"dcp_world_size": world, "dcp_rank": rank, "dcp_interleave": interleave}
        compare(backend, *arguments, **keywords)
        total += int(run(backend, *arguments, **keywords)[1][0])
    assert total == 1408 // 128


def test_slot_below_zero_does_not_hide_a_decode_query_under_context_parallelism(backend: Backend) -> None:
    arguments = ([255], 1, [0], [[4]], 2, [-1], 4)
    assert run(backend, *arguments, options=CONTEXT_PARALLEL)[1].tolist() == [2]
    assert run(backend, *arguments)[1].tolist() == [0]


def test_requests_and_columns_outside_the_table(backend: Backend) -> None:
    table = [[3, 4], [5, 6]]
    arguments = ([1023, 1023, 1023, 1023, 1023], 5, [0, 1, 2, 100, -1], table, 2, [0] * 5, 8)
    decode, lens, _ = run(backend, *arguments, options=BOUNDS)
    assert decode[:, :8].tolist() == [[6, 7, 8, 9] + [-1] * 4, [10, 11, 12, 13] + [-1] * 4] + [[-1] * 8] * 3
    assert lens.tolist() == [4, 4, 0, 0, 0]
    # Without bounds the length is that of the position; entries that cannot be read are -1 all the same.
    decode, lens, _ = run(backend, *arguments)
    assert decode[2:, :8].tolist() == [[-1] * 8] * 3
    assert lens.tolist() == [8] * 5


@pytest.mark.parametrize("position", [-129, -2, -1, 0, 126, 127, 128, 1919, 1920, 2046, 2047, 2048, 1 << 40])
def test_length_ladder(backend: Backend, position: int) -> None:
    table = [list(range(40, 48)), list(range(60, 68))]
    compare(backend, [position, position], 1, [1, 0], table, 2, [0, 0], 16, capacity=19)


@pytest.mark.parametrize("width", [0, 1, 3, 4, 5, 15, 16, 17, 31, 33])
@pytest.mark.parametrize("num_decode", [0, 1, 3])
def test_widths_around_tiles_and_vectors(backend: Backend, width: int, num_decode: int) -> None:
    table = [[9, 2, 5, 7, 1, 3, 8, 4, 6, 0, 11, 12, 14, 13, 15, 16, 17]] * 3
    compare(backend, [4000, 700, 255], num_decode, [2, 0, 1], table, 2, [0, 1, 2], width, capacity=max(width, 1))


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 64, 256])
def test_block_sizes(backend: Backend, block_size: int) -> None:
    table = [[(7 * c + 3) % 41 for c in range(40)], [(11 * c + 5) % 41 for c in range(40)]]
    compare(backend, [4000, 2000], 2, [1, 0], table, block_size, [0, 0], 37)


def test_slots_near_the_int32_limit(backend: Backend) -> None:
    last = 2**31 // 2 - 1
    decode, _, _ = run(backend, [511], 1, [0], [[last, last - 1]], 2, [0], 4)
    assert decode[0, :4].tolist() == [2**31 - 2, 2**31 - 1, 2**31 - 4, 2**31 - 3]
    compare(backend, [511], 1, [0], [[2**31 - 1, 2**30]], 2, [0], 4)  # past the limit: wraps, everywhere alike


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (0, 4), (2, 0)])
def test_empty_block_table(backend: Backend, rows: int, columns: int) -> None:
    table: list[list[int]] = [[1] * columns for _ in range(rows)]
    compare(backend, [255, 255], 1, [0, 0], table, 2, [0, 0], 4, options=BOUNDS, table_columns=columns)


def test_multi_token_decode_shares_a_request(backend: Backend) -> None:
    compare(backend, [126, 127, 128, 255], 4, [1, 1, 1, 1], [[9, 9], [4, 6]], 2, [0, 1, 2, 3], 4)


def test_no_tokens_gives_empty_views(backend: Backend) -> None:
    decode, lens, prefill = run(backend, [], 0, [], [[1]], 2, [], 4)
    assert (decode.shape[0], lens.shape[0], prefill.shape[0]) == (0, 0, 0)


def test_a_shorter_context_leaves_nothing_stale(backend: Backend) -> None:
    device, implementation = backend["device"], backend["implementation"]
    positions = torch.tensor([1023, 1023], device=device)
    slots = torch.tensor([0, 1], device=device)
    buffers = [torch.full((2, 8), POISON, dtype=torch.int32, device=device) for _ in range(2)]
    lens = torch.empty(2, dtype=torch.int32, device=device)

    def step() -> list[list[list[int]]]:
        requests = torch.zeros(2, dtype=torch.int32, device=device)
        table = torch.tensor([[5, 6, 7, 8]], dtype=torch.int32, device=device)
        views = build_c128a_topk_metadata(
            positions, 128, 1, requests, table, 2, slots, buffers[0], lens, buffers[1], implementation=implementation
        )
        return [views[0].tolist(), views[2].tolist()]

    assert step() == [[[10, 11, 12, 13, 14, 15, 16, 17]], [[0, 1, 2, 3, 4, 5, 6, 7]]]
    positions.fill_(255)
    assert step() == [[[10, 11] + [-1] * 6], [[0, 1] + [-1] * 6]]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_batch(backend: Backend, data: st.DataObject) -> None:
    tokens = data.draw(st.integers(1, 6))
    rows, columns = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 5))
    integers = lambda low, high: st.lists(st.integers(low, high), min_size=tokens, max_size=tokens)  # noqa: E731
    world = data.draw(st.integers(1, 3))
    compare(
        backend,
        data.draw(integers(-3, 60)),
        data.draw(st.integers(0, tokens)),
        data.draw(integers(-1, 4)),
        data.draw(
            st.lists(st.lists(st.integers(-1, 2**31 - 1), min_size=columns, max_size=columns), min_size=rows,
                     max_size=rows)
        ),
        data.draw(st.integers(1, 5)),
        data.draw(integers(-1, 1)),
        data.draw(st.integers(0, 20)),
        ratio=data.draw(st.sampled_from([1, 4])),
        capacity=22,
        table_columns=columns,
        options=MetadataOptions(*data.draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))),
        actual_num_query_tokens=data.draw(st.none() | st.integers(0, tokens + 1)),
        dcp_world_size=world,
        dcp_rank=data.draw(st.integers(0, world - 1)),
        dcp_interleave=data.draw(st.integers(1, 3)),
    )  # fmt: skip
