"""``compute_c4a_global_topk`` and ``build_c128a_topk_metadata``: torch and CUDA, in every variant of the contract.

The regime of a case is the state of a batch: ``normal`` (random contexts, some padding), ``holes`` (the indexer left
entries empty between others), ``padding`` (every token padded), ``short`` (contexts below one compressed token),
``foreign`` (requests and blocks outside the table) and ``int32-limit`` (block numbers whose slots end at 2^31 - 1).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from harness import Case, Contract, Cost, Draw, Implementation, Inputs, Suite, grid, register
from kernels.sparse import (
    BASELINE,
    BOUNDS,
    CONTEXT_PARALLEL,
    MASKED,
    build_c128a_topk_metadata,
    compute_c4a_global_topk,
)
from suites.models import MODELS, TOKENS, c128a_width, slots_per_page
from suites.sparse import oracle

VARIANTS = {"baseline": BASELINE, "masked": MASKED, "bounds": BOUNDS, "context-parallel": CONTEXT_PARALLEL}
REGIMES = ("normal", "holes", "padding", "short", "foreign", "int32-limit")
STALE = -99
"""What buffers hold before the call: columns beyond the active width must keep it, all others must lose it."""

C4A_BLOCK = slots_per_page(4)
C128A_BLOCK = slots_per_page(128)
_TABLE_BLOCKS = 96
_INT32_MAX = 2**31 - 1


def _cuda_kernels() -> str | None:
    """None, or why the CUDA kernels cannot run here."""
    try:
        import cuda.core  # noqa: F401
    except ImportError:
        return "cuda-core is not installed"
    return None


def implementations(call: Callable[..., Any]) -> dict[str, Implementation]:
    """The torch implementation everywhere; the CUDA kernels on a GPU, and as operators in the fake world."""
    return {
        "torch": Implementation(functools.partial(call, implementation="torch")),
        "cuda": Implementation(
            functools.partial(call, implementation="cuda"),
            worlds=("fake-cuda", "cuda"),
            requires=_cuda_kernels,
        ),
    }


def _requests(case: Case, draw: Draw, tokens: int, count: int) -> torch.Tensor:
    """A request for each token; ``foreign`` mixes in requests that have no row in the table."""
    low, high = (-1, count + 2) if case.regime == "foreign" else (0, count)
    return draw.integers(low, high, tokens, dtype="i32", name="requests")


def _table(case: Case, draw: Draw, requests: int, block: int) -> torch.Tensor:
    """Physical blocks in no order, in rows wider than the table (a slice of the engine's persistent buffer)."""
    top = (_INT32_MAX // block) if case.regime == "int32-limit" else 1 << 20
    low = top - 64 if case.regime == "int32-limit" else 0
    wide = draw.integers(low, top, requests, _TABLE_BLOCKS + 3, dtype="i32", name="table")
    return wide[:, :_TABLE_BLOCKS]


def _c4a_inputs(case: Case, draw: Draw) -> Inputs:
    tokens, width = case["t"], case["topk"]
    requests = max(1, tokens // 2)
    reach = _TABLE_BLOCKS * C4A_BLOCK * (2 if case.regime == "foreign" else 1)
    empty = {"normal": 0.05, "holes": 0.5, "padding": 0.05, "short": 1.0}.get(case.regime, 0.1)

    def topk(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        chosen = torch.randint(0, reach, shape, generator=generator)
        chosen[torch.rand(shape, generator=generator) < empty] = -1
        return chosen

    def valid(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        return torch.rand(shape, generator=generator) < (0.0 if case.regime == "padding" else 0.8)

    return {
        "topk_indices": draw.make(topk, tokens, width, dtype="i32"),
        "token_to_req_indices": _requests(case, draw, tokens, requests),
        "block_table": _table(case, draw, requests, C4A_BLOCK),
        "block_size": C4A_BLOCK,
        "is_valid_token": draw.make(valid, tokens, dtype=case.dtype),
        "options": VARIANTS[case["variant"]],
    }


def _c4a_reference(
    topk_indices: torch.Tensor,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    is_valid_token: torch.Tensor,
    options: Any,
) -> tuple[torch.Tensor, ...]:
    result = oracle.c4a(
        _int64(topk_indices),
        _int64(token_to_req_indices),
        _int64(block_table),
        block_size,
        is_valid_token.cpu().numpy() != 0,
        options,
    )
    return tuple(torch.from_numpy(array).to(torch.int32).to(topk_indices.device) for array in result)


def _int64(tensor: torch.Tensor) -> oracle.Ints:
    if tensor.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"expected int32 or int64, got {tensor.dtype}")
    return tensor.long().cpu().numpy()


def _c4a_cost(case: Case) -> Cost:
    """Read the local indices and write the global ones once; the table is small."""
    return Cost(bytes=8 * case["t"] * case["topk"] + 4 * case["t"])


_TOPK = sorted({model.indexer.topk for model in MODELS.values()})

register(
    Suite(
        name="compute_c4a_global_topk",
        doc="indexer's local top-k of C4A layers to global cache slots",
        inputs=_c4a_inputs,
        reference=_c4a_reference,
        outputs=("slots", "lens"),
        implementations=implementations(compute_c4a_global_topk),
        cases=(
            *grid(t=33, topk=128, variant=["baseline", "masked", "bounds"], dtype="bool", regime=REGIMES),
            *grid(t=[0, 1, 7], topk=[1, 130], variant="baseline", dtype=["bool", "u8", "i32", "i64"]),
            *grid(t=[64, 4096], topk=_TOPK, variant="bounds", dtype="bool", worlds=("fake-cuda", "cuda")),
        ),
        # every temporary of the torch implementation is of the indices' shape: six int64 and four bool at most
        memory=lambda case: case["t"] * case["topk"] * 80 + case["t"] * (_TABLE_BLOCKS + 3) * 12 + (1 << 16),
        cost=_c4a_cost,
        sweep="t",
    )
)


def _c128a_inputs(case: Case, draw: Draw) -> Inputs:
    tokens, width = case["t"], case["width"]
    decode = tokens * case["decode_percent"] // 100
    requests = max(1, tokens // 2)
    reach = {"short": 127, "normal": min(width, 2 * _TABLE_BLOCKS) * 128}.get(case.regime, width * 128 + 300)
    padding = {"padding": 1.0, "normal": 0.2}.get(case.regime, 0.1)

    def slot_mapping(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        mapped = torch.randint(0, 1 << 30, shape, generator=generator)
        mapped[torch.rand(shape, generator=generator) < padding] = -1
        return mapped

    def stale(rows: int, columns: int) -> torch.Tensor:
        return draw.full(STALE, rows, columns, dtype="i32")

    return {
        "positions": draw.integers(-1, reach, tokens, dtype="i64", name="positions"),
        "compress_ratio": 128,
        "num_decode_tokens": decode,
        "token_to_req_indices": _requests(case, draw, tokens + 2, requests),
        "block_table": _table(case, draw, requests, C128A_BLOCK),
        "block_size": C128A_BLOCK,
        "slot_mapping": draw.make(slot_mapping, tokens + 1, dtype="i64", name="slots"),
        # the two buffers have rows of different pitch, and more rows than the batch has tokens
        "global_decode_buffer": stale(tokens + 3, width + 5)[:, : width + 1],
        "decode_lens_buffer": draw.full(STALE, tokens + 3, dtype="i32"),
        "prefill_buffer": stale(tokens + 3, width + 7)[:, : width + 1],
        "max_compressed_tokens": width,
        "options": VARIANTS[case["variant"]],
    }


def _c128a_reference(
    positions: torch.Tensor,
    compress_ratio: int,
    num_decode_tokens: int,
    token_to_req_indices: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    slot_mapping: torch.Tensor,
    global_decode_buffer: torch.Tensor,
    decode_lens_buffer: torch.Tensor,
    prefill_buffer: torch.Tensor,
    max_compressed_tokens: int,
    options: Any,
) -> tuple[torch.Tensor, ...]:
    tokens, width = positions.shape[0], max_compressed_tokens
    decode, lens, prefill = oracle.c128a(
        _int64(positions),
        num_decode_tokens,
        _int64(token_to_req_indices),
        _int64(block_table),
        block_size,
        _int64(slot_mapping),
        width,
        options,
    )
    rows = global_decode_buffer[:num_decode_tokens].clone()
    rows[:, :width] = torch.from_numpy(decode).to(rows)
    local = prefill_buffer[: tokens - num_decode_tokens].clone()
    local[:, :width] = torch.from_numpy(prefill).to(local)
    return rows, torch.from_numpy(lens).to(decode_lens_buffer), local


def _c128a_cost(case: Case) -> Cost:
    """Write every index once; what is read is small."""
    return Cost(bytes=4 * case["t"] * case["width"])


_BUFFERS = ("global_decode_buffer", "decode_lens_buffer", "prefill_buffer")
_FULL_WIDTH = c128a_width(next(iter(MODELS.values())).rope.max_positions)

register(
    Suite(
        name="build_c128a_topk_metadata",
        doc="indices of C128A layers: every compressed token up to the query's position",
        inputs=_c128a_inputs,
        reference=_c128a_reference,
        outputs=("decode", "lens", "prefill"),
        implementations=implementations(build_c128a_topk_metadata),
        cases=(
            *grid(t=33, width=128, decode_percent=50, variant=list(VARIANTS), dtype="i32", regime=REGIMES),
            *grid(t=[0, 1, 9], width=[128, 384], decode_percent=[0, 60, 100], variant="baseline", dtype="i32"),
            *grid(
                t=[64, 1024],
                width=[512, _FULL_WIDTH],
                decode_percent=50,
                variant="bounds",
                dtype="i32",
                worlds=("fake-cuda", "cuda"),
            ),
            *grid(
                t=[tokens for tokens in TOKENS if 0 < tokens <= 256],
                width=_FULL_WIDTH,
                decode_percent=100,
                variant="baseline",
                dtype="i32",
                tier="full",
                worlds=("fake-cuda", "cuda"),
            ),
        ),
        contract=Contract(mutates=_BUFFERS, reuses_output=True),
        # both buffers at full pitch, and temporaries of the index shape: seven int64 and four bool at most
        memory=lambda case: (case["t"] + 3) * (case["width"] + 8) * 80 + case["t"] * 1500 + (1 << 17),
        cost=_c128a_cost,
        sweep="t",
    )
)
