"""Bugs that have been met in sparse-attention metadata. Each test shows that the buggy form fails."""

from __future__ import annotations

import inspect

import pytest
import sparse_oracle
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.sparse import BOUNDS, MASKED, build_c128a_topk_metadata, compute_c4a_global_topk, nvrtc

Backend = dict[str, str]


def c4a(
    backend: Backend,
    indices: list[list[int]],
    requests: list[int],
    table: list[list[int]],
    size: int,
    **keywords: object,
) -> tuple[list[list[int]], list[int]]:
    device = backend["device"]
    out, lens = compute_c4a_global_topk(
        torch.tensor(indices, dtype=torch.int32, device=device),
        torch.tensor(requests, dtype=torch.int32, device=device),
        torch.tensor(table, dtype=torch.int32, device=device),
        size,
        torch.ones(len(indices), dtype=torch.bool, device=device),
        implementation=backend["implementation"],
        **keywords,
    )
    return out.tolist(), lens.tolist()


def c128a(
    backend: Backend, positions: list[int], decode: int, table: list[list[int]], size: int, width: int
) -> tuple[torch.Tensor, ...]:
    device, tokens = backend["device"], len(positions)
    buffers = [torch.full((tokens, width), -99, dtype=torch.int32, device=device) for _ in range(2)]
    return build_c128a_topk_metadata(
        torch.tensor(positions, device=device),
        128,
        decode,
        torch.arange(tokens, dtype=torch.int32, device=device) % len(table),
        torch.tensor(table, dtype=torch.int32, device=device),
        size,
        torch.zeros(tokens, dtype=torch.int64, device=device),
        buffers[0],
        torch.full((tokens,), -99, dtype=torch.int32, device=device),
        buffers[1],
        implementation=backend["implementation"],
    )


def test_block_size_in_compressed_slots_and_not_in_tokens(backend: Backend) -> None:
    """A page of 256 tokens holds 2 compressed slots at ratio 128; taken for 256, later pages are wrong."""
    table = [[9, 4, 7]]
    right = c128a(backend, [767], 1, table, 256 // 128, 6)[0].tolist()
    assert right == [[18, 19, 8, 9, 14, 15]]
    assert c128a(backend, [767], 1, table, 256, 6)[0].tolist() != right


def test_only_the_lower_bound_checked(backend: Backend) -> None:
    table, rows = [[3, 4]], [[0, 7, 8, 2**30]]
    out, lens = c4a(backend, rows, [0], table, 4, options=BOUNDS)
    assert (out, lens) == ([[12, 19, -1, -1]], [2])
    lower_only = sum(index >= 0 for index in rows[0])
    assert lens != [lower_only]


def test_bounds_are_those_of_the_columns_and_not_of_the_row_stride(backend: Backend) -> None:
    device = backend["device"]
    wide = torch.tensor([[3, 4, 77, 77]], dtype=torch.int32, device=device)[:, :2]
    out, lens = compute_c4a_global_topk(
        torch.tensor([[0, 8, 12]], dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, device=device), wide, 4, torch.ones(1, dtype=torch.bool, device=device),
        options=BOUNDS, implementation=backend["implementation"],
    )  # fmt: skip
    assert (out.tolist(), lens.tolist()) == ([[12, -1, -1]], [1])


def test_minus_one_is_never_an_index(backend: Backend) -> None:
    out, _ = c4a(backend, [[-1, 0]], [0], [[3, 99]], 4)
    assert out == [[-1, 12]]
    python_style = [[3, 99][-1] * 4 + (-1) % 4, 12]
    assert out != [python_style]


def test_a_padded_row_is_all_minus_one_and_not_only_short(backend: Backend) -> None:
    device = backend["device"]
    out, lens = compute_c4a_global_topk(
        torch.tensor([[0, 1]], dtype=torch.int32, device=device), torch.zeros(1, dtype=torch.int32, device=device),
        torch.tensor([[3]], dtype=torch.int32, device=device), 4, torch.zeros(1, dtype=torch.bool, device=device),
        options=MASKED, implementation=backend["implementation"],
    )  # fmt: skip
    assert (out.tolist(), lens.tolist()) == ([[-1, -1]], [0])


def test_width_of_8192_in_narrower_buffers_is_refused(backend: Backend) -> None:
    """It ran into the rows after each row."""
    device = backend["device"]
    buffer = torch.full((4, 128), -99, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="at most 128"):
        build_c128a_topk_metadata(
            torch.zeros(2, dtype=torch.int64, device=device), 128, 1,
            torch.zeros(2, dtype=torch.int32, device=device), torch.zeros(1, 1, dtype=torch.int32, device=device), 2,
            torch.zeros(2, dtype=torch.int64, device=device), buffer,
            torch.zeros(4, dtype=torch.int32, device=device), buffer.clone(), 8192,
            implementation=backend["implementation"],
        )  # fmt: skip
    assert (buffer == -99).all()


def test_prefill_rows_see_the_compressed_tokens(backend: Backend) -> None:
    """The integration filled them with -1, so prefill attended to the sliding window alone."""
    prefill = c128a(backend, [127, 640], 0, [[5]], 2, 8)[2].tolist()
    assert prefill == [[0] + [-1] * 7, [0, 1, 2, 3, 4, -1, -1, -1]]


def test_position_and_not_length_counts(backend: Backend) -> None:
    """Token p has p + 1 tokens up to itself: off by one either way moves the boundary at 127 and 128."""
    lens = c128a(backend, [126, 127, 255], 3, [[1, 2]] * 3, 2, 8)[1].tolist()
    assert lens == [0, 1, 2]
    assert lens != [p // 128 for p in (126, 127, 255)]


@pytest.mark.parametrize("topk", [511, 512, 513])
def test_more_candidates_than_any_hard_coded_topk(backend: Backend, topk: int) -> None:
    rows = [list(range(0, 3 * topk, 3))]
    table = [[(7 * c) % 101 for c in range(64)]]
    assert c4a(backend, rows, [0], table, 64) == sparse_oracle.c4a(rows, [0], table, 64, [True])


def test_other_addresses_and_shapes_in_any_order(backend: Backend) -> None:
    cases = [([[0, 5, -1]], [0], [[3, 4]], 4), ([[9, 1], [2, 3]], [1, 0], [[5, 6, 7], [8, 9, 10]], 4)]
    fresh = [c4a(backend, *case) for case in cases]
    for i in (0, 1, 1, 0, 1, 0):
        assert c4a(backend, *cases[i]) == fresh[i]


class _Count(TorchDispatchMode):
    operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.operations += 1
        assert func.name() not in ("aten::_local_scalar_dense", "aten::lift_fresh", "aten::nonzero")
        return func(*args, **(kwargs or {}))


def test_no_loop_over_tokens_and_no_host_read() -> None:
    counts = set()
    for tokens in (1, 7, 300):
        topk = torch.zeros((tokens, 64), dtype=torch.int32)
        requests, table = torch.zeros(tokens, dtype=torch.int32), torch.zeros((2, 4), dtype=torch.int32)
        positions, valid = torch.full((tokens,), 500), torch.ones(tokens, dtype=torch.bool)
        decode, prefill, lens = topk.clone(), topk.clone(), requests.clone()
        with _Count() as count:
            compute_c4a_global_topk(topk, requests, table, 64, valid)
            build_c128a_topk_metadata(
                positions, 128, (tokens + 1) // 2, requests, table, 2, positions, decode, lens, prefill
            )
        counts.add(count.operations)
    assert len(counts) == 1


def test_no_implementation_takes_over_from_another() -> None:
    for function in (build_c128a_topk_metadata, compute_c4a_global_topk):
        assert "except" not in inspect.getsource(inspect.getmodule(function))


def test_loaded_kernels_are_never_evicted() -> None:
    """A cache that evicts unloads a module which a captured graph still launches."""
    assert nvrtc.compile_cubin.cache_info().maxsize is None
    assert isinstance(nvrtc._loaded, dict)
