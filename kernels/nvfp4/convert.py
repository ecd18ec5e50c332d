"""Other libraries' conventions for the same format, each conversion by name.

Two numbers go by the name "global scale" and are reciprocals of each other:

    global_scale   amax / 2688   multiplies on dequantisation
                                 here; ModelOpt weight_scale_2 and input_scale
    encode_scale   2688 / amax   multiplies before rounding
                                 compressed-tensors weight_global_scale and input_global_scale; the scale arguments
                                 of FlashInfer, TensorRT-LLM and vLLM operators

Passing one where the other is meant gives scales that saturate or vanish, and no error. So no function here or in
`quantize` takes "either": a function that wants the reciprocal has a parameter called `encode_scale`. The
reciprocal of a reciprocal is not always the number itself (one ulp in fp32), so converted checkpoints keep codes
and block scales unchanged and may move the global scale by one ulp, once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.nvfp4.arguments import (
    BLOCK,
    require_choice,
    require_global_scale,
    require_operand,
)
from kernels.nvfp4.chunks import chunks, piece
from kernels.nvfp4.e2m1 import pack_e2m1, round_to_e2m1_magnitude_
from kernels.nvfp4.e4m3 import to_scale_e4m3
from kernels.nvfp4.layout import SCALE_LAYOUTS, swizzle_scales, unswizzle_scales

FP32_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Nvfp4Tensor:
    """One quantised operand in this package's convention."""

    codes: torch.Tensor
    "uint8 (..., N, K/2), low nibble = even index along K."
    scales: torch.Tensor
    "float8_e4m3fn (..., N, K/16), row-major."
    global_scale: torch.Tensor
    "fp32, 0-d: multiplies on dequantisation."
    input_scale: torch.Tensor | None = None
    "fp32 0-d: the activations' calibrated global scale, if the checkpoint carries one."


def _reciprocal(value: torch.Tensor, name: str) -> torch.Tensor:
    """fp32 1 / value, refused where it would not be a positive finite number. Reads the value: offline only."""
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise TypeError(f"{name}: expected a tensor with one element, got {value!r}")
    v = value.float().reshape(())
    r = v.reciprocal()
    if not (bool(torch.isfinite(v)) and bool(torch.isfinite(r)) and bool(r > 0)):
        raise ValueError(f"{name}: expected a positive number with a finite reciprocal, got {v.item()}")
    return r


def global_scale_from_encode_scale(encode_scale: torch.Tensor) -> torch.Tensor:
    """2688 / amax (one element) -> amax / 2688, fp32 0-d. Refuses 0, inf, NaN and negatives, as a missing or dead
    scale loads as one of these. Offline: it waits for the device."""
    return _reciprocal(encode_scale, "encode_scale")


def encode_scale_from_global_scale(global_scale: torch.Tensor) -> torch.Tensor:
    """amax / 2688 (one element) -> 2688 / amax, fp32 0-d. Offline."""
    return _reciprocal(global_scale, "global_scale")


def to_modelopt(t: Nvfp4Tensor) -> dict[str, torch.Tensor]:
    """ModelOpt names: weight, weight_scale, weight_scale_2 and, if known, input_scale."""
    out = {"weight": t.codes, "weight_scale": t.scales, "weight_scale_2": t.global_scale}
    return out if t.input_scale is None else {**out, "input_scale": t.input_scale}


def from_modelopt(tensors: dict[str, torch.Tensor]) -> Nvfp4Tensor:
    """Inverse of `to_modelopt`. Both scales multiply already, so every number is kept."""
    codes, scales = _codes_and_scales(tensors, "weight")
    return Nvfp4Tensor(
        codes, scales, _one(tensors["weight_scale_2"], "weight_scale_2"), _optional(tensors, "input_scale")
    )


def to_compressed_tensors(t: Nvfp4Tensor) -> dict[str, torch.Tensor]:
    """compressed-tensors names (nvfp4-pack-quantized): weight_packed, weight_scale, weight_global_scale (shape
    (1,))."""
    out = {
        "weight_packed": t.codes,
        "weight_scale": t.scales,
        "weight_global_scale": encode_scale_from_global_scale(t.global_scale).reshape(1),
    }
    if t.input_scale is not None:
        out["input_global_scale"] = encode_scale_from_global_scale(t.input_scale).reshape(1)
    return out


def from_compressed_tensors(tensors: dict[str, torch.Tensor]) -> Nvfp4Tensor:
    """Inverse of `to_compressed_tensors`: its global scales are encode scales and are turned over here."""
    codes, scales = _codes_and_scales(tensors, "weight_packed")
    inputs = tensors.get("input_global_scale")
    return Nvfp4Tensor(
        codes,
        scales,
        global_scale_from_encode_scale(tensors["weight_global_scale"]),
        None if inputs is None else global_scale_from_encode_scale(inputs),
    )


def to_flashinfer(t: Nvfp4Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(packed uint8, scale bytes uint8 in the 128x4 swizzle, encode_scale fp32 0-d)."""
    return t.codes, swizzle_scales(t.scales).view(torch.uint8), encode_scale_from_global_scale(t.global_scale)


def from_flashinfer(packed: torch.Tensor, swizzled: torch.Tensor, encode_scale: torch.Tensor) -> Nvfp4Tensor:
    """Inverse of `to_flashinfer`; `swizzled` uint8 or float8_e4m3fn (..., padded rows, padded K/16)."""
    *_, rows, half = packed.shape
    scales = unswizzle_scales(swizzled.view(torch.uint8), rows, 2 * half // BLOCK).view(torch.float8_e4m3fn)
    return Nvfp4Tensor(packed, scales, global_scale_from_encode_scale(encode_scale))


@torch.no_grad()
def quantize_by_encode_scale(
    x: torch.Tensor, encode_scale: torch.Tensor, *, scale_layout: str = "swizzled"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise as FlashInfer's correctly rounded path and TransformerEngine do: by the reciprocal, and in its order.

        s     = amax_block * fp32(encode_scale * fp32(1/6))         scale = E4M3(s), saturating
        inv   = min(1 / fp32(scale * fp32(1 / encode_scale)), FLT_MAX)
        code  = E2M1(fp32(x * inv))

    Multiplying by a rounded reciprocal is not dividing: about 2 in 10,000 codes of bf16 data lie one step from
    those of `quantize_activation_nvfp4`, all of them next to a midpoint. One difference to FlashInfer is kept on
    purpose: where the scale byte is 0 the codes are 0 here, and +-6 there (0 either way, decoded). A NaN in a block
    gives scale byte 0x7F here; there the maximum ignores it. Source: flashinfer 0.7.4,
    batch_invariant/quantization/nvfp4_spec.py.

    x (..., K) as in `quantize_activation_nvfp4`; encode_scale fp32, one element, on x's device. Capturable.
    Returns codes uint8 (..., K/2) and float8_e4m3fn scales, swizzled by default as FlashInfer's are.
    """
    require_operand(x)
    encode_scale = require_global_scale(encode_scale, x, "encode_scale")
    require_choice(scale_layout, SCALE_LAYOUTS, "scale_layout")
    *rows, k = x.shape
    codes = torch.empty((*rows, k // 2), dtype=torch.uint8, device=x.device)
    scales = torch.empty((*rows, k // BLOCK), dtype=torch.float8_e4m3fn, device=x.device)
    sixth, decode_scale = encode_scale * (1.0 / 6.0), encode_scale.reciprocal()
    flat = (x.unsqueeze(0), codes.unsqueeze(0), scales.unsqueeze(0))  # so that a vector has a row to cut
    for at in chunks(tuple(flat[0].shape)):
        part, part_codes, part_scales = (piece(t, *at) for t in flat)
        q = part.to(torch.float32, copy=True, memory_format=torch.contiguous_format).view(*part_scales.shape, BLOCK)
        scale = to_scale_e4m3(q.abs().amax(-1).mul_(sixth))
        part_scales.copy_(scale)
        value = scale.float()
        inverse = (value * decode_scale).reciprocal_().clamp_(max=FP32_MAX).masked_fill_(value == 0, 0.0)
        q.mul_(inverse.unsqueeze(-1))
        negative = torch.signbit(q).logical_and_((value > 0).unsqueeze(-1))
        code = round_to_e2m1_magnitude_(q.abs_()).to(torch.uint8).add_(negative.view(torch.uint8), alpha=8)
        pack_e2m1(code.view(part.shape), out=part_codes)
    return codes, scales if scale_layout == "linear" else swizzle_scales(scales)


def _one(value: torch.Tensor, name: str) -> torch.Tensor:
    if value.numel() != 1:
        raise ValueError(f"{name}: expected one element, got shape {tuple(value.shape)}")
    return value.float().reshape(())


def _optional(tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor | None:
    return _one(tensors[name], name) if name in tensors else None


def _codes_and_scales(tensors: dict[str, torch.Tensor], name: str) -> tuple[torch.Tensor, torch.Tensor]:
    codes, scales = tensors[name], tensors["weight_scale"]
    if codes.dtype != torch.uint8:
        raise TypeError(f"{name}: expected packed uint8, got {codes.dtype}")
    if scales.dtype == torch.uint8:
        scales = scales.view(torch.float8_e4m3fn)
    if scales.dtype != torch.float8_e4m3fn:
        raise TypeError(f"weight_scale: expected float8_e4m3fn, got {scales.dtype}")
    if tuple(scales.shape) != (*codes.shape[:-1], codes.shape[-1] * 2 // BLOCK):
        want = (*codes.shape[:-1], codes.shape[-1] * 2 // BLOCK)
        raise ValueError(f"weight_scale: expected one scale for 16 codes, {want}, got {tuple(scales.shape)}")
    return codes, scales
