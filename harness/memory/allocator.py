"""A model of torch's CUDA caching allocator: what ``max_memory_allocated`` would say.

The allocator hands out blocks, not bytes. Sizes are rounded to 512 B. Blocks up to 1 MiB are cut from segments of
2 MiB, larger ones from segments of 20 MiB, and from 10 MiB on from segments of their own size rounded to 2 MiB. A
large block is split only if more than 1 MiB is left over, and a block that is not split counts whole: so every large
live tensor may count for up to 1 MiB more than it asked for.

Modelled: the default settings, one stream, an empty pool at the start. Not modelled: expandable_segments,
max_split_size_mb, garbage collection, and retries when memory runs out.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

# c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp
_MIN_BLOCK = 512
_SMALL_SIZE = 1 << 20
_SMALL_SEGMENT = 2 << 20
_LARGE_SEGMENT = 20 << 20
_MIN_LARGE = 10 << 20
_ROUND_LARGE = 2 << 20
_FAR_APART = 1 << 30  # between segments, so that blocks of two segments are never neighbours


@dataclass(eq=False)
class Block:
    """A piece of a segment. ``requested`` is what the tensor in it asked for."""

    size: int
    address: int
    small: bool
    requested: int = 0
    free: bool = True
    before: Block | None = None
    after: Block | None = None

    @property
    def order(self) -> tuple[int, int]:
        """Best fit: the smallest that is large enough, then the lowest address."""
        return self.size, self.address


@dataclass
class Usage:
    """Bytes now and at their highest since the last ``reset_peaks``."""

    now: int = 0
    peak: int = 0

    def add(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


class CachingAllocator:
    """``malloc`` and ``free`` as the allocator does them, with its three counters."""

    def __init__(self) -> None:
        self.allocated = Usage()
        """Sizes of the blocks handed out: ``torch.cuda.memory_allocated``."""
        self.requested = Usage()
        """Bytes asked for: ``requested_bytes`` of ``torch.cuda.memory_stats``."""
        self.reserved = Usage()
        """Segments taken from the device: ``torch.cuda.memory_reserved``."""
        self._free: dict[bool, list[Block]] = {True: [], False: []}
        self._next_segment = 1 << 40

    def malloc(self, size: int) -> Block | None:
        """A block for ``size`` bytes; None for an empty tensor, which takes none."""
        if size == 0:
            return None
        rounded = max(_MIN_BLOCK, _round_up(size, _MIN_BLOCK))
        small = rounded <= _SMALL_SIZE
        block = self._take(rounded, small) or self._new_segment(rounded, small)
        left = block.size - rounded
        if left >= _MIN_BLOCK if small else left > _SMALL_SIZE:
            self._split(block, rounded)
        block.free, block.requested = False, size
        self.allocated.add(block.size)
        self.requested.add(size)
        return block

    def free(self, block: Block | None) -> None:
        """Give a block back; it grows together with free neighbours of its segment."""
        if block is None:
            return
        self.allocated.add(-block.size)
        self.requested.add(-block.requested)
        block.free, block.requested = True, 0
        before, after = block.before, block.after
        if before is not None and before.free:
            self._remove(before)
            block.address, block.size, block.before = before.address, block.size + before.size, before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            self._remove(after)
            block.size, block.after = block.size + after.size, after.after
            if block.after is not None:
                block.after.before = block
        self._insert(block)

    def empty_cache(self) -> None:
        """Give every wholly free segment back to the device."""
        for pool in self._free.values():
            for block in [block for block in pool if block.before is None and block.after is None]:
                pool.remove(block)
                self.reserved.add(-block.size)

    def reset_peaks(self) -> None:
        for usage in (self.allocated, self.requested, self.reserved):
            usage.peak = usage.now

    def _take(self, size: int, small: bool) -> Block | None:
        pool = self._free[small]
        found = bisect.bisect_left(pool, (size, 0), key=lambda block: block.order)
        return pool.pop(found) if found < len(pool) else None

    def _new_segment(self, size: int, small: bool) -> Block:
        if small:
            segment = _SMALL_SEGMENT
        else:
            segment = _LARGE_SEGMENT if size < _MIN_LARGE else _round_up(size, _ROUND_LARGE)
        block = Block(segment, self._next_segment, small)
        self._next_segment += segment + _FAR_APART
        self.reserved.add(segment)
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.size - size, block.address + size, block.small, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.size, block.after = size, rest
        self._insert(rest)

    def _insert(self, block: Block) -> None:
        bisect.insort(self._free[block.small], block, key=lambda entry: entry.order)

    def _remove(self, block: Block) -> None:
        pool = self._free[block.small]
        del pool[bisect.bisect_left(pool, block.order, key=lambda entry: entry.order)]


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
