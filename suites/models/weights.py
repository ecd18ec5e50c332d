"""The distinct weights behind all the shapes: many linears, models and TP sizes share one (N, K)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from suites.models.config import ModelConfig
from suites.models.deepseek import MODELS
from suites.models.experts import expert_gemms
from suites.models.linears import TP, linears
from suites.models.storage import WeightShape


def unique_weight_shapes(
    models: Iterable[str | ModelConfig] = tuple(MODELS), tps: Iterable[int] = TP
) -> Mapping[WeightShape, tuple[str, ...]]:
    """Every distinct (N, K) that NVFP4 can replace, sorted, with the ids of the shapes that have it.

    Linears that stay in bf16 or fp32 are left out. Experts count at EP1: EP changes how many, not their shape.
    """
    users: dict[WeightShape, list[str]] = {}
    sizes = tuple(tps)
    for model in models:
        for tp in sizes:
            for lin in linears(model, tp):
                if lin.quantized:
                    users.setdefault(lin.weight, []).append(lin.id)
            for gemm in expert_gemms(model, tp, ep=1):
                users.setdefault(gemm.weight, []).append(gemm.id)
    return {weight: tuple(users[weight]) for weight in sorted(users)}
