# mypy: ignore-errors
# Traced by the CuTe DSL: struct annotations are values, and scalars change type while they are traced.
"""Single-instruction device helpers for sm_90a, as inline PTX: what the CuTe DSL does not spell directly.

Addresses of shared memory are 32-bit (`Int32`), of global memory 64-bit (`Int64`), both in bytes.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

F32, I32, I64, U32 = cutlass.Float32, cutlass.Int32, cutlass.Int64, cutlass.Uint32

# L2 cache policies as `createpolicy.fractional` encodes them (fraction 1.0). Weights are read once a call: evicting
# them first keeps the activations, which every row tile reads again, in L2.
EVICT_FIRST = 0x12F0000000000000
EVICT_LAST = 0x14F0000000000000


@cute.jit
def opaque(x: I32) -> I32:
    """`x`, hidden from the optimiser: what is computed from the result is not hoisted above this point.

    Several token widths are compiled into one kernel; values hoisted out of all of them cost the registers without
    which ptxas serialises the wgmmas (warning C7512).
    """
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[I32], read_only_args=[x])


@cute.jit
def bulk_copy_to_smem(dst: I32, src: I64, nbytes: I32, mbar: I32, policy: I64) -> None:
    """Asynchronous copy of `nbytes` (multiple of 16, both sides 16-byte aligned); completes on `mbar`'s tx count."""
    cute.arch.inline_ptx(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [{$r0}], [{$r1}], {$r2}, [{$r3}], {$r4};",
        read_only_args=[dst, src, nbytes, mbar, policy],
    )


@cute.jit
def lds128(address: I32) -> Any:
    """Four 32-bit words of shared memory at a 16-byte aligned address."""
    return cute.arch.inline_ptx(
        "ld.shared.v4.b32 {{$w0},{$w1},{$w2},{$w3}}, [{$r0}];",
        write_only_types=[U32, U32, U32, U32],
        read_only_args=[address],
    )


@cute.jit
def lds32(address: I32) -> I32:
    """One word of shared memory. Never kept in a register from one call to the next, unlike a tensor element."""
    return cute.arch.inline_ptx(
        "ld.volatile.shared.b32 {$w0}, [{$r0}];", write_only_types=[I32], read_only_args=[address]
    )


@cute.jit
def sts128(address: I32, a: I32, b: I32, c: I32, d: I32) -> None:
    cute.arch.inline_ptx(
        "st.volatile.shared.v4.b32 [{$r0}], {{$r1},{$r2},{$r3},{$r4}};", read_only_args=[address, a, b, c, d]
    )


@cute.jit
def ldg_cg_f32x4(address: I64) -> Any:
    """Four floats from L2 (not L1): for data that other blocks of the same launch wrote."""
    return cute.arch.inline_ptx(
        "ld.global.cg.v4.f32 {{$w0},{$w1},{$w2},{$w3}}, [{$r0}];",
        write_only_types=[F32, F32, F32, F32],
        read_only_args=[address],
    )


@cute.jit
def stg_f32x4(address: I64, a: F32, b: F32, c: F32, d: F32) -> None:
    cute.arch.inline_ptx(
        "st.global.cg.v4.f32 [{$r0}], {{$r1},{$r2},{$r3},{$r4}};", read_only_args=[address, a, b, c, d]
    )


@cute.jit
def stg_b32x2(address: I64, a: U32, b: U32) -> None:
    cute.arch.inline_ptx("st.global.v2.b32 [{$r0}], {{$r1},{$r2}};", read_only_args=[address, a, b])


@cute.jit
def stg_b32(address: I64, a: U32) -> None:
    cute.arch.inline_ptx("st.global.b32 [{$r0}], {$r1};", read_only_args=[address, a])


@cute.jit
def pack_bf16x2(low: F32, high: F32) -> U32:
    """Two floats rounded to nearest even bf16; `low` in bits 15..0."""
    return cute.arch.inline_ptx(
        "cvt.rn.bf16x2.f32 {$w0}, {$r1}, {$r0};", write_only_types=[U32], read_only_args=[low, high]
    )


@cute.jit
def transpose_8x8_b16(x: U32) -> U32:
    """Transpose an 8x8 matrix of 16-bit elements held by a warp: lane l holds (l // 4, 2 (l % 4)) and its
    neighbour.
    """
    return cute.arch.inline_ptx(
        "movmatrix.sync.aligned.m8n8.trans.b16 {$w0}, {$r0};", write_only_types=[U32], read_only_args=[x]
    )


@cute.jit
def div_rn(a: F32, b: F32) -> F32:
    """IEEE-754 correctly rounded division, subnormals kept."""
    return cute.arch.inline_ptx("div.rn.f32 {$w0}, {$r0}, {$r1};", write_only_types=[F32], read_only_args=[a, b])


@cute.jit
def exp2_approx(a: F32) -> F32:
    return cute.arch.inline_ptx("ex2.approx.f32 {$w0}, {$r0};", write_only_types=[F32], read_only_args=[a])


@cute.jit
def silu(x: F32) -> F32:
    """x / (1 + exp(-x)) in fp32: exp as ex2.approx(-x * log2 e) (2 ulp), the division correctly rounded.

    -inf gives NaN-free limits: exp overflows to +inf for x < -88.7 and the quotient is -0.
    """
    return div_rn(x, F32(1.0) + exp2_approx(x * F32(-1.4426950408889634)))


@cute.jit
def min_nan(a: F32, b: F32) -> F32:
    """The smaller; NaN if either is NaN (plain `min` drops a NaN)."""
    return cute.arch.inline_ptx("min.NaN.f32 {$w0}, {$r0}, {$r1};", write_only_types=[F32], read_only_args=[a, b])


@cute.jit
def max_nan(a: F32, b: F32) -> F32:
    """The larger; NaN if either is NaN."""
    return cute.arch.inline_ptx("max.NaN.f32 {$w0}, {$r0}, {$r1};", write_only_types=[F32], read_only_args=[a, b])


@cute.jit
def ldg128(address: I64) -> Any:
    """Four 32-bit words of global memory at a 16-byte aligned address.

    Kept in L1: a thread that reads 32 bytes takes two of these, and without L1 each sector would come from L2 twice.
    """
    return cute.arch.inline_ptx(
        "ld.global.v4.b32 {{$w0},{$w1},{$w2},{$w3}}, [{$r0}];",
        write_only_types=[U32, U32, U32, U32],
        read_only_args=[address],
    )


@cute.jit
def stg_b32x4(address: I64, a: U32, b: U32, c: U32, d: U32) -> None:
    cute.arch.inline_ptx("st.global.v4.b32 [{$r0}], {{$r1},{$r2},{$r3},{$r4}};", read_only_args=[address, a, b, c, d])


@cute.jit
def stg_b8(address: I64, a: U32) -> None:
    cute.arch.inline_ptx("st.global.b8 [{$r0}], {$r1};", read_only_args=[address, a])


@cute.jit
def bits(x: F32) -> U32:
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[U32], read_only_args=[x])


@cute.jit
def as_float(x: U32) -> F32:
    return cute.arch.inline_ptx("mov.b32 {$w0}, {$r0};", write_only_types=[F32], read_only_args=[x])


@cute.jit
def half_pair_to_float(x: U32) -> Any:
    """Both fp16 of a word as floats, low half first."""
    return cute.arch.inline_ptx(
        "{ .reg .b16 l, h; mov.b32 {l, h}, {$r0}; cvt.f32.f16 {$w0}, l; cvt.f32.f16 {$w1}, h; }",
        write_only_types=[F32, F32],
        read_only_args=[x],
    )


@cute.jit
def to_e4m3(x: F32) -> U32:
    """Byte of the nearest E4M3 (ties to even), saturating at 448; NaN gives 0x7F. x is not negative."""
    return cute.arch.inline_ptx(
        "{ .reg .b16 h; cvt.rn.satfinite.e4m3x2.f32 h, 0f00000000, {$r0}; cvt.u32.u16 {$w0}, h;"
        " and.b32 {$w0}, {$w0}, 0x7F; }",
        write_only_types=[U32],
        read_only_args=[x],
    )


@cute.jit
def from_e4m3(byte: U32) -> F32:
    """Value of one E4M3 byte; exact."""
    return cute.arch.inline_ptx(
        "{ .reg .b16 h, l; .reg .b32 t; cvt.u16.u32 h, {$r0}; cvt.rn.f16x2.e4m3x2 t, h; mov.b32 {l, h}, t;"
        " cvt.f32.f16 {$w0}, l; }",
        write_only_types=[F32],
        read_only_args=[byte],
    )


@cute.jit
def rcp_approx(x: F32) -> F32:
    """1 / x to 1 ulp; inf for subnormal x."""
    return cute.arch.inline_ptx("rcp.approx.ftz.f32 {$w0}, {$r0};", write_only_types=[F32], read_only_args=[x])


@cute.jit
def min_u32(a: U32, b: U32) -> U32:
    return cute.arch.inline_ptx("min.u32 {$w0}, {$r0}, {$r1};", write_only_types=[U32], read_only_args=[a, b])


@cute.jit
def select_eq(a: U32, b: U32, then: U32, otherwise: U32) -> U32:
    """`then` if a == b, else `otherwise`."""
    return cute.arch.inline_ptx(
        "{ .reg .pred p; setp.eq.u32 p, {$r0}, {$r1}; selp.b32 {$w0}, {$r2}, {$r3}, p; }",
        write_only_types=[U32],
        read_only_args=[a, b, then, otherwise],
    )


@cute.jit
def absolute(x: F32) -> F32:
    return cute.arch.inline_ptx("abs.f32 {$w0}, {$r0};", write_only_types=[F32], read_only_args=[x])


def max_nan_x2(a: Any, b: Any, dtype: str) -> Any:
    """Element-wise larger of two packed pairs ("bf16" or "fp16"); NaN if either is NaN."""
    kind = {"bf16": "bf16x2", "fp16": "f16x2"}[dtype]
    return cute.arch.inline_ptx(
        f"max.NaN.{kind} {{$w0}}, {{$r0}}, {{$r1}};", write_only_types=[U32], read_only_args=[a, b]
    )


def permute(a: Any, b: Any, selector: int) -> Any:
    """PRMT: four bytes from a (0..3) and b (4..7) by the selector's nibbles; bit 3 replicates a byte's sign."""
    return cute.arch.inline_ptx(
        f"prmt.b32 {{$w0}}, {{$r0}}, {{$r1}}, {selector};", write_only_types=[U32], read_only_args=[a, b]
    )


@cute.jit
def signal(address: I64) -> None:
    """Add 1 to a counter in global memory; this thread's earlier writes (and its warp's, after a sync) come first."""
    cute.arch.inline_ptx("red.release.gpu.global.add.s32 [{$r0}], 1;", read_only_args=[address])


@cute.jit
def load_acquire(address: I64) -> I32:
    """A word of global memory; what its writer released is visible afterwards."""
    return cute.arch.inline_ptx(
        "ld.acquire.gpu.global.s32 {$w0}, [{$r0}];", write_only_types=[I32], read_only_args=[address]
    )


@cute.jit
def ldg_cg_f32(address: I64) -> F32:
    """One float from L2."""
    return cute.arch.inline_ptx("ld.global.cg.f32 {$w0}, [{$r0}];", write_only_types=[F32], read_only_args=[address])
