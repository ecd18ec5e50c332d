"""Operators whose kernels take temporary memory below the dispatcher, where a tracker cannot see it.

A predicted peak in which one of them ran is a lower bound, and is marked as one. Measured on an H200 (torch 2.11):
``sort`` of 2048 x 7168 bf16 peaks at 440 MB where its operands and results are 176 MB; ``topk``, gather and
``linear`` take nothing more at the peak. Reductions to one value are modelled in ``split_reduction.py``.

The cuBLAS workspace is taken from the caching allocator on the first product and kept: after a warm-up it is part
of what was there before, so it is in the reserved figure and not in a peak over the start.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from harness.memory.split_reduction import SPLIT_FROM_ACROSS_ROWS, SPLIT_FROM_ALONG_ROWS

# fmt: off
_ALWAYS = frozenset({
    "_ctc_loss", "_embedding_bag", "_fft_c2c", "_fft_c2r", "_fft_r2c", "_flash_attention_forward", "_grouped_mm",
    "_linalg_eigh", "_linalg_solve_ex", "_linalg_svd", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_grouped_mm", "_scaled_mm", "_unique", "_unique2",
    "argsort", "bincount", "convolution", "cudnn_convolution", "cummax", "cummin", "cumprod", "cumsum",
    "embedding_dense_backward", "histc", "index_reduce", "isin", "kthvalue", "linalg_cholesky_ex",
    "linalg_inv_ex", "linalg_lu_factor_ex", "linalg_qr", "logcumsumexp", "masked_scatter", "masked_scatter_",
    "masked_select", "median", "mode", "msort", "multinomial", "nanmedian", "nonzero", "nonzero_static",
    "randperm", "repeat_interleave", "segment_reduce", "sort", "topk", "unique_consecutive", "unique_dim",
    "unique_dim_consecutive",
})
_REDUCTIONS = frozenset({
    "all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "count_nonzero", "linalg_vector_norm",
    "logsumexp", "max", "mean", "min", "nansum", "norm", "prod", "std", "std_mean", "sum", "var", "var_mean",
})
_COPIES_IF_STRIDED = frozenset({
    "_fused_rms_norm", "_log_softmax", "_softmax", "bucketize", "native_group_norm", "native_layer_norm",
    "searchsorted",
})
_PRODUCTS = frozenset({
    "_grouped_mm", "_scaled_mm", "addmm", "addmv", "baddbmm", "bmm", "dot", "linear", "mm", "mv",
})
# fmt: on


def hidden_memory(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> str | None:
    """Why a peak with this call in it is a lower bound, or None."""
    base = str(func._schema.name).partition("::")[2]
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if func.namespace != "aten":  # a custom operator that was not looked into, or left where it launches
        return "compiled code" if tensors and func.namespace not in ("prim", "prims") else None
    if base in _ALWAYS:
        return "temporaries inside the kernel"
    if base in _REDUCTIONS and tensors:
        results = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        least = SPLIT_FROM_ALONG_ROWS if _along_rows(tensors[0], args) else SPLIT_FROM_ACROSS_ROWS
        if results and tensors[0].numel() >= least * max(1, max(results)):
            return "a reduction split over blocks"
    if base in _COPIES_IF_STRIDED and tensors and not tensors[0].is_contiguous():
        return "a contiguous copy inside the kernel"
    if base in ("index", "index_put", "index_put_", "_index_put_impl_") and _sorts(base, args):
        return "a mask or an accumulation, which sorts"
    return None


def is_product(func: Any) -> bool:
    """Whether cuBLAS runs, with its workspace."""
    return func.namespace == "aten" and str(func._schema.name).partition("::")[2] in _PRODUCTS


def cublas_workspace(capability_major: int) -> int:
    """Bytes cuBLAS keeps per handle and stream by torch's default (CUBLAS_WORKSPACE_CONFIG unset)."""
    return 32 << 20 if capability_major >= 9 else 4096 * 1024 * 2 + 16 * 1024 * 8


def _along_rows(tensor: torch.Tensor, args: tuple[Any, ...]) -> bool:
    """Whether a reduction goes along the contiguous dimension (or over everything)."""
    dims = args[1] if len(args) > 1 else None
    if isinstance(dims, int):
        dims = [dims]
    if not isinstance(dims, (list, tuple)) or not dims:
        return tensor.is_contiguous()
    return tensor.is_contiguous() and any(dim in (-1, tensor.dim() - 1) for dim in dims)


def _sorts(base: str, args: tuple[Any, ...]) -> bool:
    masks = any(
        isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
        for index in args[1]
        if index is not None
    )
    return masks or ("put" in base and len(args) > 3 and bool(args[3]))
