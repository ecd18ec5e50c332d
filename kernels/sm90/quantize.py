"""NVFP4 quantisers for Hopper: one pass over the data, bytes identical to `kernels.nvfp4.quantize`.

The contract (order of operations, rounding, zero blocks, NaN and inf) is written down there. `global_scale`
multiplies on dequantisation (amax / 2688), is an fp32 tensor on the device, and is read by the kernel: nothing here
waits for the GPU, and everything can be captured once warmed up.

SwiGLU variants quantise y = silu(min(g, L)) * clamp(u, -L, L), computed in fp32 and not rounded in between, with
silu(g) = g / (1 + ex2.approx(-g * log2 e)) and a correctly rounded division. Another exp (torch's, say) differs in
the last bits of y: where y lies on a rounding boundary the code may then differ by one step.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from kernels import jit
from kernels.sm90.scratch import scratch

_PACKAGE = str(Path(__file__).parent)
_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def _fakes() -> tuple[Any, dict[str, Any]]:
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_compact_tensor

    def flat(dtype: Any, align: int) -> Any:
        return make_fake_compact_tensor(dtype, (cute.sym_int(),), assumed_align=align)

    return flat, {"bf16": cutlass.BFloat16, "fp16": cutlass.Float16, "fp32": cutlass.Float32}


@functools.cache
def quantize_spec(
    dtype: str,
    output: str = "codes",
    scale_layout: str = "linear",
    scale_source: str = "given",
    swiglu: str = "none",
) -> jit.KernelSpec:
    """Spec of one quantiser; options as in `quantize_kernel.QuantizeConfig`. Shapes are run-time values."""
    options = {
        "dtype": dtype, "output": output, "scale_layout": scale_layout, "scale_source": scale_source, "swiglu": swiglu
    }  # fmt: skip

    def build() -> tuple[Any, tuple[Any, ...]]:
        import cutlass
        from cutlass.cute.runtime import make_fake_stream

        from kernels.sm90.quantize_kernel import Quantize, QuantizeConfig

        flat, dtypes = _fakes()
        return Quantize(QuantizeConfig(**options)), (
            flat(dtypes[dtype], 16), flat(cutlass.Float32, 4), flat(cutlass.Int32, 4), flat(cutlass.Uint8, 16),
            flat(cutlass.Uint8, 1), cutlass.Int32(1), cutlass.Int32(1), cutlass.Float32(1),
            cutlass.Int32(1), make_fake_stream(use_tvm_ffi_env_stream=True),
        )  # fmt: skip

    return jit.KernelSpec("nvfp4_quantize", tuple(sorted(options.items())), _PACKAGE, build)


@functools.cache
def global_scale_spec(dtype: str) -> jit.KernelSpec:
    """Spec of the kernel that finds a tensor's global scale."""

    def build() -> tuple[Any, tuple[Any, ...]]:
        import cutlass
        from cutlass.cute.runtime import make_fake_stream

        from kernels.sm90.quantize_kernel import GlobalScale

        flat, dtypes = _fakes()
        return GlobalScale(dtype), (
            flat(dtypes[dtype], 16), flat(cutlass.Float32, 4), flat(cutlass.Int32, 4), flat(cutlass.Float32, 4),
            cutlass.Int64(1),
            make_fake_stream(use_tvm_ffi_env_stream=True),
        )  # fmt: skip

    return jit.KernelSpec("nvfp4_global_scale", (("dtype", dtype),), _PACKAGE, build)


def _checked(x: torch.Tensor, columns: int) -> torch.Tensor:
    """x as a contiguous 16-byte aligned tensor of whole blocks; strided input is copied."""
    if x.dtype not in _DTYPES or not x.is_cuda:
        raise TypeError(f"x: expected a bfloat16, float16 or float32 CUDA tensor, got {x.dtype} on {x.device}")
    if x.dim() == 0 or x.shape[-1] % columns:
        raise ValueError(f"x: expected the last dimension to be a multiple of {columns}, got {tuple(x.shape)}")
    x = x.contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


def _scale_shape(rows: int, columns: int, layout: str) -> tuple[int, int]:
    if layout == "linear":
        return rows, columns
    if layout == "swizzled":
        return -(-rows // 128) * 128, -(-columns // 4) * 4
    raise ValueError(f"scale_layout: expected 'linear' or 'swizzled', got {layout!r}")


@functools.cache
def _resident_blocks(device: torch.device) -> int:
    """Blocks of 128 threads that fit the device at once: 7 a multiprocessor at 72 registers a thread."""
    return 7 * int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def _no_offsets(device: torch.device) -> torch.Tensor:
    """The argument that only the per-expert variant reads."""
    return torch.zeros(1, dtype=torch.int32, device=device)


def _run(
    x: torch.Tensor,
    scale: torch.Tensor,
    scale_source: str,
    *,
    output: str = "codes",
    scale_layout: str = "linear",
    offsets: torch.Tensor | None = None,
    swiglu: str = "none",
    limit: float = float("inf"),
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    width = 2 if swiglu != "none" else 1
    x = _checked(x, 16 * width)
    k = x.shape[-1] // width
    columns = k // 16
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    if out is None:
        shape = _scale_shape(rows, columns, scale_layout)
        scales = torch.empty(shape, dtype=torch.float8_e4m3fn, device=x.device)
        if output == "codes":
            target = torch.empty((*x.shape[:-1], k // 2), dtype=torch.uint8, device=x.device)
        else:
            target = torch.empty((*x.shape[:-1], k), dtype=torch.bfloat16, device=x.device)
        if scale_layout == "linear":
            scales = scales.view(*x.shape[:-1], columns)
    else:
        target, scales = out
    if rows == 0 or columns == 0:
        return target, scales
    kernel = jit.get(quantize_spec(_DTYPES[x.dtype], output, scale_layout, scale_source, swiglu))
    kernel(
        x.view(-1), scale.view(-1), _no_offsets(x.device) if offsets is None else offsets,
        target.view(-1).view(torch.uint8), scales.view(-1).view(torch.uint8), rows, columns, float(limit),
        _resident_blocks(x.device),
    )  # fmt: skip
    return target, scales


def quantize_activation_nvfp4(
    x: torch.Tensor,
    global_scale: torch.Tensor,
    *,
    scale_layout: str = "linear",
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (..., K) bf16, fp16 or fp32 -> codes uint8 (..., K/2) and scales float8_e4m3fn, with a given global scale.

    Scales: (..., K/16), or (padded rows, padded columns) in the 128x4 swizzle. out: contiguous buffers of those
    shapes.
    """
    return _run(x, global_scale, "given", scale_layout=scale_layout, out=out)


def quantize_to_nvfp4(
    x: torch.Tensor, *, scale_layout: str = "linear"
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The two-kernel form: one pass for the largest magnitude, one to quantise. Returns codes, scales,
    global_scale.
    """
    x = _checked(x, 16)
    if x.numel() == 0:
        global_scale = torch.full((), 2.0**-126, dtype=torch.float32, device=x.device)
    else:
        global_scale = torch.empty((), dtype=torch.float32, device=x.device)
        own = scratch(x.device)
        kernel = jit.get(global_scale_spec(_DTYPES[x.dtype]))
        kernel(x.view(-1), own.maxima, own.arrivals, global_scale.view(1), x.numel())
    codes, scales = _run(x, global_scale, "given", scale_layout=scale_layout)
    return codes, scales, global_scale


def quantize_experts_nvfp4(
    x: torch.Tensor, global_scales: torch.Tensor, offsets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, K) in expert order, fp32 global scales (E,), int32 offsets (E + 1,): each row with its expert's
    scale.
    """
    if x.dim() != 2 or offsets.dtype != torch.int32 or offsets.shape[0] != global_scales.shape[0] + 1:
        raise ValueError(
            f"expected x (rows, K), int32 offsets (E + 1,) and scales (E,), got {tuple(x.shape)}, {offsets.dtype} "
            f"{tuple(offsets.shape)} and {tuple(global_scales.shape)}"
        )
    return _run(x, global_scales, "expert", offsets=offsets)


def emulate_nvfp4(
    x: torch.Tensor, global_scale: torch.Tensor, *, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a W4A4 kernel multiplies, in bf16 and exact: code * block scale (..., K), without the global scale.

    Multiply the GEMM's alpha by `global_scale`. Returns (values bf16, scales).
    """
    buffers = None
    if out is not None:
        scales = torch.empty((*x.shape[:-1], x.shape[-1] // 16), dtype=torch.float8_e4m3fn, device=x.device)
        buffers = (out, scales)
    return _run(x, global_scale, "given", output="values", out=buffers)


def swiglu_quantize_nvfp4(
    x: torch.Tensor, global_scale: torch.Tensor, limit: float = 10.0, *, order: str = "halves"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Clamped SwiGLU of x (M, 2 I) and quantisation, fused. order: "halves" ([gate | up]) or "interleaved" by 8."""
    if order not in ("halves", "interleaved"):
        raise ValueError(f"order: expected 'halves' or 'interleaved', got {order!r}")
    return _run(x, global_scale, "given", swiglu=order, limit=limit)
