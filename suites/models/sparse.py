"""Sizes of the sparse-attention metadata and of the paged KV cache behind it.

Source: vLLM, vllm/models/deepseek_v4/sparse_mla.py and common/ops/cache_utils.py. Lengths in tokens, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from suites.models.config import C128A, ModelConfig
from suites.models.deepseek import get_model
from suites.models.storage import round_up

PAGE_TOKENS = 256
"""tokens that one page of compressed KV stands for"""
SWA_PAGE_TOKENS = 64
"""tokens of a page of the sliding-window cache, which is not compressed"""
WIDTH_MULTIPLE = 128
"""FlashMLA walks index rows in steps of 64 (64 heads) or 128 (128 heads); a width that is no multiple of its step
fails an assertion there, and 128 serves both."""
SCALE_BLOCK = 64
"""elements of the FP8 part of a KV entry that share one UE8M0 scale byte"""


@dataclass(frozen=True)
class SparseLayout:
    """Everything that sizes a buffer of index metadata or a page of KV, for one model."""

    model: str
    max_model_len: int
    index_topk: int
    """columns of the C4A index rows"""
    slots_per_page: Mapping[int, int]
    """compressed entries in a page, by compress ratio"""
    c128a_width: int | None
    """columns W of the C128A index rows; None: the model has no such layer"""
    combined_width: int
    """columns of prefill rows that hold top-k and sliding-window entries together"""
    token_bytes: int
    """FP8 and bf16 parts of one KV entry; within a page all of these come first"""
    scale_bytes: int
    """scales of one KV entry, with a byte of padding"""

    @property
    def entry_bytes(self) -> int:
        """One KV entry."""
        return self.token_bytes + self.scale_bytes

    def page_bytes(self, slots: int) -> int:
        """A page of ``slots`` entries, padded to a multiple of the token data of one entry."""
        return round_up(slots * self.entry_bytes, self.token_bytes)


def sparse_layout(model: str | ModelConfig, max_model_len: int | None = None) -> SparseLayout:
    """The layout for contexts up to ``max_model_len`` (default: all positions of the model).

    The page figures of V4.1-Flash (ratios 2 and 1) follow the same formula but were not checked against a source.
    """
    cfg = get_model(model)
    att = cfg.attention
    length = cfg.rope.max_positions if max_model_len is None else max_model_len
    return SparseLayout(
        model=cfg.name,
        max_model_len=length,
        index_topk=cfg.indexer.topk,
        slots_per_page={ratio: slots_per_page(ratio) for ratio in cfg.layer_kinds if ratio},
        c128a_width=c128a_width(length) if C128A in cfg.layer_kinds else None,
        combined_width=round_up(cfg.indexer.topk + att.sliding_window, WIDTH_MULTIPLE),
        token_bytes=att.nope_dim + 2 * att.rope_dim,
        scale_bytes=-(-att.nope_dim // SCALE_BLOCK) + 1,
    )


def slots_per_page(ratio: int) -> int:
    """Compressed entries in one page."""
    if ratio < 1 or PAGE_TOKENS % ratio:
        raise ValueError(f"compress ratio: expected a divisor of {PAGE_TOKENS}, got {ratio}")
    return PAGE_TOKENS // ratio


def c128a_width(max_model_len: int) -> int:
    """W: room for every compressed entry of the longest context, rounded up to what FlashMLA accepts."""
    if max_model_len < 1:
        raise ValueError(f"max_model_len: expected at least 1, got {max_model_len}")
    return round_up(-(-max_model_len // C128A), WIDTH_MULTIPLE)


def compressed_entries(position: int, ratio: int) -> int:
    """Entries complete once the token at ``position`` is in: only a full window of ``ratio`` tokens makes one."""
    return (position + 1) // ratio
