"""The model of the caching allocator, against its rules and against itself."""

from __future__ import annotations

import itertools
import random

import pytest

from harness.memory import CachingAllocator

KiB, MiB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MiB),  # at least 512 B, from a 2 MiB segment
        (513, 1024, 2 * MiB),  # rounded to 512 B
        (MiB, MiB, 2 * MiB),  # the largest small block
        (MiB + 1, MiB + 512, 20 * MiB),  # cut from a 20 MiB segment
        (10 * MiB, 10 * MiB, 10 * MiB),  # a segment of its own
        (11 * MiB, 12 * MiB, 12 * MiB),  # its segment is rounded to 2 MiB, and 1 MiB left over is not split off
        (13 * MiB - 1, 14 * MiB, 14 * MiB),
        (21 * MiB + 512, 22 * MiB, 22 * MiB),
    ],
)
def test_one_block(size, allocated, reserved):
    allocator = CachingAllocator()
    allocator.malloc(size)
    assert (allocator.requested.now, allocator.allocated.now, allocator.reserved.now) == (size, allocated, reserved)


def test_an_empty_tensor_takes_nothing():
    allocator = CachingAllocator()
    assert allocator.malloc(0) is None
    allocator.free(None)
    assert allocator.reserved.now == 0


def test_a_freed_block_is_reused_whole_if_little_would_be_left():
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(12 * MiB))
    block = allocator.malloc(11 * MiB + 512)
    assert block.size == 12 * MiB
    assert allocator.reserved.now == 12 * MiB


def test_a_large_block_is_split_if_more_than_one_mebibyte_is_left():
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(20 * MiB))
    first, second = allocator.malloc(12 * MiB), allocator.malloc(8 * MiB)
    assert (first.size, second.size) == (12 * MiB, 8 * MiB)
    assert allocator.reserved.now == 20 * MiB


def test_the_best_fit_is_taken_and_not_the_first():
    allocator = CachingAllocator()
    large, small = allocator.malloc(40 * MiB), allocator.malloc(12 * MiB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.malloc(12 * MiB) is small


def test_neighbours_merge_and_segments_do_not():
    allocator = CachingAllocator()
    blocks = [allocator.malloc(4 * MiB) for _ in range(5)]  # one segment of 20 MiB
    other = allocator.malloc(20 * MiB)
    for block in (blocks[1], blocks[3], blocks[2], blocks[0], blocks[4], other):
        allocator.free(block)
    assert allocator.malloc(20 * MiB) is not None
    assert allocator.malloc(20 * MiB) is not None
    assert allocator.reserved.now == 40 * MiB
    allocator.malloc(24 * MiB)  # would fit into both together
    assert allocator.reserved.now == 64 * MiB


def test_peaks_stay_and_can_be_reset():
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(30 * MiB))
    assert (allocator.allocated.now, allocator.allocated.peak) == (0, 30 * MiB)
    allocator.reset_peaks()
    assert allocator.allocated.peak == 0
    assert allocator.reserved.peak == 30 * MiB


def test_empty_cache_gives_back_only_whole_segments():
    allocator = CachingAllocator()
    kept = allocator.malloc(4 * MiB)
    allocator.free(allocator.malloc(4 * MiB))
    allocator.free(allocator.malloc(64 * MiB))
    allocator.empty_cache()
    assert allocator.reserved.now == 20 * MiB
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.reserved.now == 0


def test_random_histories_keep_the_books():
    """No overlap, nothing lost: live and free blocks tile every segment, and all merges back in the end."""
    for seed in range(20):
        rng = random.Random(seed)
        allocator, live = CachingAllocator(), []
        for _ in range(300):
            if live and rng.random() < 0.5:
                allocator.free(live.pop(rng.randrange(len(live))))
            else:
                live.append(allocator.malloc(int(2 ** rng.uniform(0, 27))))
            spans = sorted((block.address, block.size) for block in live)
            assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(spans))
            free = [block for pool in allocator._free.values() for block in pool]
            assert sum(block.size for block in live) == allocator.allocated.now
            assert sum(block.size for block in [*live, *free]) == allocator.reserved.now
        for block in live:
            allocator.free(block)
        assert (allocator.allocated.now, allocator.requested.now) == (0, 0)
        allocator.empty_cache()
        assert allocator.reserved.now == 0
