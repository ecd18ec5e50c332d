"""The implementations under test: torch on the CPU, the CUDA source built for the host, and a GPU if there is one."""

from __future__ import annotations

import host_cuda
import pytest
import torch


@pytest.fixture(
    params=["torch", "host-cuda", pytest.param("cuda", marks=pytest.mark.gpu)],
)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Keyword arguments for `run`: the device of the tensors and the implementation to ask for."""
    if request.param == "torch":
        return {"device": "cpu", "implementation": "torch"}
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
        return {"device": "cuda", "implementation": "cuda"}
    host_cuda.install(monkeypatch)
    return {"device": "cpu", "implementation": "cuda"}
