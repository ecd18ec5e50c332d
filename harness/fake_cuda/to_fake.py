"""Fake tensors that look like given ones."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from harness.fake_cuda.device import active_device
from harness.fake_cuda.findings import TensorMeta


def to_fake(tree: Any, device: str = "cuda") -> Any:
    """The same tree with a fake tensor on ``device`` for every tensor and every ``TensorMeta`` in it.

    Shape, strides, dtype and the sharing of storages are kept; no memory is copied or allocated. Anything else in the
    tree is returned as it is.
    """
    mode = active_device().mode
    storages: dict[int, torch.Tensor] = {}

    def one(leaf: Any) -> Any:
        if isinstance(leaf, TensorMeta):
            with mode:
                return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device=leaf.device)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        storage = leaf.untyped_storage()
        key = storage._cdata
        with mode:
            if key not in storages:
                storages[key] = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device)
            whole = storages[key]
            # one storage is seen through several dtypes; a length that does not divide is cut, as .view() needs
            usable = whole[: whole.numel() // leaf.element_size() * leaf.element_size()]
            return usable.view(leaf.dtype).as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())

    return tree_map(one, tree, is_leaf=lambda node: isinstance(node, TensorMeta))
