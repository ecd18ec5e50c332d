"""The routed experts of a model: the two grouped products of a rank, their NVFP4 sizes, and how many are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from suites.models.config import ModelConfig
from suites.models.deepseek import get_model
from suites.models.storage import BLOCK, WeightShape, split

EP = (1, 2, 4, 8, 16)
"""expert-parallel sizes"""


@dataclass(frozen=True)
class ExpertGemm:
    """One grouped product on one rank: ``experts`` matrices of (N, K)."""

    name: Literal["l1", "l2"]
    """l1: gate and up, stacked along N; l2: down"""
    model: str
    tp: int
    """ranks that share each expert: N of l1 and K of l2 are split"""
    ep: int
    """groups of ranks that share the experts out, whole"""
    experts: int
    """on this rank"""
    n: int
    k: int

    @property
    def id(self) -> str:
        """``v4-pro.tp1.ep8.l1``"""
        return f"{self.model}.tp{self.tp}.ep{self.ep}.{self.name}"

    @property
    def weight(self) -> WeightShape:
        """One expert's matrix: packed K, scale columns, bytes."""
        return WeightShape(self.n, self.k)

    @property
    def nvfp4_bytes(self) -> int:
        """All of the rank's experts, codes and unpadded scales."""
        return self.experts * self.weight.nvfp4_bytes

    @property
    def sf_swizzled_bytes(self) -> int:
        """All of the rank's scales; each expert is padded and swizzled on its own, never the stack as a whole."""
        return self.experts * self.weight.sf_swizzled_bytes


def experts_per_rank(model: str | ModelConfig, ep: int) -> int:
    """Routed experts held by one of ``ep`` groups; ValueError when they do not divide."""
    cfg = get_model(model)
    return split(cfg.experts.routed, ep, f"{cfg.name}: routed experts")


def expert_gemms(model: str | ModelConfig, tp: int = 1, ep: int = 8) -> Iterator[ExpertGemm]:
    """L1 and L2 of one rank. Usual layouts have ``tp=1`` (whole experts) or ``ep=1`` (every expert, sliced)."""
    cfg = get_model(model)
    local = experts_per_rank(cfg, ep)
    columns = split(cfg.experts.intermediate, tp, f"{cfg.name}: columns of an expert")
    if columns % BLOCK:
        raise ValueError(
            f"{cfg.name}: tp{tp} leaves {columns} columns of an expert on a rank; NVFP4 needs a multiple of {BLOCK}"
        )
    yield ExpertGemm("l1", cfg.name, tp, ep, local, 2 * columns, cfg.hidden)
    yield ExpertGemm("l2", cfg.name, tp, ep, local, cfg.hidden, columns)


def expected_experts_hit(model: str | ModelConfig, tokens: int, ep: int = 1) -> float:
    """Expected number of a rank's experts that at least one of ``tokens`` (over all ranks) is routed to.

    E (1 - (1 - k/E)^M) / ep, under uniform routing: a token misses a given expert with probability 1 - k/E. Real
    routing is skewed and hits fewer. The bytes a decode step must read grow with this, not with E.
    """
    if tokens < 0:
        raise ValueError(f"tokens: expected 0 or more, got {tokens}")
    cfg = get_model(model).experts
    return cfg.routed * (1 - (1 - cfg.top_k / cfg.routed) ** tokens) / ep


def routed_rows(model: str | ModelConfig, tokens: int) -> int:
    """Rows of the grouped products over all ranks together, before any padding: each token once for each expert."""
    return tokens * get_model(model).experts.top_k
