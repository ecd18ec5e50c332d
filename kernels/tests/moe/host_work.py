"""What breaks a graph capture and shows on CPU tensors too: host reads, host constants, sizes that depend on data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FORBIDDEN = {
    "aten::_local_scalar_dense": "reads a value on the host (.item(), bool(), int())",
    "aten::lift_fresh": "makes a tensor from host data (torch.tensor, as_tensor)",
    "aten::nonzero": "has a size that depends on data",
    "aten::masked_select": "has a size that depends on data",
    "aten::_unique2": "has a size that depends on data",
    "aten::bincount": "has a size that depends on data",
    "aten::repeat_interleave.Tensor": "has a size that depends on data",
}


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.findings: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        name = func.name()
        if name in FORBIDDEN:
            self.findings.append(f"{name} {FORBIDDEN[name]}")
        if name.startswith(("aten::index.", "aten::index_put")):
            masks = [t for t in tree_leaves(args[1]) if isinstance(t, torch.Tensor) and t.dtype == torch.bool]
            if masks:
                self.findings.append(f"{name} with a mask has a size that depends on data")
        return func(*args, **(kwargs or {}))


def watch(call: Callable[[], Any]) -> _Watch:
    """Run `call`; the result has the number of operations and what was found."""
    with _Watch() as seen:
        call()
    return seen
