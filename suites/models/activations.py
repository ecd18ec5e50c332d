"""The activations that a quantiser sees, derived from the linears and experts that read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from suites.models.config import ModelConfig
from suites.models.deepseek import get_model
from suites.models.experts import expert_gemms, routed_rows
from suites.models.ladder import TOKENS
from suites.models.linears import linears


@dataclass(frozen=True)
class ActivationShape:
    """An (M, K) activation in bf16, to be quantised along K."""

    name: str
    model: str
    tp: int
    tokens: int
    m: int
    """rows: ``tokens``, times the output groups for wo_a, times top-k for the experts"""
    k: int
    feeds: tuple[str, ...]
    """names of the linears that read it"""

    @property
    def id(self) -> str:
        """``v4-pro.tp4.q_latent.t128``"""
        return f"{self.model}.tp{self.tp}.{self.name}.t{self.tokens}"

    @property
    def bf16_bytes(self) -> int:
        """Size before quantisation."""
        return 2 * self.m * self.k


def activation_shapes(
    model: str | ModelConfig, tp: int = 1, tokens: Iterable[int] = TOKENS
) -> Iterator[ActivationShape]:
    """Every distinct input of a quantised linear or expert product on one rank, for each number of tokens.

    Rows of the experts' inputs are those of all ranks together (tokens x top-k): the most that one rank can get,
    and what its buffers must hold.
    """
    cfg = get_model(model)
    readers: dict[str, list[str]] = {}
    sizes: dict[str, tuple[int, int]] = {}
    for lin in linears(cfg, tp):
        if lin.quantized:
            readers.setdefault(lin.input, []).append(lin.name)
            sizes[lin.input] = (lin.groups, lin.k)
    per_token = routed_rows(cfg, 1)
    for gemm, name in zip(expert_gemms(cfg, tp, ep=1), ("routed_hidden", "routed_act"), strict=True):
        readers[name] = [gemm.name]
        sizes[name] = (per_token, gemm.k)
    for count in tokens:
        if count < 0:
            raise ValueError(f"tokens: expected 0 or more, got {count}")
        for name, (rows, k) in sizes.items():
            yield ActivationShape(name, cfg.name, tp, count, count * rows, k, tuple(readers[name]))
