"""The quantisers as torch custom operators: what torch.compile sees, one opaque node each, with shapes known.

Inside a compiled graph the public functions call these, so that the arithmetic is the eager one to the bit (a
compiler may otherwise contract, reassociate or replace a division). In eager mode they call the same code
directly, so that dispatch modes (memory trackers, capture checks) see every allocation. Scales cross this boundary
as uint8 bytes.
"""

import torch

from kernels.nvfp4.arguments import BLOCK
from kernels.nvfp4.dequantize import _dequantize_into
from kernels.nvfp4.layout import _swizzle, _unswizzle, padded_columns, padded_rows
from kernels.nvfp4.quantize import _empty_outputs, _quantize_into, compute_global_scale


@torch.library.custom_op(
    "kh_nvfp4::quantize", mutates_args=(), schema="(Tensor x, str? compat) -> (Tensor, Tensor, Tensor)"
)
def quantize(x, compat):  # type: ignore[no-untyped-def]
    """x (..., K) -> codes uint8 (..., K/2), scale bytes uint8 (..., K/16), global scale fp32 0-d."""
    global_scale = compute_global_scale(x, compat=compat)
    codes, scales = _empty_outputs(x)
    _quantize_into(x, global_scale, codes, scales, compat)
    return codes, scales.view(torch.uint8), global_scale


@torch.library.custom_op(
    "kh_nvfp4::quantize_with",
    mutates_args=(),
    schema="(Tensor x, Tensor global_scale, str? compat) -> (Tensor, Tensor)",
)
def quantize_with(x, global_scale, compat):  # type: ignore[no-untyped-def]
    """As `quantize`, with a given global scale."""
    codes, scales = _empty_outputs(x)
    _quantize_into(x, global_scale, codes, scales, compat)
    return codes, scales.view(torch.uint8)


@torch.library.custom_op(
    "kh_nvfp4::quantize_out",
    mutates_args=("codes", "scales"),
    schema="(Tensor x, Tensor global_scale, str? compat, Tensor(a!) codes, Tensor(b!) scales) -> ()",
)
def quantize_out(x, global_scale, compat, codes, scales):  # type: ignore[no-untyped-def]
    """As `quantize_with`, into given buffers."""
    _quantize_into(x, global_scale, codes, scales.view(torch.float8_e4m3fn), compat)


@torch.library.custom_op(
    "kh_nvfp4::dequantize_out",
    mutates_args=("out",),
    schema="(Tensor codes, Tensor scales, Tensor? global_scale, Tensor(a!) out) -> ()",
)
def dequantize_out(codes, scales, global_scale, out):  # type: ignore[no-untyped-def]
    """codes uint8 (..., K/2), scale bytes uint8 (..., K/16) -> out (..., K)."""
    _dequantize_into(codes, scales.view(torch.float8_e4m3fn), global_scale, out)


@torch.library.custom_op("kh_nvfp4::swizzle", mutates_args=(), schema="(Tensor scales) -> Tensor")
def swizzle(scales):  # type: ignore[no-untyped-def]
    """Scale bytes uint8 (..., rows, C) -> (..., padded rows, padded C)."""
    swizzled = _swizzle(scales)
    # The result of an operator may not be its input, which an empty one would be.
    return swizzled.clone() if swizzled.data_ptr() == scales.data_ptr() else swizzled


@torch.library.custom_op(
    "kh_nvfp4::unswizzle", mutates_args=(), schema="(Tensor swizzled, SymInt rows, SymInt columns) -> Tensor"
)
def unswizzle(swizzled, rows, columns):  # type: ignore[no-untyped-def]
    """Inverse of `swizzle`."""
    linear = _unswizzle(swizzled, rows, columns)
    return linear.clone() if linear.data_ptr() == swizzled.data_ptr() else linear


@swizzle.register_fake
def _(scales):  # type: ignore[no-untyped-def]
    *stack, rows, columns = scales.shape
    return scales.new_empty((*stack, padded_rows(rows), padded_columns(columns)))


@unswizzle.register_fake
def _(swizzled, rows, columns):  # type: ignore[no-untyped-def]
    return swizzled.new_empty((*swizzled.shape[:-2], rows, columns))


def _fake_pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    *rows, k = x.shape
    return (
        torch.empty((*rows, k // 2), dtype=torch.uint8, device=x.device),
        torch.empty((*rows, k // BLOCK), dtype=torch.uint8, device=x.device),
    )


@quantize.register_fake
def _(x, compat):  # type: ignore[no-untyped-def]
    return *_fake_pair(x), torch.empty((), dtype=torch.float32, device=x.device)


@quantize_with.register_fake
def _(x, global_scale, compat):  # type: ignore[no-untyped-def]
    return _fake_pair(x)


@quantize_out.register_fake
def _(x, global_scale, compat, codes, scales):  # type: ignore[no-untyped-def]
    return None


@dequantize_out.register_fake
def _(codes, scales, global_scale, out):  # type: ignore[no-untyped-def]
    return None
