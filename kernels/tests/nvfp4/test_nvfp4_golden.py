"""The stored golden vectors: regenerated and compared, and met by the implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from kernels.nvfp4 import golden, quantize_activation_nvfp4, quantize_to_nvfp4, quantize_weight_to_nvfp4
from kernels.nvfp4.regimes import regimes

FILES = {name: golden.DIRECTORY / f"{name}.safetensors" for name in ("regimes", "weights")}


@pytest.fixture(scope="module")
def stored():
    return load_file(FILES["regimes"])


def same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    np.testing.assert_array_equal(a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8))


def test_regenerated_files_are_equal(stored):
    """The generator and the Fraction evaluator still give every stored bit."""
    fresh = golden.regime_arrays()
    assert sorted(fresh) == sorted(stored)
    for name, value in fresh.items():
        if name.endswith(".global_scale") and np.isnan(value):
            assert np.isnan(stored[name])
        else:
            same_bits(np.asarray(value, order="C"), stored[name])


@pytest.mark.parametrize("compat", [None, "modelopt"])
@pytest.mark.parametrize("regime", list(regimes()), ids=lambda r: r.name)
def test_implementation_meets_the_stored_bytes(regime, compat, stored):
    prefix = regime.name if compat is None else f"{regime.name}.modelopt"
    x = torch.from_numpy(stored[f"{regime.name}.x"].copy()).to(getattr(torch, regime.dtype))
    g = torch.from_numpy(stored[f"{prefix}.global_scale"].copy())
    codes, scales = quantize_activation_nvfp4(x, g, compat=compat)
    same_bits(codes.numpy(), stored[f"{prefix}.codes"])
    same_bits(scales.view(torch.uint8).numpy(), stored[f"{prefix}.scales"])
    if regime.global_scale is None:
        own = quantize_to_nvfp4(x, compat=compat)[2].numpy()
        assert own == stored[f"{prefix}.global_scale"] or np.isnan(own)


def test_modelopts_bytes_of_real_weights():
    stored = load_file(FILES["weights"])
    names = [n.removesuffix(".x") for n in stored if n.endswith(".x")]
    assert names
    for name in names:
        codes, scales, g = quantize_weight_to_nvfp4(torch.from_numpy(stored[f"{name}.x"]))
        same_bits(codes.numpy(), stored[f"{name}.codes"])
        same_bits(scales.view(torch.uint8).numpy(), stored[f"{name}.scales"])
        same_bits(g.numpy(), stored[f"{name}.global_scale"])


def test_stored_modelopt_bytes_are_what_modelopt_writes(modelopt, real_weights):
    stored = load_file(FILES["weights"])
    fresh = golden.weight_arrays(golden.real_weights_path())
    assert sorted(fresh) == sorted(stored)
    for name, value in fresh.items():
        same_bits(value, stored[name])


def test_files_are_small():
    assert sum(p.stat().st_size for p in FILES.values()) < 1 << 20
