"""The shapes against the sizes of the published checkpoint files: an oracle that nobody here typed a shape into.

A missing linear, a wrong (N, K), a wrong storage type or a wrong count of layers changes these bytes by far more than
the headers and norms that the sums leave out.
"""

from __future__ import annotations

import pytest

from suites.models import C4A, C128A, V4_FLASH, V4_PRO, LinearShape, ModelConfig, expert_gemms, linears

# Sizes of the files of deepseek-ai/DeepSeek-V4-Flash-0731, revision 7872f01b (Git LFS): one layer a file.
EMBEDDING_FILE = 1_059_061_856
SWA_HASH_FILE, C4A_HASH_FILE = 3_566_321_192, 3_596_229_272
C128A_HASH_FREE_FILE, C4A_FILE = 3_568_768_976, 3_590_024_776
TENSORS = 1_576
HEADER_MOST = TENSORS * 160  # bytes; a safetensors header takes some 100 to 150 a tensor
PRO_ON_DISK_GB = 864.69


def stored_bytes(model: ModelConfig, lin: LinearShape) -> int:
    if lin.stored == "fp8":
        rows, columns = model.native.dense_block
        return lin.groups * (lin.n * lin.k + -(-lin.n // rows) * -(-lin.k // columns))
    return lin.groups * lin.n * lin.k * {"bf16": 2, "fp32": 4}[lin.stored]


def expert_bytes(model: ModelConfig) -> int:
    gemms = expert_gemms(model, tp=1, ep=1)
    return sum(g.experts * g.n * (g.k // 2 + g.k // model.native.expert_block) for g in gemms)


def layer_bytes(model: ModelConfig, ratio: int) -> int:
    """A layer of this compress ratio, without its norms and biases."""
    total = expert_bytes(model)
    only = {"compressor_c4a": C4A, "indexer_compressor": C4A, "compressor_c128a": C128A}
    for lin in linears(model):
        if lin.name == "lm_head" or only.get(lin.name, ratio) != ratio:
            continue
        if lin.name.startswith("indexer") and ratio != C4A:
            continue
        total += stored_bytes(model, lin) * (2 if lin.name == "hc_fn" else 1)
    # Learned positions of a compressor's window, fp32: (ratio, width); half of its columns are theirs.
    if ratio == C4A:
        total += 4 * ratio * 2 * (model.attention.head_dim + model.indexer.head_dim)
    elif ratio == C128A:
        total += 4 * ratio * model.attention.head_dim
    return total


def hash_table_bytes(model: ModelConfig) -> int:
    return model.vocab * model.experts.top_k * 8


@pytest.mark.parametrize(
    ("ratio", "hashed", "file"),
    [
        (0, True, SWA_HASH_FILE),
        (C4A, True, C4A_HASH_FILE),
        (C4A, False, C4A_FILE),
        (C128A, False, C128A_HASH_FREE_FILE),
    ],
)
def test_a_layer_of_v4_flash_fills_its_file(ratio: int, hashed: bool, file: int) -> None:
    rest = file - layer_bytes(V4_FLASH, ratio) - (hash_table_bytes(V4_FLASH) if hashed else 0)
    assert 0 < rest < HEADER_MOST


def test_c4a_layer_exceeds_c128a_layer_by_its_indexer_and_wider_compressor() -> None:
    derived = layer_bytes(V4_FLASH, C4A) - layer_bytes(V4_FLASH, C128A)
    assert 0 <= (C4A_FILE - C128A_HASH_FREE_FILE) - derived < 2_000


def test_embedding_and_head_are_bf16() -> None:
    head = next(lin for lin in linears(V4_FLASH) if lin.name == "lm_head")
    assert 0 < EMBEDDING_FILE - stored_bytes(V4_FLASH, head) < 200


def test_v4_pro_on_disk() -> None:
    total = sum(stored_bytes(V4_PRO, lin) * (lin.layers or 0) for lin in linears(V4_PRO))
    total += V4_PRO.layers * expert_bytes(V4_PRO) + V4_PRO.experts.hash_layers * hash_table_bytes(V4_PRO)
    total += 2 * V4_PRO.vocab * V4_PRO.hidden  # embedding, bf16
    # The draft layer: a sliding-window layer, and two FP8 matrices that join its two inputs.
    total += V4_PRO.draft.layers * (layer_bytes(V4_PRO, 0) + 2 * V4_PRO.hidden**2)
    assert total / 1e9 == pytest.approx(PRO_ON_DISK_GB, abs=0.05)


@pytest.mark.parametrize(("model", "total", "active"), [(V4_PRO, 1.6e12, 49e9), (V4_FLASH, 284e9, 13e9)])
def test_published_parameter_counts(model: ModelConfig, total: float, active: float) -> None:
    dense = sum(lin.n * lin.k * lin.groups * (lin.layers or 0) for lin in linears(model))
    one_expert = sum(g.n * g.k for g in expert_gemms(model)) * model.layers
    embedding = model.vocab * model.hidden
    assert dense + embedding + one_expert * model.experts.routed == pytest.approx(total, rel=0.02)
    # A lookup multiplies nothing, so the embedding is not among the active ones.
    assert dense + one_expert * model.experts.top_k == pytest.approx(active, rel=0.03)
