"""The metadata kernels in torch operations.

Runs on any device, reads nothing back to the host and allocates only temporaries of static shape, so it can be
captured. It is the CPU implementation and the yardstick for the CUDA kernels; it makes no attempt at speed.
"""

from __future__ import annotations

import torch

from kernels.sparse.options import MetadataOptions


def c128a_topk_metadata(
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
    options: MetadataOptions,
) -> None:
    """Fill the first `width` columns of the buffers' rows; arguments as in `build_c128a_topk_metadata`."""
    tokens, decode = positions.shape[0], num_decode_tokens
    device = positions.device
    token = torch.arange(tokens, device=device)
    padded = token >= actual_tokens
    if not options.ignore_slots:
        padded = padded | (slot_mapping[:tokens] < 0)
    count = torch.div(positions + 1, compress_ratio, rounding_mode="floor").clamp(0, width)
    if options.masked:
        count = torch.where(padded, 0, count)
    column = torch.arange(width, device=device)

    local = torch.where(column < count[decode:, None], column, -1)
    prefill_buffer[: tokens - decode, :width].copy_(local)
    if decode == 0:
        return

    count = _owned_by_rank(count[:decode], dcp_world, dcp_rank, dcp_interleave)
    slots, inside = _map_through_table(
        column.expand(decode, width), token_to_req_indices[:decode], block_table, block_size
    )
    inside &= column < count[:, None]
    decode_buffer[:decode, :width].copy_(torch.where(inside, slots, -1))
    if options.bounds:
        count = inside.sum(dim=1)
    lens_buffer[:decode].copy_(torch.where(padded[:decode], 0, count))


def c4a_global_topk(
    topk_indices: torch.Tensor,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    is_valid_token: torch.Tensor,
    out: torch.Tensor,
    lens: torch.Tensor,
    options: MetadataOptions,
) -> None:
    """Fill `out` and `lens`; arguments as in `compute_c4a_global_topk`. `out` may be `topk_indices`."""
    valid = is_valid_token != 0
    present = topk_indices >= 0
    if options.masked:
        present = present & valid[:, None]
    slots, inside = _map_through_table(topk_indices.long(), token_to_req_indices, block_table, block_size)
    inside &= present
    counted = inside if options.bounds else present
    lens.copy_(torch.where(valid, counted.sum(dim=1), 0))
    out.copy_(torch.where(inside, slots, -1))


def _owned_by_rank(total: torch.Tensor, world: int, rank: int, interleave: int) -> torch.Tensor:
    """How many of the first `total` compressed tokens the rank stores, dealt out in runs of `interleave`."""
    full_round = interleave * world
    tail = (total % full_round - rank * interleave).clamp(0, interleave)
    return torch.div(total, full_round, rounding_mode="floor") * interleave + tail


def _map_through_table(
    local: torch.Tensor, request: torch.Tensor, block_table: torch.Tensor, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots (int64) of local indices (rows, width), and whether the table has an entry for them.

    Slots of entries outside the table are arbitrary.
    """
    rows, columns = block_table.shape
    if rows == 0 or columns == 0:
        return torch.zeros_like(local), torch.zeros_like(local, dtype=torch.bool)
    request = request.long()
    column = torch.div(local, block_size, rounding_mode="floor")
    inside = (column >= 0) & (column < columns) & ((request >= 0) & (request < rows))[:, None]
    blocks = block_table.index_select(0, request.clamp(0, rows - 1)).gather(1, column.clamp(0, columns - 1))
    return blocks.long() * block_size + local % block_size, inside
