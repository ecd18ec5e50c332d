"""Routing regimes: the shapes of load under which expert kernels have broken, as tensors of expert ids.

A regime is a name; `routed_ids(name, ...)` makes int32 (tokens, top_k) expert ids, distinct within a token. Where
the name cannot be had (say "one_empty" with fewer experts than it needs) it raises, so that no case quietly tests
another.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

Draw = Callable[[int, int, int, torch.Generator], torch.Tensor]


def _choose(weights: torch.Tensor, tokens: int, top_k: int, generator: torch.Generator) -> torch.Tensor:
    """`top_k` distinct experts a token, drawn in proportion to `weights` (E,); those of weight 0 never."""
    if int((weights > 0).sum()) < top_k:
        raise ValueError(f"expected at least {top_k} experts to choose from, got {int((weights > 0).sum())}")
    if tokens == 0:
        return torch.empty((0, top_k), dtype=torch.int32)
    drawn = torch.multinomial(weights.expand(tokens, -1), top_k, generator=generator)
    return drawn.to(torch.int32)


def _without(*empty: int) -> Draw:
    def draw(tokens: int, experts: int, top_k: int, generator: torch.Generator) -> torch.Tensor:
        weights = torch.ones(experts)
        weights[list(empty)] = 0
        return _choose(weights, tokens, top_k, generator)

    return draw


def _uniform(tokens: int, experts: int, top_k: int, generator: torch.Generator) -> torch.Tensor:
    return _choose(torch.ones(experts), tokens, top_k, generator)


def _zipf(tokens: int, experts: int, top_k: int, generator: torch.Generator) -> torch.Tensor:
    weights = 1.0 / torch.arange(1, experts + 1)
    return _choose(weights[torch.randperm(experts, generator=generator)], tokens, top_k, generator)


def _all_to_one(tokens: int, experts: int, top_k: int, generator: torch.Generator) -> torch.Tensor:
    """Every token has the middle expert; its other choices leave the rank (-1)."""
    ids = torch.full((tokens, top_k), -1, dtype=torch.int32)
    ids[:, top_k // 2] = experts // 2
    return ids


def _nowhere(tokens: int, experts: int, top_k: int, generator: torch.Generator) -> torch.Tensor:
    return torch.full((tokens, top_k), -1, dtype=torch.int32)


def _holes(tokens: int, experts: int, top_k: int, generator: torch.Generator) -> torch.Tensor:
    """Uniform, and about half of the routes leave the rank: the view of one rank under expert parallelism."""
    ids = _uniform(tokens, experts, top_k, generator)
    gone = torch.rand((tokens, top_k), generator=generator) < 0.5
    return ids.masked_fill(gone, -1)


def _around_tile(extra: int, tile: int = 128) -> Draw:
    """Expert 0 holds `tile + extra` rows, the rest of its tokens' choices leave the rank."""

    def draw(tokens: int, experts: int, top_k: int, generator: torch.Generator) -> torch.Tensor:
        if tokens < tile + extra:
            raise ValueError(f"expected at least {tile + extra} tokens, got {tokens}")
        ids = torch.full((tokens, top_k), -1, dtype=torch.int32)
        ids[: tile + extra, 0] = 0
        return ids

    return draw


REGIMES: dict[str, Draw] = {
    "uniform": _uniform,
    "zipf": _zipf,
    "all_to_one": _all_to_one,
    "nowhere": _nowhere,
    "holes": _holes,
    "one_empty": lambda t, e, k, g: _without(e // 2)(t, e, k, g),
    "first_and_last_empty": _without(0, -1),
    "all_but_top_k_empty": lambda t, e, k, g: _without(*range(k, e))(t, e, k, g),
    "tile_minus_1": _around_tile(-1),
    "tile": _around_tile(0),
    "tile_plus_1": _around_tile(1),
}


def routed_ids(regime: str, tokens: int, experts: int, top_k: int, seed: int = 0) -> torch.Tensor:
    """int32 (tokens, top_k) on the CPU. `regime` is a key of REGIMES, or "trace:PATH" for a recorded trace."""
    if regime.startswith("trace:"):
        return read_trace(Path(regime.removeprefix("trace:")), tokens, top_k)
    if regime not in REGIMES:
        raise ValueError(f"regime: expected one of {sorted(REGIMES)} or 'trace:PATH', got {regime!r}")
    return REGIMES[regime](tokens, experts, top_k, torch.Generator().manual_seed(seed))


def read_trace(path: Path, tokens: int, top_k: int) -> torch.Tensor:
    """The first `tokens` lines of a recorded trace: text, one token a line, `top_k` ids apart by blanks or commas."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    if len(lines) < tokens:
        raise ValueError(f"{path}: expected at least {tokens} tokens, got {len(lines)}; record a longer trace")
    rows = [[int(field) for field in line.replace(",", " ").split()] for line in lines[:tokens]]
    if any(len(row) != top_k for row in rows):
        raise ValueError(f"{path}: expected {top_k} expert ids in each line")
    return torch.tensor(rows, dtype=torch.int32).view(tokens, top_k)
