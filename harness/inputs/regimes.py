"""Data regimes: the kinds of values that real kernels meet and random normal data never shows.

A regime is a function ``(shape, generator) -> float32 CPU tensor``. It is part of the case id. The ones here
know of no number format; a suite that has special values of its own (rounding midpoints, say) adds a regime with
``@regime("name")``. Bit patterns depend on the seed alone, so every world and every machine sees the same data.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Regime = Callable[[tuple[int, ...], torch.Generator], torch.Tensor]

REGIMES: dict[str, Regime] = {}


def regime(name: str) -> Callable[[Regime], Regime]:
    """Register a data regime under ``name``; registering a name twice is an error."""

    def add(function: Regime) -> Regime:
        known = REGIMES.get(name)
        # the same function again is a module that was loaded again
        if known is not None and _origin(known) != _origin(function):
            raise ValueError(f"data regime {name!r} is already defined in {known.__module__}")
        REGIMES[name] = function
        return function

    return add


def _origin(function: Regime) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def find_regime(name: str) -> Regime:
    try:
        return REGIMES[name]
    except KeyError:
        raise ValueError(f"unknown data regime {name!r}; known: {', '.join(sorted(REGIMES))}") from None


def randn(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Standard normal values (float32, CPU)."""
    return torch.randn(shape, generator=generator, dtype=torch.float32)


@regime("normal")
def normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return randn(shape, generator)


@regime("normal-small")
def normal_small(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Scale of weights of a deep layer: 2^-10."""
    return randn(shape, generator) * 2.0**-10


@regime("normal-large")
def normal_large(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Scale of unnormalised residual streams: 2^10."""
    return randn(shape, generator) * 2.0**10


@regime("heavy-tails")
def heavy_tails(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Student t with 2 degrees of freedom: normal / sqrt(chi2(2) / 2), the latter exponential."""
    numerator = randn(shape, generator)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float32).clamp_min_(2.0**-24)
    return numerator / (-uniform.log()).sqrt_().clamp_min_(2.0**-12)


@regime("outlier-channels")
def outlier_channels(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """One channel (last axis) in 64, at least one, is 100 times larger: what activations of LLMs look like."""
    values = randn(shape, generator)
    if values.numel() == 0:
        return values
    channels = torch.randperm(shape[-1], generator=generator)[: max(1, shape[-1] // 64)]
    values[..., channels] *= 100.0
    return values


@regime("six-decades")
def six_decades(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Rows spread evenly over six decades of magnitude: small rows drown in a per-tensor scale."""
    values = randn(shape, generator)
    rows = math.prod(shape[:-1])
    exponents = torch.linspace(-3.0, 3.0, rows) if rows > 1 else torch.zeros(rows)
    return values * (10.0**exponents).reshape(*shape[:-1], 1)


@regime("zeros")
def zeros(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.zeros(shape)


@regime("zero-block")
def zero_block(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Aligned runs of 16 along the last axis are zero here and there (always the first of each row)."""
    values = randn(shape, generator)
    blocks = shape[-1] // 16
    if blocks == 0 or values.numel() == 0:
        return torch.zeros(shape)
    mask = torch.rand((*shape[:-1], blocks), generator=generator) < 0.25
    mask[..., 0] = True
    values[..., : blocks * 16].unflatten(-1, (blocks, 16))[mask] = 0.0
    return values


@regime("signed-zeros")
def signed_zeros(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """A third +0, a third -0, a third normal."""
    values = randn(shape, generator)
    choice = torch.randint(0, 3, shape, generator=generator)
    values[choice == 0] = 0.0
    values[choice == 1] = -0.0
    return values


@regime("subnormals")
def subnormals(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Every value is subnormal in float32 and bfloat16 (below 2^-126), and flushed by a flush-to-zero unit."""
    return randn(shape, generator).clamp_(-4, 4) * 2.0**-130


@regime("huge")
def huge(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Magnitudes up to 3e38, the top of the range: a product or a sum of two overflows in float32."""
    return randn(shape, generator).clamp_(-4, 4) * (3.0e38 / 4.0)


@regime("constant")
def constant(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """All values equal: a kernel that mixes up elements still passes here, one that scales wrongly does not."""
    return torch.full(shape, 0.7236)


@regime("inf")
def inf(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Normal data with one infinity of each sign in the first row, if there is room."""
    return _plant(randn(shape, generator), float("inf"), -float("inf"))


@regime("nan")
def nan(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Normal data with two NaN in the first row, if there is room: no other row may notice."""
    return _plant(randn(shape, generator), float("nan"), float("nan"))


def _plant(values: torch.Tensor, first: float, second: float) -> torch.Tensor:
    flat = values.reshape(-1)
    if flat.numel():
        flat[min(3, flat.numel() - 1)] = first
        flat[min(21, flat.numel() - 1)] = second
    return values
