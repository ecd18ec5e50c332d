"""Index metadata of C4A layers: the indexer's choice, mapped from local indices to cache slots."""

from __future__ import annotations

import torch

from kernels.sparse import reference
from kernels.sparse.checks import VALID_DTYPES, check_matrix, check_positive, check_vector, same_memory
from kernels.sparse.ops import c4a_global_topk_, c4a_global_topk_out, select_implementation
from kernels.sparse.options import BASELINE, MetadataOptions


def compute_c4a_global_topk(
    topk_indices: torch.Tensor,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    is_valid_token: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    lens: torch.Tensor | None = None,
    options: MetadataOptions = BASELINE,
    implementation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Map local compressed indices of decode tokens to global cache slots.

    A local index i >= 0 of a token of request r becomes `table[r, i // block_size] * block_size + i % block_size`;
    a negative index, and one that the table has no entry for, becomes -1. The order is kept and nothing is packed:
    a -1 may stand between valid entries, so a length counts entries and need not delimit a prefix. The length of a
    token that is not valid is 0; its row is mapped all the same unless `options.masked`.

    Args:
        topk_indices: int32 (T, topk), rows may be further apart than they are wide.
        token_to_req_indices: int32 (T,), row of the block table for each token.
        block_table: int32 (requests, blocks), rows may be further apart than they are wide.
        block_size: compressed tokens a block (page of 256 tokens // 4 = 64), not tokens.
        is_valid_token: bool, uint8, int32 or int64 (T,); any non-zero value means valid.
        out: int32 (T, topk) to write, allocated if None. May be `topk_indices` itself.
        lens: int32 (T,) to write, allocated if None.
        options: variant of the contract, see `MetadataOptions`; `ignore_slots` has no meaning here and is refused.
        implementation: "cuda", "torch", or None for the one of the device. Never another than the one named.

    Returns:
        Global slots int32 (T, topk) and lengths int32 (T,): `out` and `lens` if they were given.

    Raises:
        TypeError: a tensor of another dtype.
        ValueError: a shape, stride, size or device that does not fit, row counts that differ, or an `out` that
            overlaps the input without being it.
        RuntimeError: first use on this device inside a graph capture; see `warmup_sparse_kernels`.
    """
    device = topk_indices.device
    check_matrix("topk_indices", topk_indices, device, written=out is topk_indices)
    check_vector("token_to_req_indices", token_to_req_indices, (torch.int32,), device)
    check_vector("is_valid_token", is_valid_token, VALID_DTYPES, device)
    check_matrix("block_table", block_table, device, written=False)
    check_positive("block_size", block_size)
    if options.ignore_slots:
        raise ValueError("options: ignore_slots is of C128A metadata only; is_valid_token says which tokens count")
    rows = topk_indices.shape[0]
    for name, tensor in (("token_to_req_indices", token_to_req_indices), ("is_valid_token", is_valid_token)):
        if tensor.shape[0] != rows:
            raise ValueError(
                f"{name}: row count mismatch: expected {rows} as topk_indices has, got {tensor.shape[0]}; "
                "slice all of them to the same tokens"
            )
    if lens is None:
        lens = torch.empty(rows, dtype=torch.int32, device=device)
    check_vector("lens", lens, (torch.int32,), device)
    if out is None:
        out = torch.empty(topk_indices.shape, dtype=torch.int32, device=device)
    check_matrix("out", out, device, written=True)
    if out.shape != topk_indices.shape or lens.shape[0] != rows:
        raise ValueError(
            f"out, lens: row count mismatch: expected {tuple(topk_indices.shape)} and ({rows},), got "
            f"{tuple(out.shape)} and {tuple(lens.shape)}; slice the buffers to the batch"
        )

    chosen = select_implementation(implementation, device)
    if rows == 0:
        return out, lens
    arguments = (token_to_req_indices, block_table, block_size, is_valid_token)
    in_place = same_memory(topk_indices, out)
    if chosen == "torch" and not torch.compiler.is_compiling():
        reference.c4a_global_topk(topk_indices, *arguments, out, lens, options)
    elif in_place:
        c4a_global_topk_(topk_indices, *arguments, lens, options.flags, chosen)
    else:
        c4a_global_topk_out(topk_indices, *arguments, out, lens, options.flags, chosen)
    return out, lens
