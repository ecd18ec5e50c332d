"""``Draw``: what a suite's ``inputs`` function makes tensors with.

The same declaration serves a CPU, a GPU and the fake world: values come from a seeded CPU generator and are moved
to the device, and in a fake world only shapes are made, so that an 8192 x 7168 case costs nothing there.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import torch

from harness.case import Case
from harness.dtypes import torch_dtype
from harness.inputs.checkpoint import load_tensor
from harness.inputs.regimes import find_regime

REPEAT_ABOVE = 1 << 28
"""Elements beyond which values repeat a seeded pattern of this many, so that set-up stays in seconds."""


class Draw:
    """Makes the tensors of one case on ``device``.

    ``salt`` distinguishes several draws of the same case: salt 0 is the case's data, salt 1 "the same buffers,
    new data". Every named tensor has its own stream of random numbers, so adding one does not change the others.
    """

    def __init__(self, case: Case, device: str, *, salt: int = 0, fake: bool = False) -> None:
        self.case, self.device, self.salt, self.fake = case, torch.device(device), salt, fake
        self._count = 0
        self._source = case.source

    def generator(self, name: str) -> torch.Generator:
        """A CPU generator whose seed depends on the case, the salt and ``name`` only."""
        key = f"{self.case.id}|{self.salt}|{name}".encode()
        return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key).digest()[:7], "little"))

    def tensor(
        self,
        *shape: int,
        dtype: str | torch.dtype | None = None,
        regime: str | None = None,
        name: str | None = None,
    ) -> torch.Tensor:
        """A tensor of the case's dtype and data regime (or of those given), contiguous.

        A case with a ``source`` gets the real tensor instead for its first one that names no regime of its own;
        ValueError when shapes differ (salt > 0: rows rolled by one, so that it differs and stays real).
        """
        label = name or self._label()
        target = self._dtype(dtype)
        if self.fake:
            return torch.empty(shape, dtype=target, device=self.device)
        if self._source is not None and regime is None:
            source, self._source = self._source, None
            values = load_tensor(source)
            if tuple(values.shape) != shape:
                raise ValueError(f"{source} has shape {tuple(values.shape)}, the case asks for {shape}")
            return values.roll(self.salt, 0).to(target).to(self.device)
        make = find_regime(regime or (self.case.regime if self.case.source is None else "normal"))
        return self._cast(_tiled(make, shape, self.generator(label)), target)

    def make(
        self,
        function: Callable[[tuple[int, ...], torch.Generator], torch.Tensor],
        *shape: int,
        dtype: str | torch.dtype,
        name: str | None = None,
    ) -> torch.Tensor:
        """A tensor from ``function(shape, generator)`` (on the CPU), cast to ``dtype`` and moved to the device."""
        label = name or self._label()
        target = self._dtype(dtype)
        if self.fake:
            return torch.empty(shape, dtype=target, device=self.device)
        return self._cast(function(shape, self.generator(label)), target)

    def integers(self, low: int, high: int, *shape: int, dtype: str = "i64", name: str | None = None) -> torch.Tensor:
        """Uniform integers in ``[low, high)``."""
        return self.make(lambda s, g: torch.randint(low, high, s, generator=g), *shape, dtype=dtype, name=name)

    def full(self, value: float, *shape: int, dtype: str | torch.dtype = "fp32") -> torch.Tensor:
        """A tensor of one value; ``draw.full(0.5)`` is a 0-d scalar on the device."""
        return torch.full(shape, value, dtype=self._dtype(dtype), device=self.device)

    def put(self, value: torch.Tensor) -> torch.Tensor:
        """A CPU tensor moved to the device (in the fake world: a fake of the same shape, strides and dtype)."""
        if self.fake:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=self.device)
        return value.to(self.device)

    def _label(self) -> str:
        self._count += 1
        return str(self._count - 1)

    def _dtype(self, dtype: str | torch.dtype | None) -> torch.dtype:
        if dtype is None:
            return torch_dtype(self.case.dtype)
        return torch_dtype(dtype) if isinstance(dtype, str) else dtype

    def _cast(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        both = dtype.is_floating_point and values.is_floating_point()
        if both and torch.finfo(dtype).max < torch.finfo(values.dtype).max:
            limit = torch.finfo(dtype).max
            # a regime that reaches 3e38 must stay finite in fp16 and fp8, and keep its own inf and nan
            values = torch.where(values.isfinite(), values.clamp(-limit, limit), values)
        return values.to(dtype).to(self.device)


def _tiled(make: Any, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """``make(shape)``, or for a huge shape its first rows repeated: a 2e9-element draw would take minutes."""
    if not shape:  # regimes speak of rows and channels
        return make((1,), generator).reshape(())
    if math.prod(shape) <= REPEAT_ABOVE:
        return make(shape, generator)
    row = math.prod(shape[1:])
    rows = max(1, min(shape[0], REPEAT_ABOVE // max(row, 1)))
    base = make((rows, *shape[1:]), generator)
    return base.repeat(-(-shape[0] // rows), *[1] * (len(shape) - 1))[: shape[0]]
