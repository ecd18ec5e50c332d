# mypy: ignore-errors
# Traced by the CuTe DSL: struct annotations are values, and scalars change type while they are traced.
"""From accumulators to the result: parts of a tile cut along K are added, then scaled, activated, transposed,
stored.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from kernels.sm90 import ptx
from kernels.sm90.gemm_schedule import GemmConfig
from kernels.sm90.weights import SLAB_ROWS

I64 = cutlass.Int64


class Epilogue:
    """Device functions behind the main loop; mixed into `GroupedGemm`."""

    c: GemmConfig
    swiglu: bool

    @cute.jit
    def contribute(
        self, n: cutlass.Constexpr, acc: Any, workspace: Any, counters: Any, st: Any, tile: Any, k_blocks: Any
    ) -> Any:
        """Leave this block's part of a tile, which it continues, for the block that began it. Nothing is waited
        for.
        """
        c = self.c
        tid, _, _ = cute.arch.thread_idx()
        plan = st.plan.data_ptr().toint()
        at = self.part_address(workspace, tid, ptx.lds32(plan + 20))
        for s in cutlass.range_constexpr(c.slabs_per_warpgroup):
            for j in cutlass.range_constexpr(n // 8):
                ptx.stg_f32x4(
                    at + (s * (c.max_tokens // 8) + j) * 2048,
                    acc[s][4 * j], acc[s][4 * j + 1], acc[s][4 * j + 2], acc[s][4 * j + 3],
                )  # fmt: skip
        cute.arch.sync_warp()
        if tid % 32 == 0:
            first, _ = self.sharers(plan, tile, k_blocks)
            ptx.signal(self.counter_address(counters, tid, first))

    @cute.jit
    def collect(
        self, n: cutlass.Constexpr, acc: Any, workspace: Any, counters: Any, st: Any, tile: Any, k_blocks: Any
    ) -> Any:
        """Add the other blocks' parts of a tile that this block began, in ascending K.

        They wrote theirs at the start of their work and this block ends with its own, so the wait is rarely long. A
        warp waits only for the same warp of the others.
        """
        c = self.c
        tid, _, _ = cute.arch.thread_idx()
        first, last = self.sharers(st.plan.data_ptr().toint(), tile, k_blocks)
        counter = self.counter_address(counters, tid, first)
        seen = ptx.load_acquire(counter)
        while seen < last - first:
            seen = ptx.load_acquire(counter)
        cute.arch.sync_warp()
        if tid % 32 == 0:
            counters[first * (c.consumers // 32) + tid // 32] = 0
        # Eight 16-byte loads in flight a thread, of one part or of several: each is an L2 round trip of about 0.7 us.
        pieces = [(s, j) for s in range(c.slabs_per_warpgroup) for j in range(n // 8)]
        batch = max(1, 8 // len(pieces))
        i = first + 1
        while i <= last:
            for k in cutlass.range_constexpr(0, len(pieces), 8):
                loaded = []
                for b in cutlass.range_constexpr(batch):
                    at = self.part_address(workspace, tid, cutlass.min(i + b, last))
                    for s, j in pieces[k : k + 8]:
                        loaded.append(ptx.ldg_cg_f32x4(at + (s * (c.max_tokens // 8) + j) * 2048))
                for b in cutlass.range_constexpr(batch):
                    if i + b <= last:
                        for p in cutlass.range_constexpr(len(pieces[k : k + 8])):
                            s, j = pieces[k + p]
                            for q in cutlass.range_constexpr(4):
                                acc[s][4 * j + q] = acc[s][4 * j + q] + loaded[b * len(pieces) + p][q]
            i += batch

    @cute.jit
    def sharers(self, plan: Any, tile: Any, k_blocks: Any) -> Any:
        """First and last block that work on a tile of the part cut along K; `tile` counts from there.

        Block i < parts owns units [units * i // parts, units * (i + 1) // parts), never none; inverted here.
        """
        units = ptx.lds32(plan + 4)
        parts = cutlass.min(ptx.lds32(plan + 24), units)
        return ((tile * k_blocks + 1) * parts - 1) // units, ((tile + 1) * k_blocks * parts - 1) // units

    @cute.jit
    def part_address(self, workspace: Any, tid: Any, block: Any) -> Any:
        """Where this thread's accumulators of a block's part lie. A block continues at most one tile: one slot
        each.
        """
        c = self.c
        inside = tid // 128 * (c.slabs_per_warpgroup * (c.max_tokens // 8) * 2048) + tid % 128 * 16
        return workspace.iterator.toint() + I64(block) * c.partial_bytes + inside

    @cute.jit
    def counter_address(self, counters: Any, tid: Any, first: Any) -> Any:
        return counters.iterator.toint() + I64(first * (self.c.consumers // 32) + tid // 32) * 4

    @cute.jit
    def store(
        self, n: cutlass.Constexpr, acc: Any, out: Any, slab: Any, row0: Any, tokens: Any, factor: Any, limit: Any
    ) -> Any:
        """acc[4 j + 2 r + c]: weight row r * 8 + lane // 4 of the warp's 16, token 8 j + 2 (lane % 4) + c."""
        tid, _, _ = cute.arch.thread_idx()
        tid = ptx.opaque(tid)
        lane, warp = tid % 32, tid // 32 % 4
        width = out.shape[1]
        bytes_per_column = 2
        if cutlass.const_expr(self.swiglu):
            column = slab * (SLAB_ROWS // 2) + warp * 8 + lane % 4 * 2
        else:
            column = slab * SLAB_ROWS + warp * 16 + lane % 4 * 4
        row = row0 + lane // 4
        at = out.iterator.toint() + (I64(row) * width + column) * bytes_per_column
        for j in cutlass.range_constexpr(n // 8):
            v = [acc[4 * j + q] * factor for q in range(4)]
            if cutlass.const_expr(self.swiglu):
                # Rows 0..7 of the 16 are gates, rows 8..15 the matching ups: both sit in this thread.
                h = []
                for q in cutlass.range_constexpr(2):
                    gate = cute.arch.fmin(v[q], limit)
                    up = cute.arch.fmax(cute.arch.fmin(v[2 + q], limit), -limit)
                    h.append(ptx.silu(gate) * up)
                word = ptx.transpose_8x8_b16(ptx.pack_bf16x2(h[0], h[1]))
                if j * 8 + lane // 4 < tokens and column < width:
                    ptx.stg_b32(at, word)
            else:
                low = ptx.transpose_8x8_b16(ptx.pack_bf16x2(v[0], v[1]))
                high = ptx.transpose_8x8_b16(ptx.pack_bf16x2(v[2], v[3]))
                if j * 8 + lane // 4 < tokens and column < width:
                    ptx.stg_b32x2(at, low, high)
            at += I64(width) * (8 * bytes_per_column)
