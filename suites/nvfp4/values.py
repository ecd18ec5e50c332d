"""Data regimes of NVFP4: the values at which a quantiser's rounding, zeroing and saturation change.

All are laid out in blocks of 16 along the last axis and repeat a short pattern over any shape. They are meant for
fp32 inputs and a global scale of 1 (``quantize_activation_nvfp4``); with a global scale of its own,
``GLOBAL_SCALE_ONE`` plants the maximum that makes it 1.
"""

from __future__ import annotations

import math

import torch

from harness import regime

E2M1_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
E2M1_VALUES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
UNDERFLOW = (2.0**-10, 1.5 * 2.0**-10, 2.0**-9, 1.5 * 2.0**-9, 2.5 * 2.0**-9, 2.0**-6, 2.0**-20)
"""Block scales s around the points where the E4M3 byte changes its nature: s <= 2^-10 rounds to zero."""

GLOBAL_SCALE_ONE = 2688.0
"""The tensor maximum that gives global_scale = 2688 / (6 * 448) = 1."""

SPECIAL = ("midpoints", "scale-midpoints", "underflow-ladder", "saturation")
"""Regimes of this module that need fp32 inputs: neighbours one ulp away vanish in bf16."""


@regime("midpoints")
def midpoints(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Every rounding midpoint and value of E2M1 with its neighbours by one ulp, in blocks whose maximum is 6."""
    points = _neighbours(torch.tensor(E2M1_MIDPOINTS + E2M1_VALUES[:-1]))
    rows = -(-points.numel() // 15)
    filled = torch.zeros(rows, 15)
    filled.view(-1)[: points.numel()] = points
    return _repeat(torch.cat((torch.full((rows, 1), 6.0), filled), 1), shape, generator)


@regime("scale-midpoints")
def scale_midpoints(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Block maxima at six times every value and midpoint of E4M3, with neighbours by one ulp."""
    values = torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    between = (values[1:] + values[:-1]) / 2
    return _repeat(_blocks_with_maximum(_neighbours(torch.cat((values, between)) * 6).abs()), shape, generator)


@regime("underflow-ladder")
def underflow_ladder(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Block scales at and beside 2^-10, 2^-9 and 2^-6: zero, smallest, subnormal and normal scale bytes."""
    return _repeat(_blocks_with_maximum(_neighbours(torch.tensor(UNDERFLOW) * 6).abs()), shape, generator)


@regime("saturation")
def saturation(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Magnitudes from half of what fits to 64 times it: scales must stop at 448 and codes at 6."""
    exponents = torch.randint(-1, 7, shape, generator=generator).float()
    signs = torch.randint(0, 2, shape, generator=generator).float() * 2 - 1
    return GLOBAL_SCALE_ONE * exponents.exp2() * signs


def _neighbours(centres: torch.Tensor) -> torch.Tensor:
    """Each value, the next float32 below and above it, and the negatives of all."""
    down = torch.nextafter(centres, torch.tensor(-math.inf))
    up = torch.nextafter(centres, torch.tensor(math.inf))
    three = torch.cat((down, centres, up))
    return torch.cat((three, -three))


def _blocks_with_maximum(amax: torch.Tensor) -> torch.Tensor:
    """One block of 16 for each maximum, with fractions of it and both zeros beside it."""
    fractions = torch.tensor(
        [1, 0, -0.0, -1, 0.5, -0.5, 0.25, -0.25, 1 / 3, -1 / 3, 0.75, -0.75, 1e-3, -1e-3, 11 / 12, -5 / 12]
    )
    return amax.unsqueeze(1) * fractions


def _repeat(blocks: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """The blocks in a random order, repeated until ``shape`` is full."""
    wanted = math.prod(shape)
    order = torch.randperm(blocks.shape[0], generator=generator)
    flat = blocks[order].reshape(-1)
    if wanted == 0:
        return torch.zeros(shape)
    return flat.repeat(-(-wanted // flat.numel()))[:wanted].reshape(shape)
