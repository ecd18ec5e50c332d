# mypy: ignore-errors
# Traced by the CuTe DSL: struct annotations are values, and scalars change type while they are traced.
"""Device side of a MoE layer's bookkeeping: stable counting sort of routes, gather of token rows, weighted combine.

A route is one (token, choice) pair, number token * top_k + choice. Rows are routes in expert order; inside an expert
they keep ascending order. The order must not depend on timing: which token tile a row falls into decides where its
sum over K may be cut, and so its last bits.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from kernels.sm90 import ptx
from kernels.sm90.gemm_schedule import MAX_EXPERTS

F32, I32, I64, U32 = cutlass.Float32, cutlass.Int32, cutlass.Int64, cutlass.Uint32

ROUTE_THREADS = 512
_WARPS = ROUTE_THREADS // 32
MAX_FUSED_ROUTES = 4096  # routes whose rows fit the fused kernel's shared memory


class Route:
    """Rows of every route, and the experts' offsets. Fused: every block sorts for itself and copies its tokens'
    rows.
    """

    def __init__(self, id_bits: int, fused: bool) -> Any:
        self.fused = fused
        self.id_bits = id_bits

    @cute.jit
    def __call__(
        self,
        ids: cute.Tensor,  # (T * top_k,) int32 or int64, global expert ids; anything not of this rank is skipped
        row_of_route: cute.Tensor,  # (T * top_k,) int32 out; -1 for a skipped route
        offsets: cute.Tensor,  # (E + 1,) int32 out
        x: cute.Tensor,  # flat bytes of (T, H) bf16
        rows: cute.Tensor,  # flat bytes of (T * top_k, H) bf16 out, written by the fused form
        first_expert: cutlass.Int32,
        top_k: cutlass.Int32,
        row_bytes: cutlass.Int32,
        grid: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        @cute.struct
        class Storage:
            counts: cute.struct.MemRange[cutlass.Int32, _WARPS * MAX_EXPERTS]
            starts: cute.struct.MemRange[cutlass.Int32, MAX_EXPERTS]
            rows: cute.struct.MemRange[cutlass.Int32, MAX_FUSED_ROUTES if self.fused else 4]

        self.storage = Storage
        self.kernel(ids, row_of_route, offsets, x, rows, first_expert, top_k, row_bytes).launch(
            grid=(grid, 1, 1), block=(ROUTE_THREADS, 1, 1), stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(
        self,
        ids: cute.Tensor,
        row_of_route: cute.Tensor,
        offsets: cute.Tensor,
        x: cute.Tensor,
        rows: cute.Tensor,
        first_expert: cutlass.Int32,
        top_k: cutlass.Int32,
        row_bytes: cutlass.Int32,
    ) -> None:
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        lane, warp = tid % 32, cute.arch.make_warp_uniform(tid // 32)
        st = SmemAllocator().allocate(self.storage)
        counts = cute.make_tensor(
            st.counts.data_ptr(), cute.make_layout((_WARPS, MAX_EXPERTS), stride=(MAX_EXPERTS, 1))
        )
        starts = cute.make_tensor(st.starts.data_ptr(), cute.make_layout(MAX_EXPERTS))
        row_cache = cute.make_tensor(st.rows.data_ptr(), cute.make_layout(MAX_FUSED_ROUTES if self.fused else 4))
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        routes = cute.size(ids)
        experts = cute.size(offsets) - 1
        # Each warp owns a contiguous range of whole groups of 32 routes.
        per_warp = (routes + (_WARPS * 32 - 1)) // (_WARPS * 32) * 32
        begin = warp * per_warp
        end = cutlass.min(begin + per_warp, routes)
        e = tid
        while e < experts:
            for w in cutlass.range_constexpr(_WARPS):
                counts[w, e] = 0
            e += ROUTE_THREADS
        cute.arch.sync_threads()
        i = begin
        while i < end:
            expert = self.local_expert(ids, i + lane, routes, first_expert, experts)
            peers = self.peers(expert)
            if expert >= 0 and (peers & self.below(lane)) == 0:
                counts[warp, expert] = counts[warp, expert] + I32(cute.arch.popc(peers))
            cute.arch.sync_warp()
            i += 32
        cute.arch.sync_threads()
        e = tid
        while e < experts:  # exclusive prefix over the warps; the total goes to starts
            total = I32(0)
            for w in cutlass.range_constexpr(_WARPS):
                here = counts[w, e]
                counts[w, e] = total
                total += here
            starts[e] = total
            e += ROUTE_THREADS
        cute.arch.sync_threads()
        if warp == 0:  # exclusive prefix over the experts
            carry = I32(0)
            first = I32(0)
            while first < experts:
                total = I32(0)
                if first + lane < experts:
                    total = starts[first + lane]
                inclusive = total
                for d in (1, 2, 4, 8, 16):
                    before = cute.arch.shuffle_sync_up(inclusive, d, mask_and_clamp=0)
                    if lane >= d:
                        inclusive += before
                if first + lane < experts:
                    starts[first + lane] = carry + inclusive - total
                    if cta == 0:
                        offsets[first + lane] = carry + inclusive - total
                carry += cute.arch.shuffle_sync(inclusive, 31)
                first += 32
            if lane == 0 and cta == 0:
                offsets[experts] = carry
        cute.arch.sync_threads()
        i = begin
        while i < end:
            expert = self.local_expert(ids, i + lane, routes, first_expert, experts)
            peers = self.peers(expert)
            row = I32(-1)
            if expert >= 0:
                row = starts[expert] + counts[warp, expert] + I32(cute.arch.popc(peers & self.below(lane)))
            cute.arch.sync_warp()
            if expert >= 0 and (peers & self.below(lane)) == 0:
                counts[warp, expert] = counts[warp, expert] + I32(cute.arch.popc(peers))
            cute.arch.sync_warp()
            if i + lane < routes:
                if cta == 0:
                    row_of_route[i + lane] = row
                if cutlass.const_expr(self.fused):
                    row_cache[i + lane] = row
            i += 32
        if cutlass.const_expr(self.fused):
            cute.arch.sync_threads()
            copy_rows(x, rows, row_cache, cta, grid, routes // top_k, top_k, row_bytes, ROUTE_THREADS)

    def local_expert(self, ids: Any, i: Any, routes: Any, first_expert: Any, experts: Any) -> Any:
        """Expert on this rank of route i, or -1."""
        return _local_expert(ids, i, routes, first_expert, experts)

    def peers(self, expert: Any) -> Any:
        """Mask of the lanes that hold the same expert."""
        return U32(
            cute.arch.inline_ptx(
                "match.any.sync.b32 {$w0}, {$r0}, 0xffffffff;", write_only_types=[U32], read_only_args=[expert]
            )
        )

    def below(self, lane: Any) -> Any:
        return (U32(1) << U32(lane)) - U32(1)


@cute.jit
def _local_expert(ids: Any, i: Any, routes: Any, first_expert: Any, experts: Any) -> Any:
    expert = I32(-1)
    if i < routes:
        local = I64(ids[i]) - first_expert
        if local >= 0 and local < experts:
            expert = I32(local)
    return expert


@cute.jit
def copy_rows(
    x: Any,
    rows: Any,
    row_of_route: Any,
    cta: Any,
    grid: Any,
    tokens: Any,
    top_k: Any,
    row_bytes: Any,
    threads: cutlass.Constexpr,
) -> Any:
    """Token t's row to each row that a route of it holds: read once, written top_k times."""
    tid, _, _ = cute.arch.thread_idx()
    token = cta
    while token < tokens:
        at = tid * 16
        source = x.iterator.toint() + I64(token) * row_bytes
        while at < row_bytes:
            a, b, c, d = ptx.ldg128(source + at)
            for j in cutlass.range(top_k, unroll=1):
                row = row_of_route[token * top_k + j]
                if row >= 0:
                    ptx.stg_b32x4(rows.iterator.toint() + (I64(row) * row_bytes + at), a, b, c, d)
            at += threads * 16
        token += grid


class Gather:
    """Copy token rows into expert order, for batches that the fused form does not hold. 256 threads a token."""

    @cute.jit
    def __call__(
        self,
        row_of_route: cute.Tensor,
        x: cute.Tensor,
        rows: cute.Tensor,
        tokens: cutlass.Int32,
        top_k: cutlass.Int32,
        row_bytes: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        self.kernel(row_of_route, x, rows, tokens, top_k, row_bytes).launch(
            grid=(tokens, 1, 1), block=(256, 1, 1), stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(
        self,
        row_of_route: cute.Tensor,
        x: cute.Tensor,
        rows: cute.Tensor,
        tokens: cutlass.Int32,
        top_k: cutlass.Int32,
        row_bytes: cutlass.Int32,
    ) -> None:
        cta, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        copy_rows(x, rows, row_of_route, cta, grid, tokens, top_k, row_bytes, 256)


class Combine:
    """y[t] = sum over j, ascending, of weight[t, j] * rows[row_of_route[t, j]], in fp32, rounded once to bf16."""

    @cute.jit
    def __call__(
        self,
        rows: cute.Tensor,  # flat bytes of (T * top_k, H) bf16
        row_of_route: cute.Tensor,  # (T * top_k,) int32
        weights: cute.Tensor,  # (T * top_k,) fp32
        y: cute.Tensor,  # flat bytes of (T, H) bf16 out
        tokens: cutlass.Int32,
        top_k: cutlass.Int32,
        row_bytes: cutlass.Int32,
        stream: cuda.CUstream,
    ) -> None:
        # 128 threads by 8 columns: a token is several blocks, so that a batch of one still spreads.
        self.kernel(rows, row_of_route, weights, y, top_k, row_bytes).launch(
            grid=(tokens, (row_bytes + 2047) // 2048, 1), block=(128, 1, 1), stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(
        self,
        rows: cute.Tensor,
        row_of_route: cute.Tensor,
        weights: cute.Tensor,
        y: cute.Tensor,
        top_k: cutlass.Int32,
        row_bytes: cutlass.Int32,
    ) -> None:
        tid, _, _ = cute.arch.thread_idx()
        token, part, _ = cute.arch.block_idx()
        at = part * 2048 + tid * 16
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        if at < row_bytes:
            total = cute.make_rmem_tensor((8,), F32)
            total.fill(0.0)
            for j in cutlass.range(top_k, unroll=4):
                row = row_of_route[token * top_k + j]
                if row >= 0:
                    weight = weights[token * top_k + j]
                    words = ptx.ldg128(rows.iterator.toint() + (I64(row) * row_bytes + at))
                    for q in cutlass.range_constexpr(4):
                        total[2 * q] = total[2 * q] + weight * ptx.as_float(words[q] << 16)
                        total[2 * q + 1] = total[2 * q + 1] + weight * ptx.as_float(words[q] & U32(0xFFFF0000))
            packed = [ptx.pack_bf16x2(total[2 * q], total[2 * q + 1]) for q in range(4)]
            ptx.stg_b32x4(
                y.iterator.toint() + (I64(token) * row_bytes + at), packed[0], packed[1], packed[2], packed[3]
            )
