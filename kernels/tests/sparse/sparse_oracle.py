"""Brute force in plain Python, from the contract alone: lists in, lists out, one token and one column at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.sparse import BASELINE, MetadataOptions

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True)
class C128AResult:
    decode: list[list[int]]
    lens: list[int]
    prefill: list[list[int]]


def lookup(table: Rows, request: int, local: int, block_size: int) -> int | None:
    """The slot of a local index, None where the table has no entry."""
    if not 0 <= request < len(table) or local < 0 or local // block_size >= len(table[request]):
        return None
    slot = table[request][local // block_size] * block_size + local % block_size
    return (slot + 2**31) % 2**32 - 2**31


def c128a(
    positions: Sequence[int],
    num_decode: int,
    requests: Sequence[int],
    table: Rows,
    block_size: int,
    slots: Sequence[int],
    width: int,
    ratio: int = 128,
    options: MetadataOptions = BASELINE,
    actual: int | None = None,
    world: int = 1,
    rank: int = 0,
    interleave: int = 1,
) -> C128AResult:
    decode, lens, prefill = [], [], []
    for t, position in enumerate(positions):
        padded = (actual is not None and t >= actual) or (slots[t] < 0 and not options.ignore_slots)
        visible = []  # local indices of compressed tokens that are complete at this position
        while len(visible) < width and (len(visible) + 1) * ratio <= position + 1:
            visible.append(len(visible))
        if padded and options.masked:
            visible = []
        if t >= num_decode:
            prefill.append([*visible, *[-1] * (width - len(visible))])
            continue
        mine = [j for j in visible if (j // interleave) % world == rank]
        mapped = [lookup(table, requests[t], local, block_size) for local in range(len(mine))]
        row = [-1 if slot is None else slot for slot in mapped]
        decode.append([*row, *[-1] * (width - len(row))])
        counted = sum(slot is not None for slot in mapped) if options.bounds else len(mapped)
        lens.append(0 if padded else counted)
    return C128AResult(decode, lens, prefill)


def c4a(
    indices: Rows,
    requests: Sequence[int],
    table: Rows,
    block_size: int,
    valid: Sequence[bool],
    options: MetadataOptions = BASELINE,
) -> tuple[list[list[int]], list[int]]:
    out, lens = [], []
    for row, request, real in zip(indices, requests, valid, strict=True):
        result, count = [], 0
        for local in row:
            if local < 0 or (options.masked and not real):
                result.append(-1)
                continue
            slot = lookup(table, request, local, block_size)
            result.append(-1 if slot is None else slot)
            count += slot is not None or not options.bounds
        out.append(result)
        lens.append(count if real else 0)
    return out, lens
