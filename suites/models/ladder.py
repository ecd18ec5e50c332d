"""Token counts, and the sizes that break kernels which powers of two never break."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from suites.models.deepseek import V4_1_FLASH, V4_FLASH, V4_PRO
from suites.models.storage import WeightShape

TOKENS = (0, 1, 2, 3, 7, 8, 16, 32, 64, 127, 128, 129, 255, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Tokens of one step: decode at the left, prefill chunks at the right, and the neighbours of the tile sizes."""

ODD_TOKENS: Mapping[int, str] = MappingProxyType(
    {
        0: "a rank may get no token; nothing may be launched, read or divided by it",
        1: "one token: a matrix-vector product, and strides of size-1 dimensions that prove nothing",
        2: "the least count with two rows, which is the least that can mix rows up",
        127: "one row short of a tile of 128 and of an atom of scales",
        128: "one full tile; nothing is padded",
        129: "a full tile and one row: the second tile is nearly all padding",
    }
)
"""Why each of the M of ``ODD_SHAPES`` is there."""


@dataclass(frozen=True)
class OddWeight:
    """An awkward weight. ``real`` is the id of the shape it comes from, or None where no model has it."""

    weight: WeightShape
    why: str
    real: str | None


@dataclass(frozen=True)
class OddShape:
    """One product of an awkward weight and an awkward number of rows."""

    m: int
    weight: WeightShape
    why: str

    @property
    def id(self) -> str:
        """``odd.m129.n5120.k288``"""
        return f"odd.m{self.m}.{self.weight.id}"


def _v41_down(tp: int) -> WeightShape:
    return WeightShape(V4_1_FLASH.hidden, V4_1_FLASH.experts.intermediate // tp)


ODD_WEIGHTS = (
    OddWeight(
        WeightShape(3 * V4_PRO.experts.intermediate, V4_PRO.hidden),
        "N=9216 is quoted in public work on these kernels, yet no linear of the three models has it at any TP; "
        "it is 3 x 3072 and 2 x 4608, so its tiles are nine times a power of two",
        None,
    ),
    OddWeight(
        _v41_down(8),
        "K=288 is 18 scale columns: not a multiple of 4, so scales are padded; 2.25 tiles of 128",
        "v4.1-flash.tp8.shared_down",
    ),
    OddWeight(
        _v41_down(4),
        "K=576 is 36 scale columns: whole atoms of scales, but 4.5 tiles of 128",
        "v4.1-flash.tp4.shared_down",
    ),
    OddWeight(
        WeightShape(V4_PRO.hidden, V4_PRO.experts.intermediate // 8),
        "K=384 is 24 scale columns: three tiles of 128 but one and a half of 256, the usual K tile",
        "v4-pro.tp8.shared_down",
    ),
    OddWeight(
        WeightShape(V4_FLASH.hidden, V4_FLASH.experts.intermediate // 8),
        "K=256 is a single K tile: the main loop of a pipelined kernel runs once and its prologue is all there is",
        "v4-flash.tp8.shared_down",
    ),
)
"""Awkward N and K, most of them real."""

ODD_SHAPES = tuple(
    OddShape(m, odd.weight, f"{odd.why}; M={m}: {reason}") for odd in ODD_WEIGHTS for m, reason in ODD_TOKENS.items()
)
"""Every odd weight at every odd M."""
