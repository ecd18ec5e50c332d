"""The metadata contract token by token in numpy, written from its description and from nothing else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.sparse import MetadataOptions

Ints = npt.NDArray[np.int64]


def slots(table: Ints, request: int, local: Ints, block_size: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Global slots of one request's local indices, wrapped to int32, and which of them the block table can map."""
    inside = (local >= 0) & (local // block_size < table.shape[1]) & (0 <= request < table.shape[0])
    if not inside.any():
        return np.full(local.shape, -1), inside
    column = np.where(inside, local // block_size, 0)
    slot = table[request, column] * block_size + local % block_size
    return np.where(inside, (slot + 2**31) % 2**32 - 2**31, -1), inside


def c4a(
    topk: Ints, requests: Ints, table: Ints, block_size: int, valid: npt.NDArray[np.bool_], options: MetadataOptions
) -> tuple[Ints, Ints]:
    """Slots (T, topk) and lengths (T,) of the indexer's choice."""
    out, lens = np.full(topk.shape, -1), np.zeros(topk.shape[0], np.int64)
    for t in range(topk.shape[0]):
        if options.masked and not valid[t]:
            continue
        out[t], inside = slots(table, int(requests[t]), topk[t], block_size)
        if valid[t]:
            lens[t] = inside.sum() if options.bounds else (topk[t] >= 0).sum()
    return out, lens


def c128a(
    positions: Ints,
    decode: int,
    requests: Ints,
    table: Ints,
    block_size: int,
    slot_mapping: Ints,
    width: int,
    options: MetadataOptions,
) -> tuple[Ints, Ints, Ints]:
    """Decode slots (D, width), their lengths (D,) and prefill rows (T - D, width), compress ratio 128."""
    tokens = positions.shape[0]
    columns = np.arange(width)
    rows, lens = np.full((tokens, width), -1), np.zeros(decode, np.int64)
    for t in range(tokens):
        count = min(max((int(positions[t]) + 1) // 128, 0), width)
        padded = slot_mapping[t] < 0 and not options.ignore_slots
        if options.masked and padded:
            count = 0
        if t >= decode:
            rows[t, :count] = columns[:count]
            continue
        rows[t, :count], inside = slots(table, int(requests[t]), columns[:count], block_size)
        if not padded:
            lens[t] = inside.sum() if options.bounds else count
    return rows[:decode], lens, rows[decode:]
