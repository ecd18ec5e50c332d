"""NVFP4: 4-bit E2M1 codes, an E4M3 scale for each 16 elements along K, one fp32 global scale that multiplies.

`quantize_to_nvfp4`, `quantize_activation_nvfp4`, `quantize_weight_to_nvfp4` and `dequantize_nvfp4` are the interface;
`layout` holds the swizzled scale layout, `convert` the conventions of other libraries, `checkpoint` the readers of
safetensors files, `reference` the exact arithmetic that all of it is tested against. docs/nvfp4.md is the
specification.
"""

from kernels.nvfp4 import ops
from kernels.nvfp4.dequantize import dequantize_nvfp4
from kernels.nvfp4.e2m1 import decode_e2m1, encode_e2m1, pack_e2m1, unpack_e2m1
from kernels.nvfp4.layout import (
    swizzle_scales,
    swizzle_scales_grouped,
    unswizzle_scales,
    unswizzle_scales_grouped,
)
from kernels.nvfp4.quantize import (
    compute_global_scale,
    quantize_activation_nvfp4,
    quantize_peak_bytes,
    quantize_to_nvfp4,
)
from kernels.nvfp4.weights import quantize_weight_to_nvfp4

__all__ = [
    "compute_global_scale",
    "decode_e2m1",
    "dequantize_nvfp4",
    "encode_e2m1",
    "ops",
    "pack_e2m1",
    "quantize_activation_nvfp4",
    "quantize_peak_bytes",
    "quantize_to_nvfp4",
    "quantize_weight_to_nvfp4",
    "swizzle_scales",
    "swizzle_scales_grouped",
    "unpack_e2m1",
    "unswizzle_scales",
    "unswizzle_scales_grouped",
]
