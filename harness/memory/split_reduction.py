"""The partial results of a reduction that torch spreads over several blocks.

A reduction of everything to one value has no second dimension to run in parallel, so ATen/native/cuda/Reduce.cuh
divides it over blocks and takes two buffers from the allocator: one partial result a block, and a counter. Two H200
measurements agree with what follows from its rules: amax of 8192 x 7168 bf16 takes 2,048 B (528 blocks x 2 B, rounded
up, and the counter), sum of it about 3 KB (528 x 4 B).
"""

from __future__ import annotations

from typing import Any

import torch

_THREADS = 512
_MIN_VALUES_A_THREAD, _MAX_VALUES_A_THREAD = 16, 256
_COUNTER = 4

SPLIT_FROM_ALONG_ROWS = _THREADS * _MAX_VALUES_A_THREAD
"""Elements reduced into one, along the contiguous dimension, from which a reduction may be split."""
SPLIT_FROM_ACROSS_ROWS = 2048
"""The same across rows, where a block has as few as eight threads for one result."""

_IN_OWN_TYPE = frozenset({"amax", "amin", "max", "min"})
_IN_ACCUMULATION_TYPE = frozenset({"sum", "mean"})


def split_reduction(
    base: str, args: tuple[Any, ...], out: Any, processors: int, threads: int
) -> tuple[int, ...] | None:
    """Sizes of the buffers of one call; () if it is not split, None if this is not a reduction to one value.

    ``base`` is the operator's name, ``processors`` and ``threads`` are the device's multiprocessors and the threads
    that one of them holds.
    """
    if base not in _IN_OWN_TYPE | _IN_ACCUMULATION_TYPE or not args:
        return None
    if not (isinstance(out, torch.Tensor) and out.numel() == 1 and args[0].is_contiguous()):
        return None
    values = -(-args[0].numel() // _THREADS)
    if values < _MAX_VALUES_A_THREAD:
        return ()
    fill = processors * (threads // _THREADS)
    blocks = max(min(fill, -(-values // _MIN_VALUES_A_THREAD)), -(-values // _MAX_VALUES_A_THREAD))
    return (_partial_bytes(base, args[0].dtype, out.dtype) * blocks, _COUNTER) if blocks > 1 else ()


def _partial_bytes(base: str, dtype: torch.dtype, result: torch.dtype) -> int:
    if base in _IN_OWN_TYPE:
        return dtype.itemsize
    return max(4, result.itemsize) if result.is_floating_point else result.itemsize
