# mypy: ignore-errors
# Traced by the CuTe DSL: struct annotations are values, and scalars change type while they are traced.
"""Which block of the grouped GEMM works on which part of which tile, decided on the device from the expert offsets.

Whole tiles go round robin first; what is left (`GemmConfig.tail_split`: the last one or two waves, or everything)
is cut along K into ranges of equal length, one a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from kernels.sm90 import ptx
from kernels.sm90.weights import SLAB_ROWS

I32 = cutlass.Int32

MAX_EXPERTS = 512


@dataclass(frozen=True)
class GemmConfig:
    """One tile shape. A tile is `row_slabs` * 64 weight rows by up to `max_tokens` tokens."""

    name: str
    warpgroups: int
    """Consumer warpgroups of 128 threads."""
    slabs_per_warpgroup: int
    stages: int
    """Blocks of 128 along K in flight."""
    token_widths: tuple[int, ...]
    """wgmma N sizes compiled in; a tile takes the smallest that holds its tokens."""
    box_tokens: int
    """Tokens a TMA copy brings; only boxes that hold a token of the tile are copied."""
    steps: int
    """k16 steps a wgmma group: what is dequantised while `buffers` - 1 other groups run."""
    buffers: int
    """Sets of A registers."""
    registers: tuple[int, int]
    """Registers a thread after setmaxnreg: producer, consumer. Without it ptxas serialises every wgmma (C7512).
    The pool is what the launch allocates (threads * the register count ptxas reports), not the whole register file:
    asking for more waits for ever."""
    tail_split: bool
    """True: whole tiles round robin, and only the last one or two waves are cut along K. False: all work is cut."""

    @property
    def max_tokens(self) -> int:
        return self.token_widths[-1]

    @property
    def row_slabs(self) -> int:
        return self.warpgroups * self.slabs_per_warpgroup

    @property
    def consumers(self) -> int:
        return self.warpgroups * 128

    @property
    def threads(self) -> int:
        return self.consumers + 128

    @property
    def partial_bytes(self) -> int:
        """fp32 accumulators of one tile."""
        return self.row_slabs * SLAB_ROWS * self.max_tokens * 4


class Schedule:
    """Device functions of the tile walk; mixed into `GroupedGemm`."""

    c: GemmConfig

    @cute.jit
    def scan_tiles(self, starts: Any, offs: Any, experts: Any, row_tiles: Any, lane: Any) -> Any:
        """starts[e] = number of tiles of the groups before e; one warp, 32 groups a step."""
        carry = I32(0)
        first = I32(0)
        while first < experts:
            e = first + lane
            tiles = I32(0)
            if e < experts:
                tokens = offs[e + 1] - offs[e]
                tiles = (tokens + (self.c.max_tokens - 1)) // self.c.max_tokens * row_tiles
            for d in (1, 2, 4, 8, 16):
                below = cute.arch.shuffle_sync_up(tiles, d, mask_and_clamp=0)
                if lane >= d:
                    tiles += below
            if e < experts:
                starts[e + 1] = carry + tiles
            carry += cute.arch.shuffle_sync(tiles, 31)
            first += 32
        if lane == 0:
            starts[0] = 0

    # The work of a block is a list of segments (tile, kb0, kb1), walked alike by the producer and by every consumer.
    # What the walk needs lies in shared memory and not in registers, which the accumulators want
    # (`GemmConfig.registers`).

    @cute.jit
    def more(self, plan: Any, it: Any, u: Any) -> Any:
        """Whether a segment is left after `it` whole tiles and up to unit `u`."""
        return it < ptx.lds32(plan) or u < ptx.lds32(plan + 12)

    @cute.jit
    def segment_at(self, plan: Any, it: Any, u: Any, k_blocks: Any) -> Any:
        """(tile, kb0, kb1, next u) of the segment."""
        tile = it * ptx.lds32(plan + 24) + ptx.lds32(plan + 20)
        kb0 = I32(0)
        kb1 = k_blocks
        if it >= ptx.lds32(plan):
            tile = u // k_blocks
            kb0 = u - tile * k_blocks
            tile += ptx.lds32(plan + 16)
            kb1 = cutlass.min(k_blocks, kb0 + ptx.lds32(plan + 12) - u)
            u += kb1 - kb0
        return tile, kb0, kb1, u

    @cute.jit
    def locate(self, tile: Any, st: Any, experts: Any) -> Any:
        """(expert, row tile, first token row, tokens) of a tile."""
        c = self.c
        starts, offs = st.starts.data_ptr().toint(), st.offsets.data_ptr().toint()
        row_tiles = ptx.lds32(st.plan.data_ptr().toint() + 28)
        low = I32(0)
        high = experts
        while high - low > 1:  # starts[low] <= tile < starts[high]
            mid = (low + high) // 2
            if ptx.lds32(starts + mid * 4) <= tile:
                low = mid
            else:
                high = mid
        local = tile - ptx.lds32(starts + low * 4)
        row0 = ptx.lds32(offs + low * 4)
        end = ptx.lds32(offs + low * 4 + 4)
        token_tiles = (end - row0 + (c.max_tokens - 1)) // c.max_tokens
        if cutlass.const_expr(c.tail_split):
            # Row tiles fastest: a wave covers all weight rows of a few token tiles, both stay in L2.
            token_tile = local // row_tiles
            row_tile = local - token_tile * row_tiles
        else:
            # Token tiles fastest: the block that reads a weight tile uses it for all its tokens.
            row_tile = local // token_tiles
            token_tile = local - row_tile * token_tiles
        row0 += token_tile * c.max_tokens
        return low, row_tile, row0, cutlass.min(end - row0, c.max_tokens)
