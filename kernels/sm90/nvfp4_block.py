# mypy: ignore-errors
# Traced by the CuTe DSL: struct annotations are values, and scalars change type while they are traced.
"""One NVFP4 block in registers: 16 floats -> a scale byte and 16 E2M1 codes, bit for bit as `kernels.nvfp4.quantize`.

The contract divides: s = amax / (6 g), q = x / (scale * g), both correctly rounded, then rounds q to E2M1. Sixteen
IEEE divisions a block cost more than the block's bytes do, so the fast path multiplies by an approximate
reciprocal, and the slow path divides whenever that could tell: when any quotient lies within `_NEAR` ulps of a
rounding boundary.

Fast path: |x| * (1/d) times 2^-126 puts E2M1's exponent where fp32 keeps its subnormals, so that bits 24..22 of the
float are the E2M1 magnitude and rounding is one addition. Error: 1 ulp of the reciprocal, 1/2 of each product, 1/2 of
the contract's own quotient: below 4 ulp of a normal result, and `_NEAR` is 16. Quotients of 6.9 and more, which would
run past the largest code, go to the slow path too: they need a scale that was rounded far down or saturated.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from kernels.sm90 import ptx

# Functions without @cute.jit run as plain Python while tracing: loops and branches in them are compile-time.
F32, U32 = cutlass.Float32, cutlass.Uint32

_NEAR = 16
_HALF = 1 << 21  # half a step of the magnitude, in bits of the float
_FRACTION = (1 << 22) - 1


def block_amax(x: Any) -> Any:
    """Largest magnitude of a list of floats; NaN if there is one."""
    largest = ptx.absolute(x[0])
    for v in x[1:]:
        largest = ptx.max_nan(largest, ptx.absolute(v))
    return largest


def packed_amax(words: Any, dtype: Any) -> Any:
    """The same of 16-bit floats, two a word."""
    largest = words[0] & U32(0x7FFF7FFF)
    for w in words[1:]:
        largest = ptx.max_nan_x2(largest, w & U32(0x7FFF7FFF), dtype)
    return ptx.max_nan(*unpack([largest], dtype))


def unpack(words: Any, dtype: Any) -> Any:
    """Floats of packed words, low half first."""
    values = []
    for w in words:
        if dtype == "bf16":
            values += [ptx.as_float(w << 16), ptx.as_float(w & U32(0xFFFF0000))]
        else:
            values += list(ptx.half_pair_to_float(w))
    return values


def packed_sign_bytes(words: Any) -> Any:
    """Four words of two 16-bit floats -> two words, each byte 0xFF where that element's sign bit is set."""
    return [ptx.permute(words[2 * i], words[2 * i + 1], 0xFDB9) for i in range(2)]


def float_sign_bytes(x: Any) -> Any:
    """The same from eight floats."""
    pairs = [ptx.permute(ptx.bits(x[2 * i]), ptx.bits(x[2 * i + 1]), 0x00FB) for i in range(4)]
    return [ptx.permute(pairs[2 * i], pairs[2 * i + 1], 0x5410) for i in range(2)]


def scale_byte(amax: Any, global_scale: Any) -> Any:
    """E4M3 byte of amax / (6 global_scale); 0x7F for NaN."""
    return ptx.to_e4m3(ptx.div_rn(amax, global_scale * F32(6.0)))


def _round_exactly(q: Any) -> Any:
    """E2M1 magnitude code 0..7 of q >= 0: nearest, ties to the even code."""
    code = U32(0)
    for boundary, inclusive in ((0.25, 0), (0.75, 1), (1.25, 0), (1.75, 1), (2.5, 0), (3.5, 1), (5.0, 0)):
        code += U32(q >= F32(boundary)) if inclusive else U32(q > F32(boundary))
    return code


@cute.jit
def magnitude_codes(x: Any, amax: F32, byte: U32, global_scale: F32) -> Any:
    """Sixteen E2M1 magnitude codes of the list x under a scale byte, one a register.

    Zero and NaN scale bytes give any codes: `pack_codes` overrides them.
    """
    d = ptx.from_e4m3(byte) * global_scale
    inverse = ptx.rcp_approx(d)
    rounded = cute.make_rmem_tensor((16,), U32)
    nearest = U32(_FRACTION)
    for i in cutlass.range_constexpr(16):
        v = ptx.bits(ptx.absolute(x[i]) * inverse * F32(2.0**-126)) + U32(_HALF + _NEAR)
        nearest = ptx.min_u32(nearest, v & U32(_FRACTION))
        rounded[i] = v >> 22
    # The reciprocal is good only where neither it nor d is subnormal or infinite.
    exact = d > F32(2.0**-100) and d < F32(2.0**100) and amax * inverse < F32(6.9)
    if byte != 0 and (nearest <= U32(2 * _NEAR) or not exact):
        for i in cutlass.range_constexpr(16):
            rounded[i] = _round_exactly(ptx.div_rn(ptx.absolute(x[i]), d))
    return [rounded[i] for i in range(16)]


def pack_codes(magnitudes: Any, sign_bytes: Any, byte: Any) -> Any:
    """Two words of eight codes, low nibble first; zeros or sevens where the scale byte says so.

    sign_bytes: for each half of the block, the two words of `packed_sign_bytes` or `float_sign_bytes`.
    """
    words = []
    for half in range(2):
        m = magnitudes[8 * half : 8 * half + 8]
        pairs = [m[2 * i] + m[2 * i + 1] * U32(16) for i in range(4)]
        word = (pairs[0] + pairs[1] * U32(256)) + (pairs[2] + pairs[3] * U32(256)) * U32(65536)
        nibbles = [(s & U32(0x00080008)) | ((s >> 8) & U32(0x00800080)) for s in sign_bytes[half]]
        word = word | ptx.permute(nibbles[0], nibbles[1], 0x6420)
        word = ptx.select_eq(byte, U32(0), U32(0), word)
        words.append(ptx.select_eq(byte, U32(0x7F), U32(0x77777777), word))
    return words


def pack_values(x: Any, magnitudes: Any, byte: Any) -> Any:
    """The same block decoded without the global scale: eight bf16x2 words of code * scale, exact."""
    scale = ptx.from_e4m3(byte)
    words = []
    for i in range(8):
        pair = []
        for j in range(2):
            # The magnitude's three bits under an exponent of 0 are value * 2^-126; the sign and the scale follow.
            value = ptx.as_float(magnitudes[2 * i + j] << 22) * F32(2.0**126)
            sign = ptx.bits(x[2 * i + j]) & U32(0x80000000)
            pair.append(ptx.as_float(ptx.bits(value) | sign) * scale)
        words.append(ptx.pack_bf16x2(pair[0], pair[1]))
    return words
