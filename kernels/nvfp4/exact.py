"""The NVFP4 specification evaluated one element at a time in `fractions.Fraction`, by searching the list of values.

Independent of both the torch implementation and `reference.py`: a format is the sorted list of the numbers it can
hold, rounding is the nearest entry, a tie takes the entry with an even index. Slow (tens of us an element); it exists
to check the vectorised reference and to make the golden vectors. Finite input and a finite global scale only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction

_FLOOR = Fraction(1, 2**126)


def _values(exponent_bits: int, mantissa_bits: int, bias: int, patterns: int) -> list[Fraction]:
    """Non-negative values of a binary format in ascending order; the index is the bit pattern."""
    out = []
    for pattern in range(patterns):
        field, fraction = divmod(pattern, 1 << mantissa_bits)
        assert field < 1 << exponent_bits
        significand = Fraction(fraction, 1 << mantissa_bits) + (1 if field else 0)
        out.append(significand * Fraction(2) ** (max(field, 1) - bias))
    return out


E2M1 = _values(2, 1, 1, 8)
E4M3 = _values(4, 3, 7, 127)  # pattern 127 is NaN


def nearest(value: Fraction, table: Sequence[Fraction]) -> int:
    """Index of the entry nearest to `value` >= 0, ties to the even index, saturating at the last."""
    above = bisect_left(table, value)
    if above == 0:
        return 0
    if above == len(table):
        return len(table) - 1
    low, high = value - table[above - 1], table[above] - value
    if low != high:
        return above if high < low else above - 1
    return above if above % 2 == 0 else above - 1


def fp32(value: Fraction) -> Fraction:
    """Nearest fp32 number, ties to even (as `round` of a Fraction), subnormals kept; overflow is refused."""
    if value == 0:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** max(exponent - 23, -149)
    rounded = round(value / step) * step
    if abs(rounded) >= Fraction(2) ** 128:
        raise OverflowError("beyond fp32")
    return rounded


def exact_global_scale(amax: float, compat: str | None = None) -> Fraction:
    scale = fp32(Fraction(amax) / 2688)
    if compat is None or scale == 0:
        scale = max(scale, _FLOOR)
    return scale


def exact_block(
    x: Sequence[float], global_scale: Fraction, compat: str | None = None, negative_zero: Sequence[bool] = ()
) -> tuple[list[int], int]:
    """16 numbers -> (16 codes, scale byte). `negative_zero[i]` tells that x[i] is -0.0, which a Fraction cannot."""
    g = global_scale if compat and global_scale else max(global_scale, _FLOOR)
    values = [Fraction(v) for v in x]
    try:
        s = fp32(max(abs(v) for v in values) / fp32(6 * g))
    except OverflowError:
        s = E4M3[-1]
    if compat == "modelopt":
        s = max(s, Fraction(1, 512)) if s else Fraction(1)
    byte = nearest(s, E4M3)
    if byte == 0:
        return [0] * 16, 0
    d = fp32(E4M3[byte] * g)
    codes = []
    for i, v in enumerate(values):
        if d == 0:  # only in compat, where the global scale may be subnormal: x / 0 is inf, 0 / 0 is NaN; both give 7
            q, code = v, 7
        else:
            try:
                q = fp32(v / d)
                code = nearest(abs(q), E2M1)
            except OverflowError:
                q, code = v, 7
        if compat == "modelopt":
            sign = q < 0
        else:
            sign = v < 0 or (bool(negative_zero) and negative_zero[i])
        codes.append(code + 8 * sign)
    return codes, byte
