"""A capture case: a small function of one device tensor, and what a CUDA-graph capture of it should meet."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class CaptureCase:
    """``label`` is what the lint should say: ``break`` (the capture raises), ``hazard`` (it captures, and a replay
    is stale or does less) or ``ok``. Whether a GPU agrees is in ``baselines/<gpu>/capture-truth.json``.
    """

    name: str
    fn: Callable[[torch.Tensor], Any]
    label: str
    registers_generator: bool = False
    """``STATE.generator`` is made before the first call and registered with the graph."""
    needs: str | None = None
    """A module without which the case cannot run."""

    def missing(self) -> str | None:
        """The needed module, if it is not installed."""
        return self.needs if self.needs and importlib.util.find_spec(self.needs) is None else None


class State:
    """What cases keep between calls; ``reset`` before each."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.calls = 0
        self.buffer: Any = None
        self.generator: Any = None
        self.stream: Any = None
        self.event: Any = None
        self.cache: dict[Any, Any] = {}


STATE = State()
CASES: dict[str, CaptureCase] = {}


def case(label: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function under its own name."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        name = fn.__name__
        assert name not in CASES, f"two capture cases are called {name}"
        CASES[name] = CaptureCase(name, fn, label, **options)
        return fn

    return register
