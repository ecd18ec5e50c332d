# mypy: ignore-errors
# Traced by the CuTe DSL: struct annotations are values, and scalars change type while they are traced.
"""Fused NVFP4 quantiser on Hopper: one read of x, one write of codes and scales. See `quantize.py` for the host side.

One thread owns one block of 16: two (bf16, fp16) or four (fp32) 16-byte loads, 8 bytes of codes and 1 byte of scale
out. Memory-bound: 2.5625 bytes an element for bf16. Blocks of threads stride over the tensor, and a thread loads its
next block before it works on the one at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.memory import SmemAllocator

from kernels.sm90 import ptx
from kernels.sm90.nvfp4_block import (
    block_amax,
    float_sign_bytes,
    magnitude_codes,
    pack_codes,
    pack_values,
    packed_amax,
    packed_sign_bytes,
    scale_byte,
    unpack,
)

F32, I32, I64, U32 = cutlass.Float32, cutlass.Int32, cutlass.Int64, cutlass.Uint32

SCALE_THREADS = 256
THREADS = 128  # of the quantiser: up to 72 registers a thread, 7 such blocks fit a multiprocessor
PARTIALS = 512  # blocks of the amax kernel: one partial maximum each


@dataclass(frozen=True)
class QuantizeConfig:
    """What one compiled quantiser does."""

    dtype: str
    """Input: "bf16", "fp16" or "fp32"."""
    output: str = "codes"
    """ "codes", or "values": bf16 of code * scale (emulated W4A4: the operand a Blackwell kernel multiplies)."""
    scale_layout: str = "linear"
    """ "linear" or "swizzled" (128x4; the padding is written too, as zeros)."""
    scale_source: str = "given"
    """ "given": one fp32. "expert": one fp32 a group of rows."""
    swiglu: str = "none"
    """ "none", or the column order of x (M, 2 I): "halves" ([gate | up]) or "interleaved" (8 gates, 8 ups, ...)."""

    @property
    def itemsize(self) -> int:
        return 4 if self.dtype == "fp32" else 2


def load_words(address: Any, count: Any, dtype: Any) -> Any:
    """The 32-bit words of `count` consecutive elements at a 16-byte aligned address."""
    size = 4 if dtype == "fp32" else 2
    return [word for i in range(count * size // 16) for word in ptx.ldg128(address + 16 * i)]


def to_floats(words: Any, dtype: Any) -> Any:
    """Elements of those words, as floats."""
    return [ptx.as_float(w) for w in words] if dtype == "fp32" else unpack(words, dtype)


def words_amax(words: Any, dtype: Any) -> Any:
    """Largest magnitude in those words."""
    return block_amax(to_floats(words, dtype)) if dtype == "fp32" else packed_amax(words, dtype)


@cute.jit
def block_maximum(value: Any, smem: Any) -> Any:
    """NaN-propagating maximum over a thread block of 256; every thread gets it. `smem` holds 8 floats."""
    tid, _, _ = cute.arch.thread_idx()
    for d in cutlass.range_constexpr(5):
        value = ptx.max_nan(value, cute.arch.shuffle_sync_bfly(value, 16 >> d))
    if tid % 32 == 0:
        smem[tid // 32] = value
    cute.arch.sync_threads()
    value = smem[0]
    for w in cutlass.range_constexpr(1, SCALE_THREADS // 32):
        value = ptx.max_nan(value, smem[w])
    return value


class GlobalScale:
    """scale = max(amax / 2688, 2^-126) of a tensor, NaN if it holds one: 512 blocks stride over it, the last one
    ends it.
    """

    def __init__(self, dtype: str) -> Any:
        self.dtype = dtype

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,  # flat, whole blocks of 16
        partials: cute.Tensor,  # fp32 (512,) scratch
        counter: cute.Tensor,  # int32 (1,), zero before and after
        scale: cute.Tensor,  # fp32 (1,) out
        elements: cutlass.Int64,
        stream: cuda.CUstream,
    ) -> None:
        self.kernel(x, partials, counter, scale, elements).launch(
            grid=(PARTIALS, 1, 1), block=(SCALE_THREADS, 1, 1), stream=stream, use_pdl=True
        )

    @cute.kernel
    def kernel(
        self, x: cute.Tensor, partials: cute.Tensor, counter: cute.Tensor, scale: cute.Tensor, elements: cutlass.Int64
    ) -> None:
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        allocator = SmemAllocator()
        smem = allocator.allocate_tensor(F32, cute.make_layout(SCALE_THREADS // 32))
        flag = allocator.allocate_tensor(I32, cute.make_layout(1))
        size = 4 if self.dtype == "fp32" else 2
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        largest = F32(0.0)
        at = x.iterator.toint()
        stride = PARTIALS * SCALE_THREADS
        i = I64(cta * SCALE_THREADS + tid)
        last = elements // 16 - 1
        while i <= last:
            # Four blocks in flight a thread; past the end the last block counts again.
            words = []
            for b in cutlass.range_constexpr(4):
                words += load_words(at + cutlass.min(i + b * stride, last) * (16 * size), 16, self.dtype)
            largest = ptx.max_nan(largest, words_amax(words, self.dtype))
            i += 4 * stride
        largest = block_maximum(largest, smem)
        if tid == 0:
            partials[cta] = largest
            cute.arch.fence_acq_rel_gpu()
            flag[0] = cute.arch.atomic_add(counter.iterator, I32(1), sem="acq_rel", scope="gpu")
        cute.arch.sync_threads()
        if flag[0] == PARTIALS - 1:
            cute.arch.fence_acq_rel_gpu()
            where = partials.iterator.toint() + I64(tid) * 4
            largest = ptx.max_nan(ptx.ldg_cg_f32(where), ptx.ldg_cg_f32(where + SCALE_THREADS * 4))
            largest = block_maximum(largest, smem)
            if tid == 0:
                scale[0] = ptx.max_nan(ptx.div_rn(largest, F32(2688.0)), F32(2.0**-126))
                counter[0] = 0


class Quantize:
    """Traced by the DSL: `__call__` becomes the launcher."""

    def __init__(self, config: QuantizeConfig) -> Any:
        self.c = config

    @cute.jit
    def __call__(
        self,
        x: cute.Tensor,  # flat: (M * K) elements, or (M * 2 K) for SwiGLU
        scale: cute.Tensor,  # fp32 (1,) or (E,)
        offsets: cute.Tensor,  # int32 (E + 1,), read only with scale_source "expert"
        out: cute.Tensor,  # flat bytes of codes, or of bf16 values
        scales: cute.Tensor,  # flat bytes
        rows: cutlass.Int32,
        columns: cutlass.Int32,  # K / 16
        limit: cutlass.Float32,
        grid: cutlass.Int32,  # at most this many thread blocks
        stream: cuda.CUstream,
    ) -> None:
        blocks = I64(rows) * columns
        if cutlass.const_expr(self.c.scale_layout == "swizzled"):
            blocks = I64((rows + 127) // 128 * 128) * ((columns + 3) // 4 * 4)
        self.kernel(x, scale, offsets, out, scales, rows, columns, limit, blocks).launch(
            grid=(cutlass.min(I32((blocks + (THREADS - 1)) // THREADS), grid), 1, 1),
            block=(THREADS, 1, 1),
            stream=stream,
            use_pdl=True,
        )

    @cute.kernel
    def kernel(
        self,
        x: cute.Tensor,
        scale: cute.Tensor,
        offsets: cute.Tensor,
        out: cute.Tensor,
        scales: cute.Tensor,
        rows: cutlass.Int32,
        columns: cutlass.Int32,
        limit: cutlass.Float32,
        blocks: cutlass.Int64,
    ) -> None:
        c = self.c
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        grid, _, _ = cute.arch.grid_dim()
        cute.arch.griddepcontrol_wait()
        cute.arch.griddepcontrol_launch_dependents()
        g = F32(0.0)
        if cutlass.const_expr(c.scale_source == "given"):
            g = ptx.max_nan(scale[0], F32(2.0**-126))
        stride = I64(grid) * THREADS
        at = I64(cta) * THREADS + tid  # place of the scale byte
        # 16 elements, or 16 gates and 16 ups
        coming = cute.make_rmem_tensor((4 * c.itemsize * (1 if c.swiglu == "none" else 2),), U32)
        block = self.fetch(x, coming, at, rows, columns, blocks)
        while at < blocks:
            words = [coming[i] for i in range(cute.size(coming))]
            here = block
            place = at
            at += stride
            block = self.fetch(x, coming, at, rows, columns, blocks)
            if here >= 0:
                if cutlass.const_expr(c.scale_source == "expert"):
                    g = ptx.max_nan(self.of_expert(scale, offsets, I32(here // columns)), F32(2.0**-126))
                self.quantize(words, out, scales, g, limit, here, place)
            else:
                ptx.stg_b8(scales.iterator.toint() + place, U32(0))

    @cute.jit
    def fetch(self, x: Any, words: Any, at: Any, rows: Any, columns: Any, blocks: Any) -> Any:
        """Load the block whose scale lies at `at`; returns its number in row-major order, -1 for padding or the
        end.
        """
        c = self.c
        block = I64(-1)
        if at < blocks:
            block = at
            if cutlass.const_expr(c.scale_layout == "swizzled"):
                # A thread's number is the place of its scale byte, so that a warp writes 32 bytes in a row; its 8
                # rows of 4 blocks are whole 128-byte lines of x (bf16).
                atoms = (columns + 3) // 4
                atom = I32(at // 512)
                inside = I32(at) % 512
                atom_row = atom // atoms
                row = atom_row * 128 + inside // 16 + inside // 4 % 4 * 32
                column = (atom - atom_row * atoms) * 4 + inside % 4
                block = I64(row) * columns + column
                if row >= rows or column >= columns:
                    block = I64(-1)
        if block >= 0:
            source = x.iterator.toint()
            if cutlass.const_expr(c.swiglu == "none"):
                loaded = load_words(source + block * (16 * c.itemsize), 16, c.dtype)
            elif cutlass.const_expr(c.swiglu == "halves"):
                # Row r of x begins at block 2 r columns; gate block b lies at 2 r columns + b, its up `columns`
                # later.
                first = source + (block + block // columns * columns) * (16 * c.itemsize)
                loaded = load_words(first, 16, c.dtype)
                loaded += load_words(first + I64(columns) * (16 * c.itemsize), 16, c.dtype)
            else:
                loaded = load_words(source + block * (32 * c.itemsize), 32, c.dtype)
            for i in cutlass.range_constexpr(cute.size(words)):
                words[i] = loaded[i]
        return block

    @cute.jit
    def of_expert(self, scale: Any, offsets: Any, row: Any) -> Any:
        """Global scale of the group that owns a row. Rows of no group take the nearest group's."""
        low = I32(0)
        high = cute.size(scale)
        while high - low > 1:
            mid = (low + high) // 2
            if offsets[mid] <= row:
                low = mid
            else:
                high = mid
        return scale[low]

    @cute.jit
    def quantize(self, words: Any, out: Any, scales: Any, g: Any, limit: Any, block: Any, scale_at: Any) -> Any:
        """Quantise the loaded block number `block` of the row-major output."""
        c = self.c
        v = to_floats(words, c.dtype)
        if cutlass.const_expr(c.swiglu != "none"):
            if cutlass.const_expr(c.swiglu == "halves"):
                gate, up = v[:16], v[16:]
            else:
                gate = [v[i // 8 * 16 + i % 8] for i in range(16)]
                up = [v[i // 8 * 16 + 8 + i % 8] for i in range(16)]
            v = []
            for i in cutlass.range_constexpr(16):
                a = ptx.min_nan(gate[i], limit)
                b = ptx.max_nan(ptx.min_nan(up[i], limit), -limit)
                v.append(ptx.silu(a) * b)
        packed = c.swiglu == "none" and c.dtype != "fp32"
        amax = packed_amax(words, c.dtype) if packed else block_amax(v)
        byte = scale_byte(amax, g)
        codes = magnitude_codes(v, amax, byte, g)
        ptx.stg_b8(scales.iterator.toint() + scale_at, byte)
        target = out.iterator.toint()
        if cutlass.const_expr(c.output == "codes"):
            signs = [
                packed_sign_bytes(words[4 * i : 4 * i + 4]) if packed else float_sign_bytes(v[8 * i : 8 * i + 8])
                for i in range(2)
            ]
            packed_codes = pack_codes(codes, signs, byte)
            ptx.stg_b32x2(target + block * 8, packed_codes[0], packed_codes[1])
        else:
            values = pack_values(v, codes, byte)
            for i in cutlass.range_constexpr(2):
                ptx.stg_b32x4(
                    target + block * 32 + 16 * i,
                    values[4 * i],
                    values[4 * i + 1],
                    values[4 * i + 2],
                    values[4 * i + 3],
                )
