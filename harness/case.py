"""A case: one point of a suite, with the one id that every tool uses for it.

The id is the pytest node's parameter, the asv parameter, the NVTX range name and the key of every stored
baseline. It is made from the case alone, so it is stable across machines and runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.dtypes import itemsize, torch_dtype

WORLDS = ("cpu", "fake-cuda", "cuda", "codegen")
TIERS = ("quick", "full")
DEFAULT_REGIME = "normal"


@dataclass(frozen=True)
class Case:
    """Shape, dtype, data regime, routing regime and seed of one trial.

    ``params`` are the named sizes in declaration order, e.g. ``(("m", 128), ("k", 7168))``; read them with
    ``case["m"]``. ``source`` names a tensor of a checkpoint file when the data are real
    (``"model.safetensors#layer.0.weight"``). ``tier`` and ``worlds`` say when and where the case is run; they
    are not part of its identity.
    """

    params: tuple[tuple[str, int | str], ...]
    dtype: str = "bf16"
    regime: str = DEFAULT_REGIME
    routing: str | None = None
    seed: int = 0
    source: str | None = None
    tier: str = field(default="quick", compare=False)
    worlds: tuple[str, ...] = field(default=WORLDS, compare=False)

    def __post_init__(self) -> None:
        torch_dtype(self.dtype)
        if self.tier not in TIERS:
            raise ValueError(f"unknown tier {self.tier!r}; expected one of {', '.join(TIERS)}")
        unknown = set(self.worlds) - set(WORLDS)
        if unknown:
            raise ValueError(f"unknown worlds {sorted(unknown)}; expected some of {', '.join(WORLDS)}")

    def __getitem__(self, name: str) -> Any:
        for key, value in self.params:
            if key == name:
                return value
        known = ", ".join(key for key, _ in self.params)
        raise KeyError(f"case {self.id} has no parameter {name!r}; it has: {known}")

    @property
    def id(self) -> str:
        """``m128-k7168-bf16-normal``; routing and a seed other than 0 are appended when present."""
        parts = [f"{key}{value}" if isinstance(value, int) else str(value) for key, value in self.params]
        parts += [self.dtype, self.regime]
        if self.source is not None:
            parts.append(self.source.rpartition("#")[2])
        if self.routing is not None:
            parts.append(self.routing)
        if self.seed:
            parts.append(f"seed{self.seed}")
        return "-".join(parts)

    @property
    def itemsize(self) -> int:
        """Bytes per element of ``dtype``."""
        return itemsize(self.dtype)

    def replace(self, **params: int | str) -> Case:
        """The same case with other sizes: ``case.replace(m=64)``."""
        names = [key for key, _ in self.params]
        unknown = set(params) - set(names)
        if unknown:
            raise KeyError(f"case {self.id} has no parameters {sorted(unknown)}; it has: {', '.join(names)}")
        new = tuple((key, params.get(key, value)) for key, value in self.params)
        return Case(new, self.dtype, self.regime, self.routing, self.seed, self.source, self.tier, self.worlds)

    def as_dict(self) -> dict[str, Any]:
        """A JSON-able form; ``Case.from_dict`` is its inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Case:
        """Inverse of ``as_dict``, also after a round through JSON (lists become tuples again)."""
        fields = dict(data)
        fields["params"] = tuple((str(key), value) for key, value in fields["params"])
        fields["worlds"] = tuple(fields.get("worlds", WORLDS))
        return cls(**fields)


def grid(
    *,
    dtype: str | Sequence[str] = "bf16",
    regime: str | Sequence[str] = DEFAULT_REGIME,
    routing: str | Sequence[str] | None = None,
    seed: int | Sequence[int] = 0,
    tier: str = "quick",
    worlds: Sequence[str] = WORLDS,
    **sizes: int | str | Iterable[int | str],
) -> tuple[Case, ...]:
    """The cross product of its axes as cases: ``grid(m=[1, 128], k=7168, regime=["normal", "zeros"])``."""
    axes = [_axis(values) for values in sizes.values()]
    others = (_axis(dtype), _axis(regime), [None] if routing is None else _axis(routing), _axis(seed))
    return tuple(
        Case(tuple(zip(sizes, point, strict=True)), dt, rg, rt, sd, None, tier, tuple(worlds))
        for point in itertools.product(*axes)
        for dt, rg, rt, sd in itertools.product(*others)
    )


def _axis(values: Any) -> list[Any]:
    return [values] if isinstance(values, (str, int)) else list(values)
