"""What a model's config.json says, as frozen data: the only figures that are typed; all others are derived.

Fields keep to the published meaning; where a name differs from config.json's, the docstring gives that name. Each
group carries a ``source``: where its figures were read. Sizes are in elements, lengths in tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

C4A = 4
"""Compress ratio of a layer whose compressed KV is picked by an indexer (top-k); windows overlap."""
C128A = 128
"""Compress ratio of a layer that attends to all of its compressed KV, so it has no indexer."""
SWA_ONLY = 0
"""Compress ratio of a layer with nothing but its sliding window."""


@dataclass(frozen=True)
class Attention:
    """Multi-query latent attention with grouped output projection."""

    heads: int
    """num_attention_heads"""
    head_dim: int
    """nope and rope parts together; also the width of the one shared KV head"""
    rope_dim: int
    """qk_rope_head_dim: the last part of ``head_dim``, kept in bf16 in the KV cache"""
    kv_heads: int
    """num_key_value_heads"""
    q_lora_rank: int
    o_lora_rank: int
    """output rank of each of the ``o_groups`` matrices of wo_a"""
    o_groups: int
    sliding_window: int
    """tokens"""
    source: str

    @property
    def nope_dim(self) -> int:
        """Part of a head without rotary embedding; FP8 in the KV cache."""
        return self.head_dim - self.rope_dim


@dataclass(frozen=True)
class Indexer:
    """The small attention that picks which compressed KV entries the large one reads."""

    heads: int
    """index_n_heads"""
    head_dim: int
    """index_head_dim"""
    topk: int
    """index_topk: compressed entries kept for a token"""
    source: str
    source_layers: tuple[int, ...] | None = None
    """index_source_layer_ids: the layers that run an indexer whose result others reuse; None: each C4A layer has
    one of its own."""


@dataclass(frozen=True)
class Experts:
    """Mixture of experts and its router."""

    routed: int
    """n_routed_experts"""
    top_k: int
    """num_experts_per_tok"""
    shared: int
    """n_shared_experts"""
    intermediate: int
    """moe_intermediate_size: columns of gate, and of up"""
    routed_scaling_factor: float
    swiglu_limit: float
    """L of y = silu(min(gate, L)) * clamp(up, -L, L)"""
    scoring_func: str
    topk_method: str
    norm_topk_prob: bool
    hash_layers: int
    """num_hash_layers: the first layers, whose expert ids come from a table by token id; 0: no such field"""
    source: str


@dataclass(frozen=True)
class Rope:
    """Rotary embedding with YaRN. Positions in tokens."""

    theta: int
    """rope_theta, of the sliding window"""
    compress_theta: int
    """compress_rope_theta, of compressed KV"""
    yarn_factor: int
    yarn_original_positions: int
    beta_fast: int
    beta_slow: int
    max_positions: int
    """max_position_embeddings"""
    source: str


@dataclass(frozen=True)
class HyperConnections:
    """``mult`` residual streams mixed before and after each block (hc_*)."""

    mult: int
    sinkhorn_iterations: int
    eps: float
    source: str

    @property
    def mixes(self) -> int:
        """Rows of the mixing matrix: weights into the block, out of it, and between all pairs of streams."""
        return (2 + self.mult) * self.mult


@dataclass(frozen=True)
class Draft:
    """Layers of speculative decoding that the checkpoint ships after the main ones. They are sliding-window only."""

    layers: int
    """num_nextn_predict_layers, or the stages of DSpark"""
    source: str
    routed: int | None = None
    """experts of a draft layer; None: as in the main layers"""
    top_k: int | None = None


@dataclass(frozen=True)
class NativeFormat:
    """How DeepSeek ships the weights. An NVFP4 checkpoint is made from these bytes."""

    dense: str
    dense_block: tuple[int, int]
    """rows and columns of one dense scale"""
    experts: str
    expert_block: int
    """elements along K of one expert scale"""
    source: str


@dataclass(frozen=True)
class ModelConfig:
    """One model. ``layers`` and every shape follow from these fields."""

    name: str
    """short name, the first part of every shape's id"""
    title: str
    hidden: int
    """hidden_size"""
    vocab: int
    """vocab_size"""
    rms_eps: float
    compress_ratios: tuple[int, ...]
    """one entry a main layer: tokens a compressed KV entry stands for (draft layers are in ``draft``)"""
    attention: Attention
    indexer: Indexer
    experts: Experts
    rope: Rope
    hyper: HyperConnections
    draft: Draft
    native: NativeFormat
    source: str
    """of the figures directly in this class"""
    kv_source_layers: tuple[int, ...] | None = None
    """kv_source_layer_ids: the layers that compute compressed KV which others reuse; None: each has its own."""

    @property
    def layers(self) -> int:
        """Main layers (num_hidden_layers)."""
        return len(self.compress_ratios)

    @property
    def layer_kinds(self) -> Mapping[int, int]:
        """Number of main layers by compress ratio, in order of ratio."""
        return dict(sorted(Counter(self.compress_ratios).items()))

    def layers_with(self, ratio: int) -> tuple[int, ...]:
        """Indices of the main layers with this compress ratio."""
        return tuple(layer for layer, own in enumerate(self.compress_ratios) if own == ratio)

    @property
    def index_layers(self) -> int:
        """Main layers that run an indexer."""
        shared = self.indexer.source_layers
        return len(self.layers_with(C4A)) if shared is None else len(shared)

    @property
    def config_compress_ratios(self) -> tuple[int, ...]:
        """The list as V4's config.json has it: main layers, then a 0 for each draft layer."""
        return self.compress_ratios + (SWA_ONLY,) * self.draft.layers
