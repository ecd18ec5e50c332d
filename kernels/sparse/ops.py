"""Custom-op registration, so that torch.compile and fake tensors see the metadata kernels as single operations.

The operators write into buffers of the caller and return nothing: an output that were a view of an argument would
break functionalisation. Work in place has an operator of its own, for a schema must name what it mutates.

Outside torch.compile the torch implementation is called directly, so that dispatch modes (memory trackers, capture
checks) see its operations; the CUDA kernels always run as operators, so that fake tensors never reach a launch.
"""

from __future__ import annotations

import torch

from kernels.sparse import nvrtc, reference
from kernels.sparse.options import MetadataOptions

IMPLEMENTATIONS = ("cuda", "torch")
C128A_THREADS = 256
C4A_MAX_THREADS = 256
COLUMNS_PER_THREAD = 4


def select_implementation(implementation: str | None, device: torch.device) -> str:
    """The implementation to run: the caller's choice, else "cuda" on a GPU and "torch" elsewhere."""
    if implementation is None:
        return "cuda" if device.type == "cuda" else "torch"
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation: expected one of {IMPLEMENTATIONS} or None, got {implementation!r}")
    if implementation == "cuda" and device.type != "cuda":
        raise ValueError(f"implementation: 'cuda' needs CUDA tensors, got {device}; use 'torch' there")
    return implementation


def c4a_threads(width: int) -> int:
    """Threads of a row's block: a whole number of warps, four columns a thread."""
    wanted = -(-width // COLUMNS_PER_THREAD)
    return max(32, min(C4A_MAX_THREADS, -(-wanted // 32) * 32))


@torch.library.custom_op(
    "kh_sparse::c128a_topk_metadata_", mutates_args=("decode_buffer", "lens_buffer", "prefill_buffer")
)
def c128a_topk_metadata_(
    positions: torch.Tensor,
    compress_ratio: int,
    num_decode_tokens: int,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    slot_mapping: torch.Tensor,
    decode_buffer: torch.Tensor,
    lens_buffer: torch.Tensor,
    prefill_buffer: torch.Tensor,
    width: int,
    actual_tokens: int,
    dcp_world: int,
    dcp_rank: int,
    dcp_interleave: int,
    flags: int,
    implementation: str,
) -> None:
    if implementation == "torch":
        reference.c128a_topk_metadata(
            positions, compress_ratio, num_decode_tokens, token_to_req_indices, block_table, block_size, slot_mapping,
            decode_buffer, lens_buffer, prefill_buffer, width, actual_tokens, dcp_world, dcp_rank, dcp_interleave,
            MetadataOptions.from_flags(flags),
        )  # fmt: skip
        return
    device, tokens = positions.device, positions.shape[0]
    tiles = max(1, -(-width // (C128A_THREADS * COLUMNS_PER_THREAD)))
    nvrtc.launch(
        nvrtc.kernels_for(device).c128a_topk_metadata, device, tokens * tiles, C128A_THREADS,
        positions.data_ptr(), tokens, num_decode_tokens, compress_ratio, token_to_req_indices.data_ptr(),
        block_table.data_ptr(), block_table.stride(0), block_table.shape[0], block_table.shape[1], block_size,
        slot_mapping.data_ptr(), decode_buffer.data_ptr(), decode_buffer.stride(0), lens_buffer.data_ptr(),
        prefill_buffer.data_ptr(), prefill_buffer.stride(0), width, tiles, actual_tokens, dcp_world, dcp_rank,
        dcp_interleave, flags,
    )  # fmt: skip


@c128a_topk_metadata_.register_fake
def _(
    positions: torch.Tensor,
    compress_ratio: int,
    num_decode_tokens: int,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    slot_mapping: torch.Tensor,
    decode_buffer: torch.Tensor,
    lens_buffer: torch.Tensor,
    prefill_buffer: torch.Tensor,
    width: int,
    actual_tokens: int,
    dcp_world: int,
    dcp_rank: int,
    dcp_interleave: int,
    flags: int,
    implementation: str,
) -> None:
    return None


@torch.library.custom_op("kh_sparse::c4a_global_topk_out", mutates_args=("out", "lens"))
def c4a_global_topk_out(
    topk_indices: torch.Tensor,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    is_valid_token: torch.Tensor,
    out: torch.Tensor,
    lens: torch.Tensor,
    flags: int,
    implementation: str,
) -> None:
    _c4a(topk_indices, token_to_req_indices, block_table, block_size, is_valid_token, out, lens, flags, implementation)


@c4a_global_topk_out.register_fake
def _(
    topk_indices: torch.Tensor,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    is_valid_token: torch.Tensor,
    out: torch.Tensor,
    lens: torch.Tensor,
    flags: int,
    implementation: str,
) -> None:
    return None


@torch.library.custom_op("kh_sparse::c4a_global_topk_", mutates_args=("topk_indices", "lens"))
def c4a_global_topk_(
    topk_indices: torch.Tensor,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    is_valid_token: torch.Tensor,
    lens: torch.Tensor,
    flags: int,
    implementation: str,
) -> None:
    _c4a(
        topk_indices, token_to_req_indices, block_table, block_size, is_valid_token, topk_indices, lens, flags,
        implementation,
    )  # fmt: skip


@c4a_global_topk_.register_fake
def _(
    topk_indices: torch.Tensor,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    is_valid_token: torch.Tensor,
    lens: torch.Tensor,
    flags: int,
    implementation: str,
) -> None:
    return None


def _c4a(
    topk_indices: torch.Tensor,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    is_valid_token: torch.Tensor,
    out: torch.Tensor,
    lens: torch.Tensor,
    flags: int,
    implementation: str,
) -> None:
    if implementation == "torch":
        reference.c4a_global_topk(
            topk_indices, token_to_req_indices, block_table, block_size, is_valid_token, out, lens,
            MetadataOptions.from_flags(flags),
        )  # fmt: skip
        return
    device = topk_indices.device
    rows, width = topk_indices.shape
    nvrtc.launch(
        nvrtc.kernels_for(device).c4a_global_topk, device, rows, c4a_threads(width),
        topk_indices.data_ptr(), topk_indices.stride(0), rows, width, token_to_req_indices.data_ptr(),
        block_table.data_ptr(), block_table.stride(0), block_table.shape[0], block_table.shape[1], block_size,
        is_valid_token.data_ptr(), is_valid_token.element_size(), out.data_ptr(), out.stride(0), lens.data_ptr(),
        flags,
    )  # fmt: skip
