"""Host side of the Hopper grouped GEMM: choose a tile shape, hold workspace, launch. Safe to capture once warmed
up.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from kernels import jit
from kernels.sm90.scratch import scratch
from kernels.sm90.weights import ShuffledWeights

_PACKAGE = str(Path(__file__).parent)

DECODE, MIDDLE, PREFILL = "decode", "middle", "prefill"
TILES = (DECODE, MIDDLE, PREFILL)

# Up to so many tokens a group on average, in this order. Chosen from all three tiles' times over M, uniform and zipf
# routing (docs/hopper-notes.md): with several groups the prefill tile wins early, since it balances hot experts.
_DECODE_TOKENS, _MIDDLE_TOKENS = 3, 8
_DECODE_ROWS, _MIDDLE_ROWS = 8, 16  # of a dense layer


@functools.cache
def config(name: str) -> Any:
    """The three tile shapes. Token widths are as many as ptxas compiles without serialising the wgmmas (C7512)."""
    from kernels.sm90.gemm_schedule import GemmConfig

    if name == DECODE:
        return GemmConfig(
            DECODE, warpgroups=4, slabs_per_warpgroup=1, stages=6, token_widths=(8, 16, 32, 64), box_tokens=8,
            steps=1, buffers=3, registers=(32, 112), tail_split=False,
        )  # fmt: skip
    if name == MIDDLE:
        return GemmConfig(
            MIDDLE, warpgroups=2, slabs_per_warpgroup=2, stages=5, token_widths=(16, 32, 48, 64, 96), box_tokens=16,
            steps=2, buffers=2, registers=(40, 232), tail_split=False,
        )  # fmt: skip
    if name == PREFILL:
        return GemmConfig(
            PREFILL, warpgroups=2, slabs_per_warpgroup=2, stages=4, token_widths=(32, 64, 96, 128), box_tokens=32,
            steps=2, buffers=2, registers=(40, 232), tail_split=True,
        )  # fmt: skip
    raise ValueError(f"config: expected one of {TILES}, got {name!r}")


def gemm_spec(name: str, epilogue: str) -> jit.KernelSpec:
    """The spec of one of the six GEMM kernels: three tile shapes by two epilogues; all sizes are run-time values."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        import cutlass
        import cutlass.cute as cute
        from cutlass.cute.runtime import make_fake_compact_tensor as fake
        from cutlass.cute.runtime import make_fake_stream

        from kernels.sm90.gemm_kernel import GroupedGemm

        tokens = cute.sym_int()
        return GroupedGemm(config(name), epilogue), (
            fake(cutlass.BFloat16, (tokens, cute.sym_int(divisibility=8)), stride_order=(1, 0), assumed_align=16),
            fake(cutlass.Uint8, (cute.sym_int(),), assumed_align=16),
            fake(cutlass.Int32, (cute.sym_int(),), assumed_align=4),
            fake(cutlass.Float32, (cute.sym_int(),), assumed_align=4),
            fake(cutlass.BFloat16, (tokens, cute.sym_int(divisibility=8)), stride_order=(1, 0), assumed_align=16),
            fake(cutlass.Uint8, (cute.sym_int(),), assumed_align=16),
            fake(cutlass.Int32, (cute.sym_int(),), assumed_align=4),
            cutlass.Int32(1), cutlass.Int32(1), cutlass.Float32(1), cutlass.Int32(1), cutlass.Int32(1),
            make_fake_stream(use_tvm_ffi_env_stream=True),
        )  # fmt: skip

    return jit.KernelSpec("nvfp4_grouped_gemm", (("tile", repr(config(name))), ("epilogue", epilogue)), _PACKAGE, build)


def choose(tokens: int, groups: int) -> str:
    """Tile shape by shape alone, never by routing: a captured graph must be right for every routing."""
    decode, middle = (_DECODE_ROWS, _MIDDLE_ROWS) if groups == 1 else (_DECODE_TOKENS, _MIDDLE_TOKENS)
    if tokens <= decode * groups:
        return DECODE
    return MIDDLE if tokens <= middle * groups else PREFILL


def grouped_gemm(
    x: torch.Tensor,
    weights: ShuffledWeights,
    offsets: torch.Tensor,
    alpha: torch.Tensor,
    *,
    swiglu_limit: float = float("inf"),
    out: torch.Tensor | None = None,
    tile: str | None = None,
    offsets_settled: bool = False,
) -> torch.Tensor:
    """out[r] = alpha[e] * x[r] @ dequant(W_e)^T for every row r of group e = [offsets[e], offsets[e + 1]).

    x (tokens, K) bf16, contiguous. offsets (E + 1,) int32 on the device, ascending, within [0, tokens]; rows of no
    group are not written. alpha (E,) fp32: the weights' global scale, times the activations' where those are
    scaled. Weights of kind "swiglu" give bf16(silu(min(g, limit)) * clamp(u, -limit, limit)) instead, rows / 2
    columns, where g and u include alpha. Accumulation is fp32; deterministic for given inputs and device.
    offsets_settled: promises that `offsets` was not written by the kernel launched just before on this stream
    (constant, or two or more launches old); weights are then fetched while that kernel still runs.
    """
    if x.dim() != 2 or x.dtype != torch.bfloat16 or x.shape[1] != weights.k or not x.is_contiguous():
        raise ValueError(
            f"x: expected contiguous bf16 (tokens, {weights.k}), got {tuple(x.shape)} {x.dtype} {x.stride()}"
        )
    if offsets.dtype != torch.int32 or offsets.shape != (weights.experts + 1,):
        raise ValueError(
            f"offsets: expected int32 ({weights.experts + 1},), got {offsets.dtype} {tuple(offsets.shape)}"
        )
    if alpha.dtype != torch.float32 or alpha.shape != (weights.experts,):
        raise ValueError(f"alpha: expected float32 ({weights.experts},), got {alpha.dtype} {tuple(alpha.shape)}")
    if out is None:
        out = torch.empty((x.shape[0], weights.width), dtype=torch.bfloat16, device=x.device)
    elif out.shape != (x.shape[0], weights.width) or out.dtype != torch.bfloat16 or not out.is_contiguous():
        raise ValueError(
            f"out: expected contiguous bf16 {(x.shape[0], weights.width)}, got {tuple(out.shape)} {out.dtype}"
        )
    if x.shape[0] == 0:
        return out
    epilogue = "swiglu" if weights.kind == "swiglu" else "plain"
    kernel = jit.get(gemm_spec_cached(tile or choose(x.shape[0], weights.experts), epilogue))
    own = scratch(x.device)
    kernel(
        x, weights.data, offsets, alpha, out, own.parts, own.counters,
        weights.slabs, weights.k_blocks, float(swiglu_limit), int(offsets_settled), own.grid,
    )  # fmt: skip
    return out


gemm_spec_cached = functools.cache(gemm_spec)


def linear(x: torch.Tensor, weights: ShuffledWeights, alpha: torch.Tensor, **options: Any) -> torch.Tensor:
    """The dense layer: one group that owns every row. `options` as in `grouped_gemm`."""
    offsets, settled = _whole(x.shape[0], x.device)
    return grouped_gemm(x, weights, offsets, alpha, offsets_settled=settled, **options)


_whole_offsets: dict[tuple[int, torch.device], torch.Tensor] = {}


def _whole(tokens: int, device: torch.device) -> tuple[torch.Tensor, bool]:
    """[0, tokens], and whether it is old. Kept for ever: a captured graph reads it at every replay."""
    key = (tokens, device)
    found = _whole_offsets.get(key)
    if found is not None:
        return found, True
    # A fill kernel, which can be captured; a copy from the host cannot.
    made = torch.arange(0, max(tokens, 1) + 1, max(tokens, 1), dtype=torch.int32, device=device)
    if not torch.cuda.is_current_stream_capturing():
        _whole_offsets[key] = made
    return made, False
