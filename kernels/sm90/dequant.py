# mypy: ignore-errors
# Traced by the CuTe DSL: struct annotations are values, and scalars change type while they are traced.
"""Packed NVFP4 words -> bf16 wgmma fragments, in registers, exactly. The bit layout is documented in `weights.py`."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

U32 = cutlass.Uint32

# Masks of the bf16x2 that holds value * 2^-126: sign bits, and the three magnitude bits in the two lowest exponent
# bits and the highest mantissa bit. The code 001 (0.5) then is a bf16 subnormal, which mul.bf16x2 keeps (measured
# on H200).
SCALE_MASK = 0x0FF00FF0
_SCALE = "and.b32 s, s, {$r2}; or.b32 s, s, 0x70007000;"
_EXPAND = """
{ .reg .b32 a, b, s, t, u; .reg .b16 l, h;
@SCALE@
mov.b32 {l, h}, s; mov.b32 t, {l, l}; mov.b32 u, {h, h};
and.b32 a, {$r0}, 0x81C081C0; mul.rn.bf16x2 {$w0}, a, t;
shl.b32 b, {$r0}, 3; and.b32 b, b, 0x01C001C0; shl.b32 a, {$r0}, 1; lop3.b32 a, a, 0x80008000, b, 0xEA;
mul.rn.bf16x2 {$w1}, a, u;
shl.b32 a, {$r0}, 6; and.b32 a, a, 0x81C081C0; mul.rn.bf16x2 {$w2}, a, t;
shr.u32 b, {$r0}, 5; and.b32 b, b, 0x01C001C0; shl.b32 a, {$r0}, 5; lop3.b32 a, a, 0x80008000, b, 0xEA;
mul.rn.bf16x2 {$w3}, a, u; }
"""
_EVEN = _EXPAND.replace("@SCALE@", "mov.b32 s, {$r1}; " + _SCALE).replace("\n", " ")
_ODD = _EXPAND.replace("@SCALE@", "shf.r.wrap.b32 s, {$r1}, {$r1}, 8; " + _SCALE).replace("\n", " ")


@cute.jit
def dequantize_k16(codes: U32, scales: U32, mask: cutlass.Int32, odd: cutlass.Constexpr) -> Any:
    """The four A registers of one m64k16 step: eight codes and two of a word's four scales (`odd`: the second two).

    mask: a register that holds SCALE_MASK.
    Each result is a bf16x2 of code * scale * 2^-7. 11 integer operations, 4 multiplications, 2-3 for the scales.
    """
    return cute.arch.inline_ptx(
        _ODD if odd else _EVEN, write_only_types=[U32, U32, U32, U32], read_only_args=[codes, scales, mask]
    )
