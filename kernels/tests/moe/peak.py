"""The most bytes alive at once that a call allocated, real or fake tensors alike."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Ledger(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.alive = self.peak = 0
        self.known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage(), inputs)
        return result

    def _add(self, storage: Any, inputs: set[int]) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in inputs or key in self.known:
            return
        self.alive += size
        self.peak = max(self.peak, self.alive)
        self.known[key] = weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.known.pop(key, None)
        self.alive -= size


def peak_bytes(call: Callable[[], Any]) -> int:
    """Bytes of the storages that `call` made, at their largest sum; what was alive before does not count."""
    with _Ledger() as ledger:
        call()
    return ledger.peak
