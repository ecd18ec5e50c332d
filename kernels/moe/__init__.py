"""DeepSeek-V4's mixture of experts in NVFP4: layouts, routing, grouped products, clamped SwiGLU."""

from kernels.moe import layer_op, ops, reference
from kernels.moe.grouped_gemm import (
    run_fused_swiglu_grouped_gemm,
    run_fused_swiglu_quantize_grouped_gemm,
    run_nvfp4_grouped_gemm,
)
from kernels.moe.grouped_scales import gather_swizzled_peak_bytes, gather_swizzled_scales
from kernels.moe.layer import moe_peak_bytes, run_nvfp4_moe, run_nvfp4_moe_fused
from kernels.moe.layouts import (
    CONVENTIONS,
    L1Layout,
    convert_l1_weights,
    deinterleave_l1_weights,
    interleave_l1_weights,
    pad_l1_weights,
    pad_l2_weights,
)
from kernels.moe.operands import tile_workspace_bytes
from kernels.moe.permute import ExpertOrder, combine_routes, sort_by_expert
from kernels.moe.routing import route_hashed, route_sqrtsoftplus
from kernels.moe.runner import CuTeDSLMoERunner
from kernels.moe.swiglu import (
    DEEPSEEK_V4_LIMIT,
    clamped_swiglu,
    split_gate_up,
    swiglu_quantize_nvfp4,
    swiglu_quantize_peak_bytes,
)
from kernels.moe.warmup import warmup_compilation, warmup_fused_swiglu_compilation
from kernels.moe.weights import MoEWeights, collapse_input_scales, stack_moe_weights
from kernels.moe.workspace import MoEWorkspace, workspace_bytes

__all__ = [
    "CONVENTIONS",
    "DEEPSEEK_V4_LIMIT",
    "CuTeDSLMoERunner",
    "ExpertOrder",
    "L1Layout",
    "MoEWeights",
    "MoEWorkspace",
    "clamped_swiglu",
    "collapse_input_scales",
    "combine_routes",
    "convert_l1_weights",
    "deinterleave_l1_weights",
    "gather_swizzled_peak_bytes",
    "gather_swizzled_scales",
    "interleave_l1_weights",
    "layer_op",
    "moe_peak_bytes",
    "ops",
    "pad_l1_weights",
    "pad_l2_weights",
    "reference",
    "route_hashed",
    "route_sqrtsoftplus",
    "run_fused_swiglu_grouped_gemm",
    "run_fused_swiglu_quantize_grouped_gemm",
    "run_nvfp4_grouped_gemm",
    "run_nvfp4_moe",
    "run_nvfp4_moe_fused",
    "sort_by_expert",
    "split_gate_up",
    "stack_moe_weights",
    "swiglu_quantize_nvfp4",
    "swiglu_quantize_peak_bytes",
    "tile_workspace_bytes",
    "warmup_compilation",
    "warmup_fused_swiglu_compilation",
    "workspace_bytes",
]
