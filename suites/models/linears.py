"""Every dense linear of a model at a tensor-parallel size, as the (N, K) that one rank computes.

y[M, N] = x[M, K] @ w[N, K].T. Which dimension is split, and which linears are fused into one product, follow vLLM
(vllm/models/deepseek_v4: nvidia/model.py, attention.py, compressor.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from suites.models.config import C4A, C128A, ModelConfig
from suites.models.deepseek import get_model
from suites.models.storage import BLOCK, WeightShape, split

TP = (1, 2, 4, 8)
"""tensor-parallel sizes of one host"""

Sharding = Literal["replicated", "column", "row", "groups"]
"""replicated: whole on every rank; column: N split; row: K split and results summed; groups: the matrices of a
batched product shared out whole."""
Stored = Literal["fp8", "bf16", "fp32"]


@dataclass(frozen=True)
class LinearShape:
    """One linear on one rank."""

    name: str
    model: str
    tp: int
    n: int
    k: int
    sharding: Sharding
    stored: Stored
    """How DeepSeek's checkpoint stores it. For V4-Pro and V4-Flash the sizes of the published files confirm this;
    V4.1-Flash is taken to be alike. vLLM computes router logits in fp32 from bf16 weights."""
    input: str
    """name of the activation it reads; linears with the same input can share one quantisation of it"""
    layers: int | None
    """uses in the main layers of the model; None: not published (V4.1 shares KV between layers)"""
    groups: int = 1
    """matrices of this (N, K) in one batched product; more than one for wo_a only"""

    @property
    def id(self) -> str:
        """``v4-pro.tp4.wq_b``"""
        return f"{self.model}.tp{self.tp}.{self.name}"

    @property
    def quantized(self) -> bool:
        """Whether the checkpoint ships it in FP8 blocks: these are the ones that NVFP4 can replace. The rest is
        shipped in bf16 or fp32. NVIDIA's NVFP4 checkpoints replace the routed experts alone; a public one that
        replaces dense linears too keeps wo_a in bf16."""
        return self.stored == "fp8"

    @property
    def weight(self) -> WeightShape:
        """Sizes of one of its ``groups`` matrices in NVFP4."""
        return WeightShape(self.n, self.k)


def linears(model: str | ModelConfig, tp: int = 1) -> Iterator[LinearShape]:
    """Every dense linear of ``model`` on one of ``tp`` ranks, in the order of a layer.

    Heads, output groups, expert columns and vocabulary are shared out whole; a ``tp`` that does not divide one of
    them raises ValueError. V4.1-Flash yields no compressors: what its ratios 2 and 1 project is not published.
    """
    cfg = get_model(model)
    att, ind, exp, hidden, layers = cfg.attention, cfg.indexer, cfg.experts, cfg.hidden, cfg.layers

    def share(total: int, what: str) -> int:
        return split(total, tp, f"{cfg.name}: {what}")

    heads = share(att.heads, "attention heads")
    groups = share(att.o_groups, "output groups")
    shared = share(exp.shared * exp.intermediate, "columns of the shared expert")
    vocab = share(cfg.vocab, "vocabulary")
    if shared % BLOCK:
        raise ValueError(
            f"{cfg.name}: tp{tp} leaves {shared} columns of the shared expert on a rank; "
            f"NVFP4 needs a multiple of {BLOCK}"
        )

    def linear(
        name: str,
        n: int,
        k: int,
        sharding: Sharding,
        stored: Stored,
        source: str,
        uses: int | None = layers,
        batch: int = 1,
    ) -> LinearShape:
        return LinearShape(name, cfg.name, tp, n, k, sharding, stored, source, uses, batch)

    q_rank, o_rank = att.q_lora_rank, att.o_lora_rank
    kv_uses = layers if cfg.kv_source_layers is None else None
    yield linear("fused_wqa_wkv", q_rank + att.kv_heads * att.head_dim, hidden, "replicated", "fp8", "hidden", kv_uses)
    yield linear("wq_b", heads * att.head_dim, q_rank, "column", "fp8", "q_latent")
    group_k = att.heads * att.head_dim // att.o_groups
    yield linear("wo_a", o_rank, group_k, "groups", "fp8", "attention_out", batch=groups)
    yield linear("wo_b", hidden, groups * o_rank, "row", "fp8", "o_latent")
    yield linear("indexer_wq_b", ind.heads * ind.head_dim, q_rank, "replicated", "fp8", "q_latent", cfg.index_layers)
    yield linear("indexer_weights_proj", ind.heads, hidden, "replicated", "bf16", "hidden", cfg.index_layers)
    for ratio, name in ((C4A, "compressor_c4a"), (C128A, "compressor_c128a")):
        if uses := len(cfg.layers_with(ratio)):
            n = compressor_width(att.head_dim, ratio)
            yield linear(name, n, hidden, "replicated", "bf16", "hidden", uses)
    if uses := len(cfg.layers_with(C4A)):
        n = compressor_width(ind.head_dim, C4A)
        yield linear("indexer_compressor", n, hidden, "replicated", "bf16", "hidden", uses)
    yield linear("router_gate", exp.routed, hidden, "replicated", "bf16", "hidden")
    yield linear("shared_gate_up", 2 * shared, hidden, "column", "fp8", "hidden")
    yield linear("shared_down", hidden, shared, "row", "fp8", "shared_act")
    yield linear("lm_head", vocab, hidden, "column", "bf16", "hidden", 1)
    # One mixing matrix before attention and one before the experts, each over all residual streams side by side.
    streams = cfg.hyper.mult * hidden
    yield linear("hc_fn", cfg.hyper.mixes, streams, "replicated", "fp32", "hc_streams", 2 * layers)


def compressor_width(head_dim: int, ratio: int) -> int:
    """Columns of the fused wkv and wgate of a compressor. The windows of C4A overlap by half, so each token is
    projected twice there: once for each of the two windows that it belongs to."""
    overlap = 2 if ratio == C4A else 1
    return 2 * overlap * head_dim
