"""Index metadata of C128A layers: every compressed token up to the query's position, in order."""

from __future__ import annotations

import torch

from kernels.sparse import reference
from kernels.sparse.checks import (
    INT32_MAX,
    check_at_least,
    check_matrix,
    check_positive,
    check_vector,
    share_memory,
)
from kernels.sparse.ops import c128a_topk_metadata_, select_implementation
from kernels.sparse.options import BASELINE, MetadataOptions


def build_c128a_topk_metadata(
    positions: torch.Tensor,
    compress_ratio: int,
    num_decode_tokens: int,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    slot_mapping: torch.Tensor,
    global_decode_buffer: torch.Tensor,
    decode_lens_buffer: torch.Tensor,
    prefill_buffer: torch.Tensor,
    max_compressed_tokens: int | None = None,
    *,
    options: MetadataOptions = BASELINE,
    actual_num_query_tokens: int | None = None,
    dcp_world_size: int = 1,
    dcp_rank: int = 0,
    dcp_interleave: int = 1,
    implementation: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fill the persistent index buffers of a step and return their used rows.

    A token at position p sees n = min((p + 1) // compress_ratio, max_compressed_tokens) compressed tokens (0 for a
    negative position). The batch holds its decode tokens first.

    - Decode row: column j < n holds the global slot `table[request, j // block_size] * block_size + j % block_size`,
      the other columns up to `max_compressed_tokens` hold -1; the length is n, or 0 for a padded token.
    - Prefill row: column j < n holds j, a local index; the others hold -1.

    A token is padding if its slot is negative or its index is at least `actual_num_query_tokens`. Columns from
    `max_compressed_tokens` on are not touched. With `dcp_world_size` > 1 a decode row holds only the slots of this
    rank, packed to the left; the compressed tokens are dealt to the ranks in runs of `dcp_interleave`.

    Args:
        positions: int64 (T,).
        compress_ratio: tokens that one compressed token stands for (128).
        num_decode_tokens: D, 0 <= D <= T.
        token_to_req_indices: int32 (>= T,), row of the block table for each token; read for decode tokens only.
        block_table: int32 (requests, blocks), rows may be further apart than they are wide; physical block numbers.
        block_size: compressed tokens a block (page of 256 tokens // 128 = 2), not tokens.
        slot_mapping: int64 (>= T,), negative for padding.
        global_decode_buffer: int32 (>= D, >= max_compressed_tokens), written.
        decode_lens_buffer: int32 (>= D,), written.
        prefill_buffer: int32 (>= T - D, >= max_compressed_tokens), written.
        max_compressed_tokens: columns to fill; None takes the width of the buffers, which must then agree. It never
            exceeds a buffer's width: filling 8192 columns of a narrower row would run into the rows after it.
        options: variant of the contract, see `MetadataOptions`.
        actual_num_query_tokens: tokens that are not padding of the batch; None means all.
        dcp_world_size, dcp_rank, dcp_interleave: decode context parallelism.
        implementation: "cuda", "torch", or None for the one of the device. Never another than the one named.

    Returns:
        `global_decode_buffer[:D]`, `decode_lens_buffer[:D]`, `prefill_buffer[: T - D]`, views at full width.

    Raises:
        TypeError: a tensor of another dtype.
        ValueError: a shape, stride, size or device that does not fit.
        RuntimeError: first use on this device inside a graph capture; see `warmup_sparse_kernels`.
    """
    device = positions.device
    check_vector("positions", positions, (torch.int64,), device)
    tokens, decode = positions.shape[0], num_decode_tokens
    if not 0 <= decode <= tokens:
        raise ValueError(f"num_decode_tokens: expected 0..{tokens}, got {decode}; decode tokens are a prefix of T")
    check_vector("token_to_req_indices", token_to_req_indices, (torch.int32,), device)
    check_vector("slot_mapping", slot_mapping, (torch.int64,), device)
    check_vector("decode_lens_buffer", decode_lens_buffer, (torch.int32,), device)
    check_matrix("block_table", block_table, device, written=False)
    check_matrix("global_decode_buffer", global_decode_buffer, device, written=True)
    check_matrix("prefill_buffer", prefill_buffer, device, written=True)
    check_positive("compress_ratio", compress_ratio)
    check_positive("block_size", block_size)

    grow = "allocate it for the largest batch"
    check_at_least("token_to_req_indices", token_to_req_indices.shape[0], tokens, "tokens", grow)
    check_at_least("slot_mapping", slot_mapping.shape[0], tokens, "tokens", grow)
    check_at_least("decode_lens_buffer", decode_lens_buffer.shape[0], decode, "tokens", grow)
    check_at_least("global_decode_buffer", global_decode_buffer.shape[0], decode, "rows", grow)
    check_at_least("prefill_buffer", prefill_buffer.shape[0], tokens - decode, "rows", grow)
    if decode and tokens > decode and share_memory(global_decode_buffer, prefill_buffer):
        raise ValueError(
            "global_decode_buffer, prefill_buffer: expected buffers of their own, got two views of one storage; "
            "decode and prefill rows would overwrite each other"
        )
    width = _width(max_compressed_tokens, global_decode_buffer, prefill_buffer, decode, tokens - decode)

    actual = tokens if actual_num_query_tokens is None else actual_num_query_tokens
    if actual < 0:
        raise ValueError(f"actual_num_query_tokens: expected at least 0, got {actual}; pass None for no padding")
    check_positive("dcp_world_size", dcp_world_size)
    check_positive("dcp_interleave", dcp_interleave)
    if not 0 <= dcp_rank < dcp_world_size:
        raise ValueError(f"dcp_rank: expected 0..{dcp_world_size - 1}, got {dcp_rank}; it counts within its group")

    chosen = select_implementation(implementation, device)
    arguments = (
        positions, compress_ratio, decode, token_to_req_indices, block_table, block_size, slot_mapping,
        global_decode_buffer, decode_lens_buffer, prefill_buffer, width, actual, dcp_world_size, dcp_rank,
        dcp_interleave,
    )  # fmt: skip
    if tokens and chosen == "torch" and not torch.compiler.is_compiling():
        reference.c128a_topk_metadata(*arguments, options)
    elif tokens:
        c128a_topk_metadata_(*arguments, options.flags, chosen)
    return (
        global_decode_buffer.narrow(0, 0, decode),
        decode_lens_buffer.narrow(0, 0, decode),
        prefill_buffer.narrow(0, 0, tokens - decode),
    )


def _width(
    asked: int | None, decode_buffer: torch.Tensor, prefill_buffer: torch.Tensor, decode: int, prefill: int
) -> int:
    """Columns to fill; refuses more than a used buffer has."""
    widths = (decode_buffer.shape[1], prefill_buffer.shape[1])
    if asked is None:
        if widths[0] != widths[1]:
            raise ValueError(
                f"max_compressed_tokens: None needs buffers of one width, got {widths[0]} and {widths[1]}; "
                "pass the number of columns to fill"
            )
        asked = widths[0]
    if not 0 <= asked <= INT32_MAX // 2:
        raise ValueError(f"max_compressed_tokens: expected 0..{INT32_MAX // 2}, got {asked}")
    used = [width for width, rows in zip(widths, (decode, prefill), strict=True) if rows]
    if used and asked > min(used):
        raise ValueError(
            f"max_compressed_tokens: expected at most {min(used)}, the width of the narrower buffer, got {asked}; "
            "pass the buffers' width, or None"
        )
    return asked
