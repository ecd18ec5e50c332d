"""NVFP4 on Hopper (sm_90a), in CuTe DSL: quantisers, grouped W4A16 GEMM, linear, MoE layer.

Importing costs nothing: the DSL is imported when a kernel is first compiled or loaded.
"""

from kernels.sm90.gemm import grouped_gemm, linear
from kernels.sm90.moe import Experts, combine, route_and_gather
from kernels.sm90.quantize import (
    emulate_nvfp4,
    quantize_activation_nvfp4,
    quantize_experts_nvfp4,
    quantize_to_nvfp4,
    swiglu_quantize_nvfp4,
)
from kernels.sm90.warmup import warmup_compilation, warmup_fused_swiglu_compilation
from kernels.sm90.weights import ShuffledWeights, interleave_rows, shuffle_weights

__all__ = [
    "Experts",
    "ShuffledWeights",
    "combine",
    "emulate_nvfp4",
    "grouped_gemm",
    "interleave_rows",
    "linear",
    "quantize_activation_nvfp4",
    "quantize_experts_nvfp4",
    "quantize_to_nvfp4",
    "route_and_gather",
    "shuffle_weights",
    "swiglu_quantize_nvfp4",
    "warmup_compilation",
    "warmup_fused_swiglu_compilation",
]
