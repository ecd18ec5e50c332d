"""A MoE layer's routed experts on Hopper: route and gather, L1 with fused SwiGLU, L2, weighted combine.

Four launches (five for large batches), all sizes fixed by (tokens, top_k), routing read on the device: a captured
graph replays with any routing. Deterministic.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kernels import jit
from kernels.sm90.gemm import TILES, gemm_spec_cached, grouped_gemm
from kernels.sm90.weights import ShuffledWeights, interleave_rows, shuffle_weights

_PACKAGE = str(Path(__file__).parent)
_MAX_FUSED_ROUTES = 4096
_MAX_EXPERTS = 512


def _flat(dtype: Any, align: int) -> Any:
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_compact_tensor

    return make_fake_compact_tensor(dtype, (cute.sym_int(),), assumed_align=align)


@functools.cache
def route_spec(id_bits: int, fused: bool) -> jit.KernelSpec:
    """Spec of the routing kernel for int32 or int64 ids."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        import cutlass
        from cutlass.cute.runtime import make_fake_stream

        from kernels.sm90.routing_kernel import Route

        ids = cutlass.Int64 if id_bits == 64 else cutlass.Int32
        return Route(id_bits, fused), (
            _flat(ids, 4 if id_bits == 32 else 8), _flat(cutlass.Int32, 4), _flat(cutlass.Int32, 4),
            _flat(cutlass.Uint8, 16), _flat(cutlass.Uint8, 16),
            cutlass.Int32(1), cutlass.Int32(1), cutlass.Int32(16), cutlass.Int32(1),
            make_fake_stream(use_tvm_ffi_env_stream=True),
        )  # fmt: skip

    return jit.KernelSpec("moe_route", (("fused", str(fused)), ("ids", str(id_bits))), _PACKAGE, build)


@functools.cache
def gather_spec() -> jit.KernelSpec:
    def build() -> tuple[Any, tuple[Any, ...]]:
        import cutlass
        from cutlass.cute.runtime import make_fake_stream

        from kernels.sm90.routing_kernel import Gather

        return Gather(), (
            _flat(cutlass.Int32, 4), _flat(cutlass.Uint8, 16), _flat(cutlass.Uint8, 16),
            cutlass.Int32(1), cutlass.Int32(1), cutlass.Int32(16), make_fake_stream(use_tvm_ffi_env_stream=True),
        )  # fmt: skip

    return jit.KernelSpec("moe_gather", (), _PACKAGE, build)


@functools.cache
def combine_spec() -> jit.KernelSpec:
    def build() -> tuple[Any, tuple[Any, ...]]:
        import cutlass
        from cutlass.cute.runtime import make_fake_stream

        from kernels.sm90.routing_kernel import Combine

        return Combine(), (
            _flat(cutlass.Uint8, 16), _flat(cutlass.Int32, 4), _flat(cutlass.Float32, 4), _flat(cutlass.Uint8, 16),
            cutlass.Int32(1), cutlass.Int32(1), cutlass.Int32(16), make_fake_stream(use_tvm_ffi_env_stream=True),
        )  # fmt: skip

    return jit.KernelSpec("moe_combine", (), _PACKAGE, build)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def route_and_gather(
    x: torch.Tensor, topk_ids: torch.Tensor, experts: int, first_expert: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (T, H) bf16 and ids (T, top_k) -> rows (T * top_k, H) in expert order, offsets (E + 1,), row_of_route.

    row_of_route (T * top_k,) int32: where each route's row lies, -1 for an id outside [first_expert, first_expert +
    E). Rows past offsets[E] are not written. H a multiple of 8.
    """
    tokens, top_k = topk_ids.shape
    if x.dtype != torch.bfloat16 or not x.is_contiguous() or x.shape[0] != tokens or x.shape[1] % 8:
        raise ValueError(f"x: expected contiguous bf16 ({tokens}, H), H % 8 == 0, got {tuple(x.shape)} {x.dtype}")
    if topk_ids.dtype not in (torch.int32, torch.int64) or not topk_ids.is_contiguous():
        raise TypeError(f"topk_ids: expected contiguous int32 or int64, got {topk_ids.dtype} {topk_ids.stride()}")
    if not 1 <= experts <= _MAX_EXPERTS:
        raise ValueError(f"experts: expected 1..{_MAX_EXPERTS}, got {experts}")
    routes = tokens * top_k
    rows = torch.empty((routes, x.shape[1]), dtype=torch.bfloat16, device=x.device)
    row_of_route = torch.empty(routes, dtype=torch.int32, device=x.device)
    if routes == 0:
        return rows, torch.zeros(experts + 1, dtype=torch.int32, device=x.device), row_of_route
    offsets = torch.empty(experts + 1, dtype=torch.int32, device=x.device)
    row_bytes = x.shape[1] * 2
    fused = routes <= _MAX_FUSED_ROUTES
    grid = min(tokens, _multiprocessors(x.device)) if fused else 1
    source, target = x.view(torch.uint8).view(-1), rows.view(torch.uint8).view(-1)
    jit.get(route_spec(topk_ids.element_size() * 8, fused))(
        topk_ids.view(-1), row_of_route, offsets, source, target, first_expert, top_k, row_bytes, grid
    )
    if not fused:
        jit.get(gather_spec())(row_of_route, source, target, tokens, top_k, row_bytes)
    return rows, offsets, row_of_route


def combine(rows: torch.Tensor, row_of_route: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """(T, H) bf16: each token's rows, weighted by weights (T, top_k) fp32, summed in the order of its choices."""
    tokens, top_k = weights.shape
    y = torch.empty((tokens, rows.shape[1]), dtype=torch.bfloat16, device=rows.device)
    if tokens:
        jit.get(combine_spec())(
            rows.view(torch.uint8).view(-1), row_of_route, weights.view(-1), y.view(torch.uint8).view(-1),
            tokens, top_k, rows.shape[1] * 2,
        )  # fmt: skip
    return y


@dataclass(frozen=True)
class Experts:
    """The weights of one layer's routed experts on this rank, shuffled, and their fp32 global scales."""

    l1: ShuffledWeights
    l2: ShuffledWeights
    l1_alpha: torch.Tensor
    l2_alpha: torch.Tensor
    first_expert: int = 0
    limit: float = 10.0

    @classmethod
    def from_nvfp4(
        cls,
        gate_up: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        down: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        *,
        first_expert: int = 0,
        limit: float = 10.0,
        interleaved: bool = False,
    ) -> Experts:
        """From (codes, scales, global scales) of L1 (E, 2 I, H) and L2 (E, H, I). L1 rows: all gates, then all ups,
        with one global scale for both; or already interleaved by 8."""
        codes, scales, alpha1 = gate_up
        if not interleaved:
            codes, scales = interleave_rows(codes), interleave_rows(scales)
        l1 = shuffle_weights(codes, scales, kind="swiglu")
        l2 = shuffle_weights(down[0], down[1], kind="plain")
        if l1.width != l2.k or l1.experts != l2.experts or l2.rows != l1.k:
            raise ValueError(f"L1 gives {l1.width} columns of {l1.experts} experts, L2 takes {l2.k} of {l2.experts}")
        return cls(l1, l2, alpha1.float().contiguous(), down[2].float().contiguous(), first_expert, limit)

    def forward(self, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor) -> torch.Tensor:
        """x (T, H) bf16, weights (T, top_k) fp32, global expert ids (T, top_k) -> (T, H) bf16.

        W4A16: activations stay bf16; L1's result is rounded to bf16 after SwiGLU, L2's before the fp32 weighted sum.
        """
        rows, offsets, row_of_route = route_and_gather(x, topk_ids, self.l1.experts, self.first_expert)
        h = grouped_gemm(rows, self.l1, offsets, self.l1_alpha, swiglu_limit=self.limit)
        o = grouped_gemm(h, self.l2, offsets, self.l2_alpha, offsets_settled=True)  # L1 lies between
        return combine(o, row_of_route, topk_weights)


def layer_specs() -> list[jit.KernelSpec]:
    """Every kernel a layer can launch, whatever the batch: 6 GEMMs, 4 routers, gather, combine."""
    specs = [gemm_spec_cached(tile, epilogue) for tile in TILES for epilogue in ("plain", "swiglu")]
    specs += [route_spec(bits, fused) for bits in (32, 64) for fused in (True, False)]
    return [*specs, gather_spec(), combine_spec()]
