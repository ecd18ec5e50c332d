"""One operator call as the rules see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from harness.fake_cuda.fake_mode import storage_key
from harness.fake_cuda.findings import Severity

Hit = tuple[str, Severity, str]
"""Rule name, severity, sentence."""
Hits = Iterator[Hit]


@dataclass(frozen=True)
class OpCall:
    """``name`` is the overload (``aten.copy_.default``), ``packet`` the operator (``aten.copy_``)."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    packet: str
    leaves: tuple[Any, ...]
    tensors: tuple[torch.Tensor, ...]
    on_device: bool
    """Some operand is on the device, or the result is to be made there."""
    pinned: set[int]
    """Storages of the host tensors in pinned memory."""
    generator_registered: bool
    """The generator given to the call, if one was, is registered with the graph."""

    @classmethod
    def of(
        cls,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        pinned: set[int],
        generator_registered: bool,
    ) -> OpCall:
        name = str(func)
        leaves = tuple(tree_leaves((args, kwargs)))
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        made_there = torch.device(kwargs.get("device") or "cpu").type == "cuda"
        on_device = made_there or any(map(on_cuda, tensors))
        packet = name.rpartition(".")[0]
        return cls(func, args, kwargs, name, packet, leaves, tensors, on_device, pinned, generator_registered)

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """An argument given by position or by name."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    def has_tag(self, tag: str) -> bool:
        """False for a tag that this torch does not know."""
        value = getattr(torch.Tag, tag, None)
        return value is not None and value in self.func.tags

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return storage_key(tensor) in self.pinned


def on_cuda(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def on_cpu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"
