# mypy: ignore-errors
# Traced by the CuTe DSL: struct annotations are values, and scalars change type while they are traced.
"""The producer thread of the grouped GEMM: weights by bulk copy, tokens by TMA, stage after stage."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from kernels.sm90 import ptx
from kernels.sm90.gemm_schedule import Schedule
from kernels.sm90.weights import K_BLOCK, SLAB_BYTES

I32, I64 = cutlass.Int32, cutlass.Int64


class Producer(Schedule):
    """Device functions of the producer; mixed into `GroupedGemm`."""

    @cute.jit
    def produce(self, atom: Any, x_tma: Any, weights: Any, experts: Any, st: Any, slabs: Any, k_blocks: Any) -> Any:
        """One thread: fill stage after stage, in the order the consumers read them."""
        c = self.c
        full, empty = st.full.data_ptr(), st.empty.data_ptr()
        plan = st.plan.data_ptr().toint()
        w_smem = st.w.data_ptr().toint()
        boxes = c.max_tokens // c.box_tokens
        x_layout = cute.make_layout(
            (((8, c.box_tokens // 8), 64), boxes, 2, c.stages),
            stride=(((64, 512), 1), c.box_tokens * 64, c.max_tokens * 64, c.max_tokens * K_BLOCK),
        )
        x_smem = st.x.get_tensor(x_layout, swizzle=cute.make_swizzle(3, 4, 3))
        stage = I32(0)
        phase = I32(1)  # an empty barrier's phase before its first completion counts as passed
        it = I32(0)
        u = ptx.lds32(plan + 8)
        ahead = I32(0)  # stages whose weights are on their way already
        waiting = I32(1)
        while self.more(plan, it, u):
            tile, kb0, kb1, u = self.segment_at(plan, it, u, k_blocks)
            it += 1
            expert, row_tile, row0, tokens = self.locate(tile, st, experts)
            slab0 = row_tile * c.row_slabs
            present = cutlass.min(slabs - slab0, c.row_slabs)
            used = (tokens + (c.box_tokens - 1)) // c.box_tokens
            nbytes = present * SLAB_BYTES + used * (c.box_tokens * K_BLOCK * 2)
            source = weights.iterator.toint() + ((I64(expert) * slabs + slab0) * k_blocks + kb0) * SLAB_BYTES
            if waiting == 1:
                ahead = cutlass.min(kb1 - kb0, c.stages)
                for i in cutlass.range(ahead, unroll=1):
                    cute.arch.mbarrier_arrive_and_expect_tx(full + i, nbytes)
                    self.copy_weights(
                        source + i * SLAB_BYTES, present, k_blocks, w_smem + i * (c.row_slabs * SLAB_BYTES), full + i
                    )
                cute.arch.griddepcontrol_wait()
                waiting = I32(0)
            x_rows = cute.domain_offset((row0, 0), x_tma)
            x_tiles = cute.local_tile(x_rows, (c.box_tokens, 64), (None, None))
            x_to, x_from = cpasync.tma_partition(atom, 0, cute.make_layout(1), x_smem, cute.group_modes(x_tiles, 0, 2))
            for kb in cutlass.range(kb0, kb1, unroll=1):
                bar = full + stage
                if ahead > 0:
                    ahead -= 1
                else:
                    cute.arch.mbarrier_wait(empty + stage, phase)
                    cute.arch.mbarrier_arrive_and_expect_tx(bar, nbytes)
                    self.copy_weights(source, present, k_blocks, w_smem + stage * (c.row_slabs * SLAB_BYTES), bar)
                for b in cutlass.range(used, unroll=1):
                    for h in cutlass.range_constexpr(2):
                        cute.copy(atom, x_from[(None, b, kb * 2 + h)], x_to[(None, b, h, stage)], tma_bar_ptr=bar)
                source += SLAB_BYTES
                stage += 1
                if stage == c.stages:
                    stage = I32(0)
                    phase = phase ^ 1
        # A block must outlive its copies: wait until the consumers have drained every stage.
        for _ in cutlass.range(c.stages, unroll=1):
            cute.arch.mbarrier_wait(empty + stage, phase)
            stage += 1
            if stage == c.stages:
                stage = I32(0)
                phase = phase ^ 1

    @cute.jit
    def copy_weights(self, source: Any, present: Any, k_blocks: Any, target: Any, bar: Any) -> Any:
        """One block along K of the `present` slabs of a tile."""
        for s in cutlass.range_constexpr(self.c.row_slabs):
            if s < present:
                ptx.bulk_copy_to_smem(
                    target + s * SLAB_BYTES,
                    source + I64(s) * k_blocks * SLAB_BYTES,
                    I32(SLAB_BYTES),
                    bar.toint(),
                    I64(ptx.EVICT_FIRST),
                )
