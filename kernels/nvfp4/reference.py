"""The exact reference of the NVFP4 quantiser: integers only, no code and no table shared with the implementation.

Every fp32 operation of the specification is redone as integer arithmetic on (significand, exponent) pairs and rounded
once by the one function `_round`, which knows a binary float format only as (precision, exponent of the smallest
step): fp32 is (24, -149), E4M3 is (4, -9), E2M1 is (2, -1). numpy's float arithmetic is not used to compute any
result. `exact.py` evaluates the same specification a third way, one element at a time in `fractions.Fraction`.

The specification, rounding by rounding (all fp32 to nearest even, subnormals kept, overflow to inf):

    global_scale = fp32(amax / 2688), at least 2^-126;  a given global scale is floored the same way
    s     = fp32(amax_block / fp32(6 * global_scale))
    scale = E4M3(min(s, 448)), nearest even;  0x7F if s is NaN, which a NaN in the block or in global_scale makes it
    d     = fp32(scale * global_scale)
    code  = E2M1(fp32(x / d)), nearest even, saturating, sign kept
    scale byte 0: the 16 codes are 0.  scale byte 0x7F: the 16 codes are 7.

`compat="modelopt"`: no floor (except where amax / 2688 is 0), s = 0 becomes 1, other s at least 2^-9, the sign bit is
set only where the quotient is below zero, and a quotient that is NaN (0 / 0) gives code 7.
Inputs are numpy float32 (bf16 and fp16 widen to it exactly). Vectorised: below 1 us an element.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
_INF = np.int64(1) << 40  # exponent that stands for infinity; a significand of 0 with it stands for NaN


def _split(x: npt.NDArray[np.float32]) -> tuple[I64, I64, npt.NDArray[np.bool_]]:
    """fp32 -> (significand, exponent, sign): |x| = significand * 2^exponent; inf and NaN as said above."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.int64)
    field, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
    significand = np.where(field == 0, fraction, fraction | 0x800000)
    exponent = np.where(field == 0, -149, field - 150)
    special = field == 255
    significand = np.where(special, (fraction == 0).astype(np.int64), significand)
    return significand, np.where(special, _INF, exponent), (bits >> 31).astype(bool)


def _bit_length(n: I64) -> I64:
    """Bits of non-negative integers below 2^62, by halving the search interval."""
    length = np.zeros_like(n)
    rest = n.copy()
    for half in (32, 16, 8, 4, 2, 1):
        big = rest >> half > 0
        length += np.where(big, half, 0)
        rest = np.where(big, rest >> half, rest)
    return length + (rest > 0)


def _round(
    significand: I64, exponent: I64, sticky: npt.NDArray[np.bool_], precision: int, smallest: int
) -> tuple[I64, I64]:
    """Nearest float with `precision` bits and steps no finer than 2^smallest, ties to even; exponent unbounded above.

    The value is (significand + f) * 2^exponent with 0 < f < 1 where `sticky`, else f = 0.
    """
    step = np.maximum(exponent + _bit_length(significand) - precision, smallest)
    drop = np.clip(step - exponent, 0, 62)  # beyond 62 bits everything is dropped, and is below half a step
    kept = significand >> drop
    rest = significand - (kept << drop)
    half = np.where(drop > 0, np.int64(1) << np.maximum(drop - 1, 0), 1)
    above = (drop > 0) & ((rest > half) | ((rest == half) & sticky))
    tie = (drop > 0) & (rest == half) & ~sticky
    kept = kept + (above | (tie & (kept & 1 == 1)))
    fine = step < exponent  # nothing to drop: write the value with the finer step
    kept = np.where(fine, significand << np.where(fine, np.minimum(exponent - step, 62), 0), kept)
    # Rounding up may carry into one more bit; the value stays right, only the significand is wider.
    carried = _bit_length(kept) > precision
    return np.where(carried, kept >> 1, kept), np.where(carried, step + 1, step)


def _to_fp32(significand: I64, exponent: I64, sticky: npt.NDArray[np.bool_]) -> tuple[I64, I64]:
    s, e = _round(significand, exponent, sticky, 24, -149)
    overflow = _bit_length(s) + e > 128
    return np.where(overflow, 1, s), np.where(overflow, _INF, e)


def _multiply(a: tuple[I64, I64], b: tuple[I64, I64]) -> tuple[I64, I64]:
    """fp32 product of magnitudes. inf * 0 and anything with NaN is NaN."""
    (sa, ea), (sb, eb) = a, b
    inf_a, inf_b = (ea == _INF) & (sa > 0), (eb == _INF) & (sb > 0)
    nan = (ea == _INF) & (sa == 0) | (eb == _INF) & (sb == 0) | inf_a & (sb == 0) | inf_b & (sa == 0)
    special = nan | inf_a | inf_b
    s, e = _to_fp32(np.where(special, 0, sa * sb), np.where(special, 0, ea + eb), np.zeros(special.shape, bool))
    return np.where(nan, 0, np.where(special, 1, s)), np.where(special, _INF, e)


def _divide(a: tuple[I64, I64], b: tuple[I64, I64]) -> tuple[I64, I64]:
    """fp32 quotient of magnitudes. x / 0 is inf, 0 / 0 and inf / inf are NaN, x / inf is 0."""
    (sa, ea), (sb, eb) = a, b
    inf_a, inf_b = (ea == _INF) & (sa > 0), (eb == _INF) & (sb > 0)
    nan = (ea == _INF) & (sa == 0) | (eb == _INF) & (sb == 0) | inf_a & inf_b
    zero_b = (sb == 0) & (eb != _INF)
    nan |= zero_b & (sa == 0) & (ea != _INF)
    inf = ~nan & (inf_a | zero_b)
    zero = ~nan & inf_b
    plain = ~(nan | inf | zero)
    sa, sb = np.where(plain, sa, 0), np.where(plain, sb, 1)
    # A quotient of at least 25 bits, whatever a: one guard bit, the rest is sticky. sa << shift stays below 2^62.
    shift = np.minimum(25 + _bit_length(sb), 62 - _bit_length(sa))
    quotient = (sa << shift) // sb
    sticky = (sa << shift) != quotient * sb
    exponent = np.where(plain, ea, 0) - np.where(plain, eb, 0) - shift
    s, e = _to_fp32(quotient, exponent, sticky)
    return np.where(nan, 0, np.where(inf, 1, s)), np.where(nan | inf, _INF, e)


def _constant(value: int, exponent: int, shape: tuple[int, ...]) -> tuple[I64, I64]:
    return np.full(shape, value, np.int64), np.full(shape, exponent, np.int64)


def _at_least(x: tuple[I64, I64], value: int, exponent: int) -> tuple[I64, I64]:
    """max(x, value * 2^exponent); NaN stays."""
    low = _less(x, _constant(value, exponent, x[0].shape))
    return np.where(low, value, x[0]), np.where(low, exponent, x[1])


def _less(a: tuple[I64, I64], b: tuple[I64, I64]) -> npt.NDArray[np.bool_]:
    """a < b for magnitudes; False if either is NaN."""
    (sa, ea), (sb, eb) = a, b
    nan = (ea == _INF) & (sa == 0) | (eb == _INF) & (sb == 0)
    top_a = np.where(sa == 0, -(1 << 50), ea + _bit_length(sa))
    top_b = np.where(sb == 0, -(1 << 50), eb + _bit_length(sb))
    # Same leading bit: align both to 40 bits and compare.
    aligned_a = sa << np.maximum(40 - _bit_length(sa), 0)
    aligned_b = sb << np.maximum(40 - _bit_length(sb), 0)
    return ~nan & ((top_a < top_b) | ((top_a == top_b) & (aligned_a < aligned_b)))


def _order_key(x: tuple[I64, I64]) -> I64:
    """Integers in the order of the magnitudes, NaN above infinity: an fp32 bit pattern, rebuilt from its parts."""
    s, e = x
    length = _bit_length(s)
    normal = length + e > -126
    key = np.where(
        normal,
        ((length + e + 126) << 23) + ((s << np.maximum(24 - length, 0)) & 0x7FFFFF),
        s << np.clip(e + 149, 0, 30),
    )
    return np.where(e == _INF, np.where(s > 0, 255 << 23, (255 << 23) + 1), key)


def _largest(x: tuple[I64, I64], axis: int) -> tuple[I64, I64]:
    at = np.expand_dims(_order_key(x).argmax(axis), axis)
    return np.take_along_axis(x[0], at, axis).squeeze(axis), np.take_along_axis(x[1], at, axis).squeeze(axis)


def _join_fp32(x: tuple[I64, I64]) -> npt.NDArray[np.float32]:
    s, e = x
    bits = np.where((e == _INF) & (s == 0), 0x7FC00000, _order_key(x))
    return bits.astype(np.uint32).view(np.float32)


def _encode(x: tuple[I64, I64], precision: int, smallest: int, largest: int) -> I64:
    """Bit pattern of |x| in the small format: rounded to nearest even, saturated to the pattern `largest`."""
    s, e = x
    special = e == _INF
    s, e = _round(np.where(special, 0, s), np.where(special, 0, e), np.zeros(s.shape, bool), precision, smallest)
    # The pattern counts representable values: one step of the first two binades each, then 2^(precision-1) a binade.
    length = _bit_length(s)
    field = np.where(length == precision, e - smallest + 1, 0)
    fraction = np.where(length == precision, s - (1 << (precision - 1)), s)
    pattern = np.minimum((field << (precision - 1)) + fraction, largest)
    return np.where(special, largest, pattern)


def reference_global_scale(x: npt.NDArray[np.float32], compat: str | None = None) -> np.float32:
    """amax / 2688 in fp32, floored at 2^-126 (in compat, only where it is 0)."""
    magnitude = _split(x.reshape(-1))[:2]
    amax = _largest(magnitude, 0) if x.size else (np.int64(0), np.int64(-149))
    top = np.atleast_1d(amax[0]), np.atleast_1d(amax[1])
    g = _divide(top, _constant(21, 7, (1,)))  # 2688 = 21 * 2^7
    if compat is None or (g[0][0] == 0 and g[1][0] != _INF):
        g = _at_least(g, 1, -126)
    return np.float32(_join_fp32(g)[0])


def reference_quantize(
    x: npt.NDArray[np.float32], global_scale: np.float32 | None = None, compat: str | None = None
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], np.float32]:
    """x float32 (..., K) -> (packed codes uint8 (..., K/2), scale bytes uint8 (..., K/16), global scale).

    Without `global_scale`, the tensor's own. The returned scale is the given one, not its floored value.
    """
    if x.dtype != np.float32 or x.ndim < 1 or x.shape[-1] % 16:
        raise ValueError(f"x: expected float32 (..., K), K a multiple of 16, got {x.dtype} {x.shape}")
    own = reference_global_scale(x, compat) if global_scale is None else np.float32(global_scale)
    blocks = (*x.shape[:-1], x.shape[-1] // 16)
    if x.size == 0:
        return np.zeros((*x.shape[:-1], x.shape[-1] // 2), np.uint8), np.zeros(blocks, np.uint8), own
    s, e, negative = _split(x.reshape(*blocks, 16))

    gs, ge, g_negative = _split(np.full(blocks, own, np.float32))
    if compat is None:
        below = g_negative & ~((ge == _INF) & (gs == 0))  # a negative global scale is below the floor too
        g = _at_least((np.where(below, 0, gs), np.where(below, -149, ge)), 1, -126)
    else:
        g = np.where(gs == 0, np.where(ge == _INF, 0, 1), gs), np.where((gs == 0) & (ge != _INF), -126, ge)

    ratio = _divide(_largest((s, e), -1), _multiply(_constant(3, 1, blocks), g))
    nan = (ratio[1] == _INF) & (ratio[0] == 0)
    if compat == "modelopt":
        zero = (ratio[0] == 0) & ~nan
        ratio = np.where(zero, 1, ratio[0]), np.where(zero, 0, ratio[1])
        ratio = _at_least(ratio, 1, -9)
    scale = np.where(nan, 0x7F, _encode(ratio, 4, -9, 0x7E))

    value = np.where(scale < 8, scale, 8 + scale % 8), np.where(scale < 8, -9, scale // 8 - 10)
    value = np.where(nan, 0, value[0]), np.where(nan, _INF, value[1])
    d = _multiply(value, g)
    quotient = _divide((s, e), (d[0][..., None], d[1][..., None]))
    q_nan = (quotient[1] == _INF) & (quotient[0] == 0)
    code = np.where(q_nan, 7, _encode(quotient, 2, -1, 7))
    if compat == "modelopt":
        sign = negative & ~q_nan & (quotient[0] > 0)
    else:
        sign = negative & (scale != 0x7F)[..., None] & (scale != 0)[..., None]
        code = np.where((scale == 0)[..., None], 0, code)
    code = (code + 8 * sign).reshape(x.shape).astype(np.uint8)
    return code[..., 0::2] + 16 * code[..., 1::2], scale.astype(np.uint8), own


def reference_dequantize(
    codes: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8], global_scale: np.float32 | float | None = None
) -> npt.NDArray[np.float64]:
    """value(code) * scale * global_scale, exact in float64 (6 + 24 significant bits); NaN scale bytes give NaN."""
    code = np.stack((codes & 15, codes >> 4), -1).reshape(*codes.shape[:-1], 2 * codes.shape[-1]).astype(np.int64)
    m = code & 7
    value = np.where(m < 2, m, (2 + m % 2) << np.maximum(m // 2 - 1, 0)) * np.float64(0.5)
    value = np.where(code & 8, -value, value).reshape(*scales.shape, 16)
    byte = scales.astype(np.int64) & 0x7F
    scale = np.where(byte < 8, byte, 8 + byte % 8) * np.exp2(np.where(byte < 8, -9, byte // 8 - 10).astype(np.float64))
    scale = np.where(byte == 0x7F, np.nan, scale)
    out = (value * scale[..., None]).reshape(code.shape)
    return out if global_scale is None else out * np.float64(global_scale)
