"""A linear layer with NVFP4 weights and activations, ready to run inside a captured graph."""

from __future__ import annotations

import torch

from kernels.linear.gemm import IMPLEMENTATIONS, run_nvfp4_linear
from kernels.nvfp4 import quantize_weight_to_nvfp4, swizzle_scales
from kernels.nvfp4.layout import padded_columns, padded_rows


class CuTeDSLNvfp4Linear(torch.nn.Module):
    """y = x @ w.T for weights (N, K) in NVFP4.

        linear = CuTeDSLNvfp4Linear(7168, 6144)
        linear.finalize_weights(codes, scales, weight_global_scale, input_global_scale)
        linear.warmup()
        y = linear(x)                                        # may be captured

    The buffers are this layer's own and never reallocated: a second `finalize_weights` copies into them, so graphs
    captured before see the new weights. A forward pass keeps no state between calls and takes its workspace from the
    allocator (inside a capture: from the graph's pool), so two streams may run it at once.

    Implementations: "torch". The one named runs, or construction fails.
    """

    weight_codes: torch.Tensor
    weight_scales: torch.Tensor
    alpha: torch.Tensor
    input_global_scale: torch.Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        device: torch.device | str = "cuda",
        out_dtype: torch.dtype = torch.bfloat16,
        implementation: str = "torch",
    ) -> None:
        """in_features K, a multiple of 16; out_features N, any."""
        super().__init__()
        if implementation not in IMPLEMENTATIONS:
            raise ValueError(
                f"implementation: expected one of {IMPLEMENTATIONS}, got {implementation!r}; there is no silent "
                "fallback"
            )
        if in_features < 1 or in_features % 16 or out_features < 1:
            raise ValueError(
                f"in_features, out_features: expected a positive multiple of 16 and a positive number, got "
                f"{in_features} and {out_features}; pad K with zero columns"
            )
        self.in_features, self.out_features = in_features, out_features
        self.out_dtype, self.implementation = out_dtype, implementation
        self._finalized = self._warm = False

        def buffer(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
            self.register_buffer(name, torch.zeros(shape, dtype=dtype, device=device))

        scales = (padded_rows(out_features), padded_columns(in_features // 16))
        buffer("weight_codes", (out_features, in_features // 2), torch.uint8)
        buffer("weight_scales", scales, torch.uint8)
        buffer("alpha", (), torch.float32)
        buffer("input_global_scale", (), torch.float32)

    @torch.no_grad()
    def finalize_weights(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        weight_global_scale: torch.Tensor,
        input_global_scale: torch.Tensor,
    ) -> None:
        """Take the weights: codes uint8 (N, K/2), linear scales E4M3 or bytes (N, K/16), both copied; global scales
        fp32, one element each, that multiply on dequantisation. `input_global_scale` is the calibrated amax / 2688 of
        the activations, never 1/2688 by default and never 2688 / amax.

        Raises:
            TypeError, ValueError: shapes or dtypes that are not those of this layer.
        """
        wanted = (self.out_features, self.in_features // 2), (self.out_features, self.in_features // 16)
        if codes.dtype != torch.uint8 or scales.dtype not in (torch.float8_e4m3fn, torch.uint8):
            raise TypeError(f"codes, scales: expected uint8 and E4M3 (or bytes), got {codes.dtype}, {scales.dtype}")
        if (tuple(codes.shape), tuple(scales.shape)) != wanted:
            raise ValueError(
                f"codes, scales: expected {wanted[0]} and linear {wanted[1]}, got {tuple(codes.shape)} and "
                f"{tuple(scales.shape)}"
            )
        for name, scale in (("weight", weight_global_scale), ("input", input_global_scale)):
            if scale.dtype != torch.float32 or scale.numel() != 1:
                raise ValueError(
                    f"{name}_global_scale: expected one fp32 element, got {tuple(scale.shape)} {scale.dtype}; fused "
                    "weights with several scales need one layer each, or requantisation to the larger"
                )
        self.weight_codes.copy_(codes)
        self.weight_scales.copy_(swizzle_scales(scales.view(torch.uint8)))
        self.input_global_scale.copy_(input_global_scale.reshape(()))
        self.alpha.copy_(weight_global_scale.reshape(()) * self.input_global_scale)
        self._finalized = True

    def finalize_from_weight(self, weight: torch.Tensor, input_global_scale: torch.Tensor) -> None:
        """Quantise a float weight (N, K) and take it."""
        self.finalize_weights(*quantize_weight_to_nvfp4(weight), input_global_scale)

    @torch.no_grad()
    def warmup(self) -> None:
        """Compile and load everything, eagerly. Changes no scale and no weight. Before the first capture."""
        if not self._finalized:
            raise RuntimeError("warmup: no weights; call finalize_weights first")
        device = self.weight_codes.device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("warmup: a graph capture is under way; call it before the capture begins")
        self._warm = True
        self(torch.zeros((1, self.in_features), dtype=self.out_dtype, device=device))
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., K) bf16, fp16 or fp32 -> (..., N) in `out_dtype`, any strides."""
        if not self._warm:
            raise RuntimeError("forward: not ready; call finalize_weights and then warmup, outside any graph capture")
        if x.shape[-1] != self.in_features:
            raise ValueError(f"x: expected (..., {self.in_features}), got {tuple(x.shape)}")
        flat = x.reshape(-1, self.in_features)
        y = run_nvfp4_linear(
            flat, self.weight_codes, self.weight_scales, self.alpha, self.input_global_scale,
            out_dtype=self.out_dtype, implementation=self.implementation,
        )  # fmt: skip
        return y.view(*x.shape[:-1], self.out_features)
