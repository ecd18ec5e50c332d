"""Compile cache for CuTe DSL kernels: in memory, on disk, thread-safe, and never inside a CUDA-graph capture."""

from kernels.jit.cache import CompileDuringCaptureError, KernelSpec, clear_memory, compile_count, disk_load_count, get
from kernels.jit.compiler import compile_spec, dsl_version

__all__ = [
    "CompileDuringCaptureError",
    "KernelSpec",
    "clear_memory",
    "compile_count",
    "compile_spec",
    "disk_load_count",
    "dsl_version",
    "get",
]
