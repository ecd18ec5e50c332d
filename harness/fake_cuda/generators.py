"""Random generators "on the device", which the CPU-only build refuses to make."""

from __future__ import annotations

from typing import Any

import torch

from harness.fake_cuda.device import active_device
from harness.fake_cuda.findings import Severity

_RealGenerator: Any = torch._C.Generator


class _AnyGenerator(type(_RealGenerator)):  # type: ignore[misc]
    """Lets ``isinstance(real_generator, torch.Generator)`` hold while the stand-in has that name."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _RealGenerator)


class FakeGenerator(_RealGenerator, metaclass=_AnyGenerator):
    """Stands in for ``torch.Generator``: a CPU generator that says it lives where it was asked to live."""

    _device: torch.device

    def __new__(cls, device: Any = "cpu") -> FakeGenerator:
        generator = super().__new__(cls, "cpu")
        generator._device = _with_index(torch.device(device))
        if generator._device.type == "cuda":
            asks_generator("torch.Generator(device='cuda')")
        return generator

    def __init__(self, device: Any = "cpu") -> None:
        """Everything is made in ``__new__``."""

    @property
    def device(self) -> torch.device:
        return self._device

    def manual_seed(self, seed: int) -> FakeGenerator:
        """During a capture torch accepts only the seed that the generator has (CUDAGeneratorImpl)."""
        if self._device.type == "cuda":
            reseed(seed, self.initial_seed(), "Generator.manual_seed")
        super().manual_seed(seed)
        return self

    def get_state(self) -> torch.Tensor:
        if self._device.type == "cuda":
            asks_generator("Generator.get_state")
        state: torch.Tensor = super().get_state()
        return state


def reseed(seed: int, previous: int | None, call: str) -> None:
    """Judge a reseed: nothing outside a capture, a break inside it, a hazard if the seed is the same."""
    device = active_device()
    if not device.capturing:
        return
    if previous is not None and seed == previous:
        what = f"{call}({seed}) restarts the random sequence in the call, and not in a replay"
        device.hit("rng-seed", Severity.HAZARD, what)
    else:
        device.hit("rng-seed", Severity.BREAK, f"{call}({seed}): a new seed is refused during a capture")


def asks_generator(call: str) -> None:
    """torch refuses, during a capture, to make a CUDA generator and to read its seed (CUDAGeneratorImpl)."""
    device = active_device()
    if device.capturing:
        device.hit("rng-seed", Severity.BREAK, f"{call} is refused during a capture")


def _with_index(device: torch.device) -> torch.device:
    return torch.device("cuda", 0) if device.type == "cuda" else device
