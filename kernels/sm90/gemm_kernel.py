# mypy: ignore-errors
# Traced by the CuTe DSL: struct annotations are values, and scalars change type while they are traced.
"""Grouped GEMM on Hopper with NVFP4 weights: out^T = alpha_e * dequant(W_e) @ X_e^T, one launch for all groups.

How it works
* Weights are the M operand, tokens are N: a decode step with few tokens wastes nothing, since wgmma's N goes down
  to 8.
* A block of `weights.SLAB_BYTES` (64 rows x 128 K: codes, then scales) is one contiguous bulk copy. The bytes already
  lie in wgmma's register-operand order, so a consumer thread reads two 16-byte vectors of codes and one of scales.
* E2M1 times E4M3 has at most 6 significant bits, so the product is exact in bf16 (kernels/sm90/weights.py). The fp32
  global scale is not representable there: it is applied as `alpha` to the fp32 accumulator.
* One producer warp keeps `stages` blocks of weights and tokens in flight; consumer warpgroups dequantise one half
  block while the tensor cores work on the other.
* Persistent: expert offsets are read on the device, so a captured graph replays with other routing. Whole tiles first
  (`tail_split`), then the rest of the work is cut along K into equal ranges, one a block. The block that begins a
  tile adds the fp32 parts of those that continue it, in ascending K: the result does not depend on timing.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.memory import SmemAllocator

from kernels.sm90 import ptx
from kernels.sm90.dequant import SCALE_MASK, dequantize_k16
from kernels.sm90.gemm_epilogue import Epilogue
from kernels.sm90.gemm_producer import Producer
from kernels.sm90.gemm_schedule import MAX_EXPERTS, GemmConfig
from kernels.sm90.weights import K_BLOCK, SLAB_BYTES

BF16, F32, I32, I64 = cutlass.BFloat16, cutlass.Float32, cutlass.Int32, cutlass.Int64

EPILOGUES = ("plain", "swiglu")


class GroupedGemm(Producer, Epilogue):
    """Traced by the DSL: `__call__` is host code that becomes the launcher, `kernel` is device code."""

    def __init__(self, config: GemmConfig, epilogue: str) -> Any:
        if epilogue not in EPILOGUES:
            raise ValueError(f"epilogue: expected one of {EPILOGUES}, got {epilogue!r}")
        self.c = config
        self.swiglu = epilogue == "swiglu"

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,  # (tokens, K) bf16, rows contiguous and 16-byte aligned
        weights: cute.Tensor,  # flat bytes, (E, slabs, k_blocks, SLAB_BYTES)
        offsets: cute.Tensor,  # (E + 1,) int32: group e owns rows [offsets[e], offsets[e + 1]) of x and out
        alpha: cute.Tensor,  # (E,) fp32
        out: cute.Tensor,  # (tokens, width) bf16
        workspace: cute.Tensor,  # fp32 bytes for partial tiles, grid * partial_bytes
        counters: cute.Tensor,  # (grid * consumer warps,) int32, zero before and after every launch
        slabs: cutlass.Int32,
        k_blocks: cutlass.Int32,
        limit: cutlass.Float32,  # clamp of the SwiGLU epilogue
        early: cutlass.Int32,  # 1: offsets do not come from the kernel launched just before (see `kernel`)
        grid: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        c = self.c
        box = cute.make_composed_layout(
            cute.make_swizzle(3, 4, 3), 0, cute.make_layout(((8, c.box_tokens // 8), 64), stride=((64, 512), 1))
        )
        atom, x_tma = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, box, (c.box_tokens, 64))

        @cute.struct
        class Storage:
            full: cute.struct.MemRange[cutlass.Int64, c.stages]
            empty: cute.struct.MemRange[cutlass.Int64, c.stages]
            starts: cute.struct.MemRange[cutlass.Int32, MAX_EXPERTS + 4]
            offsets: cute.struct.MemRange[cutlass.Int32, MAX_EXPERTS + 4]
            plan: cute.struct.Align[cute.struct.MemRange[cutlass.Int32, 8], 16]
            notes: cute.struct.Align[cute.struct.MemRange[cutlass.Int32, c.consumers // 32 * 8], 16]
            w: cute.struct.Align[cute.struct.MemRange[cutlass.Uint8, c.stages * c.row_slabs * SLAB_BYTES], 128]
            x: cute.struct.Align[cute.struct.MemRange[BF16, c.stages * c.max_tokens * K_BLOCK], 1024]

        self.storage = Storage
        self.kernel(
            atom, x_tma, weights, offsets, alpha, out, workspace, counters, slabs, k_blocks, limit, early
        ).launch(grid=(grid, 1, 1), block=(c.threads, 1, 1), stream=stream, min_blocks_per_mp=1, use_pdl=True)

    @cute.kernel
    def kernel(
        self,
        atom: cute.CopyAtom,
        x_tma: cute.Tensor,
        weights: cute.Tensor,
        offsets: cute.Tensor,
        alpha: cute.Tensor,
        out: cute.Tensor,
        workspace: cute.Tensor,
        counters: cute.Tensor,
        slabs: cutlass.Int32,
        k_blocks: cutlass.Int32,
        limit: cutlass.Float32,
        early: cutlass.Int32,
    ) -> None:
        """Launched with programmatic dependence: this grid's blocks start as those of the kernel before it end.

        Whatever that kernel writes must be read after `griddepcontrol.wait`, and whatever it reads may be written
        only then. Weights depend on nothing. With `early` the offsets do not either, so the producer fills its
        stages with weights before the wait: the first DRAM round trip overlaps the tail of the kernel before.
        Dependents are released after the wait, so that a kernel two launches back is always complete.
        """
        c = self.c
        tid, _, _ = cute.arch.thread_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        cta, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        st = SmemAllocator().allocate(self.storage)
        full, empty = st.full.data_ptr(), st.empty.data_ptr()
        starts = cute.make_tensor(st.starts.data_ptr(), cute.make_layout(MAX_EXPERTS + 4))
        offs = cute.make_tensor(st.offsets.data_ptr(), cute.make_layout(MAX_EXPERTS + 4))
        experts = cute.size(offsets) - 1
        row_tiles = (slabs + (c.row_slabs - 1)) // c.row_slabs
        if tid == 0:
            for s in cutlass.range_constexpr(c.stages):
                cute.arch.mbarrier_init(full + s, 1)
                cute.arch.mbarrier_init(empty + s, c.consumers // 32)
            cute.arch.mbarrier_init_fence()
        if early == 0:
            cute.arch.griddepcontrol_wait()
        e = tid
        while e <= experts:
            offs[e] = offsets[e]
            e += c.threads
        cute.arch.sync_threads()
        if warp == 0:
            self.scan_tiles(starts, offs, experts, row_tiles, tid)
        cute.arch.sync_threads()
        if tid == 0:
            tiles = starts[experts]
            waves = I32(0)
            if cutlass.const_expr(c.tail_split):
                waves = cutlass.max(tiles // grid - 1, 0)
            units = (tiles - waves * grid) * k_blocks
            parts = cutlass.max(cutlass.min(grid, units), 1)
            first = cutlass.min(units * cta // parts, units)
            end = cutlass.min(units * (cta + 1) // parts, units)
            plan = st.plan.data_ptr().toint()
            ptx.sts128(plan, waves, units, first, end)
            ptx.sts128(plan + 16, waves * grid, cta, grid, row_tiles)
        cute.arch.sync_threads()
        if warp >= c.consumers // 32:
            cute.arch.setmaxregister_decrease(c.registers[0])
            if tid == c.consumers:
                self.produce(atom, x_tma, weights, experts, st, slabs, k_blocks)
        else:
            cute.arch.setmaxregister_increase(c.registers[1])
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
            self.consume(alpha, out, workspace, counters, st, experts, slabs, k_blocks, limit)

    @cute.jit
    def consume(
        self,
        alpha: Any,
        out: Any,
        workspace: Any,
        counters: Any,
        st: Any,
        experts: Any,
        slabs: Any,
        k_blocks: Any,
        limit: Any,
    ) -> Any:
        c = self.c
        plan = st.plan.data_ptr().toint()
        tid, _, _ = cute.arch.thread_idx()
        notes = st.notes.data_ptr().toint() + tid // 32 * 32
        stage = I32(0)
        phase = I32(0)
        it = I32(0)
        u = ptx.lds32(plan + 8)
        while self.more(plan, it, u):
            tile, kb0, kb1, next_u = self.segment_at(plan, it, u, k_blocks)
            expert, row_tile, row0, tokens = self.locate(tile, st, experts)
            # Needed again only after the main loop: noted down, a copy for each warp.
            ptx.sts128(notes, expert, row_tile, row0, tokens)
            ptx.sts128(notes + 16, tile - ptx.lds32(plan + 16), kb0, next_u, it)
            cute.arch.sync_warp()
            blocks = kb1 - kb0
            for i in cutlass.range_constexpr(len(c.token_widths)):
                above = c.token_widths[i - 1] if i else 0
                if tokens > above and tokens <= c.token_widths[i]:
                    stage, phase = self.segment(
                        c.token_widths[i], alpha, out, workspace, counters, st, slabs, k_blocks, limit,
                        notes, blocks, stage, phase,
                    )  # fmt: skip
            u = ptx.lds32(notes + 24)
            it = ptx.lds32(notes + 28) + 1
            cute.arch.sync_warp()

    @cute.jit
    def segment(
        self,
        n: cutlass.Constexpr,
        alpha: Any,
        out: Any,
        workspace: Any,
        counters: Any,
        st: Any,
        slabs: Any,
        k_blocks: Any,
        limit: Any,
        notes: Any,
        blocks: Any,
        stage: Any,
        phase: Any,
    ) -> Any:
        """One segment: accumulate `blocks` blocks, then store, or hand the part over to the block that comes last."""
        c = self.c
        tid, _, _ = cute.arch.thread_idx()
        tid = ptx.opaque(tid)
        thread = tid % 128
        group = cute.arch.make_warp_uniform(tid // 128)
        full, empty = st.full.data_ptr(), st.empty.data_ptr()
        mma = sm90.make_trivial_tiled_mma(
            BF16, BF16, OperandMajorMode.K, OperandMajorMode.K, F32, (1, 1, 1), (64, n), warpgroup.OperandSource.RMEM
        )
        x_layout = cute.make_layout(
            ((8, n // 8), 64, 2, c.stages),
            stride=((64, 512), 1, c.max_tokens * 64, c.max_tokens * K_BLOCK),
        )
        x_smem = st.x.get_tensor(x_layout, swizzle=cute.make_swizzle(3, 4, 3))
        b = mma.make_fragment_B(mma.get_slice(thread).partition_B(x_smem))
        acc = [cute.make_rmem_tensor(mma.partition_shape_C((64, n)), F32) for _ in range(c.slabs_per_warpgroup)]
        a = [mma.make_fragment_A(mma.partition_shape_A((64, 16 * c.steps))) for _ in range(c.buffers)]
        a32 = [cute.recast_tensor(f, cutlass.Uint32) for f in a]
        for s in cutlass.range_constexpr(c.slabs_per_warpgroup):
            acc[s].fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        w_smem = st.w.data_ptr().toint() + group * (c.slabs_per_warpgroup * SLAB_BYTES)
        code_at = w_smem + thread * 16
        scale_at = w_smem + (4096 + thread // 4 * 16)
        mask = ptx.opaque(I32(SCALE_MASK))  # else ptxas moves the constant to a register again at every use
        for kb in cutlass.range(blocks, unroll=1):
            cute.arch.mbarrier_wait(full + stage, phase)
            at = stage * (c.row_slabs * SLAB_BYTES)
            # 4-step vectors of codes, in order of (slab, half); loaded one ahead of their use.
            vectors = 2 * c.slabs_per_warpgroup
            scales = ptx.lds128(scale_at + at)
            codes = ptx.lds128(code_at + at)
            coming, coming_scales = codes, scales
            for g in cutlass.range_constexpr(vectors * 4 // c.steps):
                vector, step = g * c.steps // 4, g * c.steps % 4
                s, h = vector // 2, vector % 2
                if cutlass.const_expr(step == 0):
                    codes, scales = coming, coming_scales
                    if cutlass.const_expr(vector + 1 < vectors):
                        ahead = vector + 1
                        coming = ptx.lds128(code_at + (at + ahead // 2 * SLAB_BYTES + ahead % 2 * 2048))
                        if cutlass.const_expr(ahead % 2 == 0):
                            coming_scales = ptx.lds128(scale_at + (at + ahead // 2 * SLAB_BYTES))
                buffer = g % c.buffers
                for i in cutlass.range_constexpr(c.steps):
                    k = step + i
                    words = dequantize_k16(codes[k], scales[2 * h + k // 2], mask, k % 2)
                    for r in cutlass.range_constexpr(4):
                        a32[buffer][r, 0, i] = words[r]
                warpgroup.fence()
                for i in cutlass.range_constexpr(c.steps):
                    cute.gemm(mma, acc[s], a[buffer][(None, None, i)], b[(None, None, step + i, h, stage)], acc[s])
                warpgroup.commit_group()
                warpgroup.wait_group(c.buffers - 1)
                if cutlass.const_expr(g == c.buffers - 2):  # noqa: SIM102 - compile time, then run time
                    if kb > 0:  # the wgmmas of the previous block are done: its stage may be refilled
                        self.release(empty, stage, tid)
            stage += 1
            if stage == c.stages:
                stage = I32(0)
                phase = phase ^ 1
        warpgroup.wait_group(0)
        self.release(empty, stage, tid)

        kb0 = ptx.lds32(notes + 20)
        if kb0 > 0:
            self.contribute(n, acc, workspace, counters, st, ptx.lds32(notes + 16), k_blocks)
        else:
            if blocks < k_blocks:
                self.collect(n, acc, workspace, counters, st, ptx.lds32(notes + 16), k_blocks)
            expert, row_tile, row0, tokens = (ptx.lds32(notes + 4 * i) for i in range(4))
            factor = alpha[expert] * 128.0  # dequantize_k16 yields value * 2^-7
            for s in cutlass.range_constexpr(c.slabs_per_warpgroup):
                slab = row_tile * c.row_slabs + group * c.slabs_per_warpgroup + s
                if slab < slabs:
                    self.store(n, acc[s], out, slab, row0, tokens, factor, limit)
        return stage, phase

    @cute.jit
    def release(self, empty: Any, stage: Any, tid: Any) -> Any:
        """Hand the stage before `stage` back to the producer; one arrival a warp."""
        if tid % 32 == 0:
            previous = stage - 1
            if stage == 0:
                previous = I32(self.c.stages - 1)
            cute.arch.mbarrier_arrive(empty + previous)
