"""Index metadata of DeepSeek-V4's compressed sparse attention: which cache slots a query token attends to.

`build_c128a_topk_metadata` serves the layers that see every 128:1 compressed token, `compute_c4a_global_topk` those
whose indexer picks among the 4:1 compressed ones. On a GPU call `warmup_sparse_kernels` before the first capture.
"""

from kernels.sparse.c4a import compute_c4a_global_topk
from kernels.sparse.c128a import build_c128a_topk_metadata
from kernels.sparse.nvrtc import compile_cubin, warmup_sparse_kernels
from kernels.sparse.options import BASELINE, BOUNDS, CONTEXT_PARALLEL, MASKED, MetadataOptions

__all__ = [
    "BASELINE",
    "BOUNDS",
    "CONTEXT_PARALLEL",
    "MASKED",
    "MetadataOptions",
    "build_c128a_topk_metadata",
    "compile_cubin",
    "compute_c4a_global_topk",
    "warmup_sparse_kernels",
]
