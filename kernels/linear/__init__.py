"""Linear layers with NVFP4 weights and activations."""

from kernels.linear import ops
from kernels.linear.gemm import linear_peak_bytes, run_nvfp4_linear
from kernels.linear.layer import CuTeDSLNvfp4Linear

__all__ = ["CuTeDSLNvfp4Linear", "linear_peak_bytes", "ops", "run_nvfp4_linear"]
