"""Compile (or load) eagerly, before the first request and before any CUDA-graph capture.

A module is loaded onto the device at its first launch, which a capture must not see either: where a GPU is at hand
each kernel is therefore launched once, on valid data of the smallest size.
"""

from __future__ import annotations

import torch

from kernels import jit
from kernels.sm90 import gemm, moe, quantize
from kernels.sm90.weights import shuffle_weights


def quantizer_specs() -> list[jit.KernelSpec]:
    """The quantisers of bf16 activations, and the two-kernel form."""
    return [
        quantize.quantize_spec("bf16"),
        quantize.quantize_spec("bf16", scale_layout="swizzled"),
        quantize.quantize_spec("bf16", output="values"),
        quantize.global_scale_spec("bf16"),
    ]


def warmup_compilation(device: torch.device | None = None) -> int:
    """Kernels of the linear and of the unfused path. Returns how many this call compiled (0: all were on disk)."""
    before = jit.compile_count()
    specs = quantizer_specs() + [gemm.gemm_spec_cached(tile, "plain") for tile in gemm.TILES]
    for spec in specs:
        jit.get(spec)
    if torch.cuda.is_available():
        _launch_quantizers(device or torch.device("cuda"))
        _launch_gemms(device or torch.device("cuda"), "plain")
    return jit.compile_count() - before


def warmup_fused_swiglu_compilation(device: torch.device | None = None) -> int:
    """Every kernel of the MoE layer with fused SwiGLU. Returns how many this call compiled."""
    before = jit.compile_count()
    for spec in moe.layer_specs():
        jit.get(spec)
    if torch.cuda.is_available():
        where = device or torch.device("cuda")
        _launch_gemms(where, "swiglu")
        _launch_gemms(where, "plain")
        for tokens in (1, 4096):  # the fused router, and the separate one with its gather
            for dtype in (torch.int32, torch.int64):
                x = torch.zeros(tokens, 8, dtype=torch.bfloat16, device=where)
                ids = torch.zeros(tokens, 2, dtype=dtype, device=where)
                rows, _, row_of_route = moe.route_and_gather(x, ids, 1)
                moe.combine(rows, row_of_route, torch.ones(tokens, 2, device=where))
    return jit.compile_count() - before


def _launch_quantizers(device: torch.device) -> None:
    x = torch.ones(1, 16, dtype=torch.bfloat16, device=device)
    codes, _, scale = quantize.quantize_to_nvfp4(x)
    quantize.quantize_activation_nvfp4(x, scale)
    quantize.quantize_activation_nvfp4(x, scale, scale_layout="swizzled")
    quantize.emulate_nvfp4(x, scale)
    del codes


def _launch_gemms(device: torch.device, kind: str) -> None:
    codes = torch.full((1, 64, 64), 0x22, dtype=torch.uint8, device=device)
    scales = torch.ones(1, 64, 8, device=device).to(torch.float8_e4m3fn)
    weights = shuffle_weights(codes, scales, kind=kind)
    alpha = torch.ones(1, device=device)
    x = torch.ones(1, 128, dtype=torch.bfloat16, device=device)
    for tile in gemm.TILES:
        gemm.linear(x, weights, alpha, tile=tile)
