"""Data regimes that a quantiser must survive: small named tensors, the same bits on every machine and numpy version.

Used by the golden vectors and the tests. Random numbers come from integers of the frozen `RandomState` stream and are
combined in integer arithmetic, so no libm and no summation order can change a bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Regime:
    name: str
    "Stable, readable; key of the golden file."
    x: F32
    "Input (rows, K) as float32."
    dtype: str
    "Narrowest torch dtype that holds x exactly: bfloat16, float16 or float32."
    global_scale: float | None
    "None: the tensor's own (quantize_to_nvfp4); else the given one (quantize_activation_nvfp4)."
    finite: bool = True
    "False: x holds inf or NaN, so offline entry points refuse it."


def _bf16(x: F32) -> F32:
    """Nearest bf16, ties to even, as float32."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def _bell(seed: int, rows: int, k: int) -> F32:
    """Roughly N(0, 1): sum of 12 integers, exact in float32 (Irwin-Hall)."""
    parts = np.random.RandomState(seed).randint(0, 1 << 12, size=(12, rows, k))
    return ((parts.sum(0) - 12 * 2047) / np.float32(4096)).astype(np.float32)


def _neighbours(centres: F32) -> F32:
    """Each centre, one ulp below and above it, and the negatives of all three."""
    three = np.stack((np.nextafter(centres, np.float32(-np.inf)), centres, np.nextafter(centres, np.float32(np.inf))))
    return np.concatenate((three.reshape(-1), -three.reshape(-1))).astype(np.float32)


def _midpoints() -> F32:
    """Every E2M1 midpoint and grid value with neighbours, in blocks whose element 0 is 6: with global scale 1 the
    block scale is 1 and q = x exactly."""
    points = _neighbours(np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 0.5, 1, 1.5, 2, 3, 4], np.float32))
    rows = -(-points.size // 15)
    filled = np.zeros((rows, 15), np.float32)
    filled.reshape(-1)[: points.size] = points
    return np.concatenate((np.full((rows, 1), 6, np.float32), filled), 1)


def _scale_midpoints() -> F32:
    """Block maxima at every E4M3 midpoint and value with neighbours; with global scale 1, s = amax / 6. The product
    6 * midpoint has at most 8 bits, so it is exact, and so is the division back."""
    patterns = np.arange(0, 127)
    value = np.where(patterns < 8, patterns * 2.0**-9, (1 + patterns % 8 / 8) * 2.0 ** (patterns // 8 - 7)).astype(
        np.float32
    )
    s = np.concatenate((value[1:], (value[1:] + value[:-1]) / 2)).astype(np.float32)
    amax = (6 * s).astype(np.float32)
    amax = np.stack((np.nextafter(amax, np.float32(0)), amax, np.nextafter(amax, np.float32(np.inf)))).reshape(-1)
    shape = np.array(
        [1, -0.5, 0.25, -0.125, 0.75, 0, -0.0, 1 / 3, 2 / 3, -1 / 6, 5 / 12, 1 / 8, 1 / 24, -1 / 24, 1 / 12, -1]
    )
    return (amax[:, None] * shape.astype(np.float32)).astype(np.float32)


def _underflow_ladder() -> F32:
    """Block maxima around every point where the scale byte changes its nature: s at 2^-10 (tie to 0), 2^-9, 2^-6."""
    centres = np.array([2.0**-10, 1.5 * 2.0**-10, 2.0**-9, 1.5 * 2.0**-9, 2.5 * 2.0**-9, 2.0**-6, 2.0**-20], np.float32)
    amax = np.abs(_neighbours((6 * centres).astype(np.float32)))
    return np.concatenate((_with_maximum(amax), -_with_maximum(amax)))


def _with_maximum(amax: F32) -> F32:
    shape = np.array(
        [1, 0, -0.0, -1, 0.5, -0.5, 0.25, -0.25, 0.1, -0.1, 0.75, -0.75, 1e-3, -1e-3, 0.9, -0.9], np.float32
    )
    return (amax[:, None] * shape).astype(np.float32)


def _subnormals() -> F32:
    bits = np.random.RandomState(11).randint(0, 1 << 23, size=(16, 32)).astype(np.uint32)
    return (bits | (np.arange(32, dtype=np.uint32) % 2 << 31)).view(np.float32)


def regimes() -> Iterator[Regime]:
    """All of them, in a fixed order."""
    normal = _bell(1, 32, 128)
    for exponent in (0, -10, 13):
        yield Regime(f"normal_2e{exponent}", _bf16(normal * np.float32(2.0**exponent)), "bfloat16", None)
    yield Regime("normal_fp32", _bell(2, 32, 128) / np.float32(3), "float32", None)
    yield Regime("normal_given_scale", _bf16(_bell(3, 32, 128)), "bfloat16", 2.0**-9 * 1.2345)
    tails = _bell(4, 32, 128)
    yield Regime("heavy_tails", _bf16(tails * tails * tails * tails * tails), "bfloat16", None)
    outliers = _bell(5, 32, 128)
    outliers[:, [3, 40, 127]] *= np.float32(256)
    yield Regime("outlier_channels", _bf16(outliers), "bfloat16", None)
    decades = _bell(6, 32, 128) * (np.float32(10) ** np.linspace(-3, 3, 32, dtype=np.float32))[:, None].astype(
        np.float32
    )
    yield Regime("rows_over_six_decades", _bf16(_quantum(decades)), "bfloat16", None)
    yield Regime("all_zero", np.zeros((8, 64), np.float32), "bfloat16", None)
    one_zero = _bf16(_bell(7, 8, 64))
    one_zero[3, 16:32] = 0
    yield Regime("one_zero_block", one_zero, "bfloat16", None)
    yield Regime("underflow_ladder", _underflow_ladder(), "float32", 1.0)
    yield Regime("midpoints", _midpoints(), "float32", 1.0)
    yield Regime("scale_midpoints", _scale_midpoints(), "float32", 1.0)
    yield Regime("saturation", _bf16(_bell(8, 16, 64) * np.float32(4096)), "bfloat16", 1.0)
    zeros = _bf16(_bell(9, 8, 64))
    zeros[:, 1::4] = np.float32(-0.0)
    zeros[2] = np.float32(-0.0)
    yield Regime("signed_zeros", zeros, "bfloat16", None)
    yield Regime("subnormals", _subnormals(), "float32", None)
    yield Regime("tiny_global_scale", _bf16(_bell(10, 8, 64) * np.float32(2.0**-110)), "bfloat16", None)
    yield Regime("smallest", np.full((2, 32), 2.0**-149, np.float32), "float32", None)
    yield Regime("zero_global_scale", _bf16(_bell(12, 4, 32)), "bfloat16", 0.0)
    huge = _bf16(_bell(13, 8, 64) * np.float32(2.0**120))
    huge[0, 0], huge[7, 63] = np.finfo(np.float32).max, -np.finfo(np.float32).max
    yield Regime("fp32_max", huge, "float32", None)
    yield Regime("constant", np.full((8, 64), 0.333984375, np.float32), "bfloat16", None)
    for value in (np.inf, -np.inf, np.nan):
        special = _bf16(_bell(14, 4, 64))
        special[1, 20] = value
        special[2] = 0
        yield Regime(f"{value}_own_scale", special, "bfloat16", None, finite=False)
        yield Regime(f"{value}_given_scale", special, "bfloat16", 2.0**-9, finite=False)
    yield Regime("nan_global_scale", one_zero, "bfloat16", float("nan"), finite=False)


def _quantum(x: F32) -> F32:
    """Drop all but 12 significant bits, so that a last-bit difference of `10 ** x` between machines cannot show."""
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFF000)).view(np.float32)
