"""Shapes quoted in public work on NVFP4 MoE kernels for DeepSeek-V4, rebuilt from the configs where they can be.

They are kept so that a number found in a log or a bug report can be looked up.
"""

from __future__ import annotations

from dataclasses import dataclass

from suites.models.deepseek import V4_PRO
from suites.models.experts import expert_gemms, routed_rows


@dataclass(frozen=True)
class QuotedFigure:
    """A shape that others have quoted."""

    id: str
    shape: tuple[int, ...]
    meaning: str
    explained: bool = True
    """False: no config gives this figure, so it is typed, and a test shows that it stays unexplained"""


_QUOTED_EP = 8
_L1, _L2 = expert_gemms(V4_PRO, tp=1, ep=_QUOTED_EP)
# The stacks were quoted as (E, K, N): a transposed view of the (E, N, K) that every kernel stores.
QUOTED_FIGURES = (
    QuotedFigure(
        "l1_packed",
        (_L1.experts, _L1.weight.packed_k, _L1.n),
        'V4-Pro L1 codes at EP8, (E, K/2, N); the "3584 x 6144" of the log',
    ),
    QuotedFigure("l1_scales", (_L1.experts, _L1.weight.sf_k, _L1.n), "V4-Pro L1 block scales, (E, K/16, N)"),
    QuotedFigure("l2_packed", (_L2.experts, _L2.weight.packed_k, _L2.n), "V4-Pro L2 codes, (E, K/2, N)"),
    QuotedFigure("l2_scales", (_L2.experts, _L2.weight.sf_k, _L2.n), "V4-Pro L2 block scales, (E, K/16, N)"),
    QuotedFigure(
        "l1_bf16_stack",
        (_L1.experts, _L1.k, _L1.n),
        "V4-Pro L1 of one rank before quantisation, (E, K, N): the largest weight quantised in one call",
    ),
    QuotedFigure(
        "routed_rows",
        (routed_rows(V4_PRO, 8192), V4_PRO.hidden),
        "V4-Pro, 8192 tokens x top-6: rows of L1's input, where a buffer of fewer rows failed",
    ),
    QuotedFigure(
        "n9216",
        (9216,),
        "N of no linear of these models at any TP (DeepSeek-V3's dense gate and up have it at TP4); kept as an odd N",
        explained=False,
    ),
)
"""In the layout in which they were quoted."""
