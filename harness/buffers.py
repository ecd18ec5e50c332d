"""Poisoned and guarded memory: the always-on sanitizer of the coverage and guard gates.

``GuardedAllocations`` is a dispatch mode. While it is active every allocation that a kernel's Python code makes
without initialising it (``torch.empty`` and its kin) is cut out of a larger buffer: canary bytes on both sides, and
poison inside. Afterwards, an element still holding poison was never written, and a changed canary is an
out-of-bounds write that the caching allocator would have hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.custom_ops import device_type_of, python_kernel

GUARD = 4096
"""Canary bytes on each side: a whole page, and a multiple of every alignment that kernels assume (up to 256)."""

CANARIES = (0xA5, 0x5A)
"""Two patterns: a kernel that happens to write one of them is caught under the other."""

POISONS = (0xFF, 0x7B)
"""Two poisons: all ones (NaN in every float format and in E4M3, -1 as an integer) and an ordinary finite number."""

_EMPTY = {
    "aten::empty.memory_format",
    "aten::empty_strided",
    "aten::empty_like",
    "aten::new_empty",
    "aten::new_empty_strided",
    "aten::empty_permuted",
}


@dataclass
class Guarded:
    """A tensor inside its guarded buffer. ``label`` says what it is ("input x", "allocation 3 (64, 7168)")."""

    label: str
    tensor: torch.Tensor
    buffer: torch.Tensor
    canary: int
    length: int

    @property
    def inside(self) -> torch.Tensor:
        """The bytes between the tensor's first and last element; all others are canary."""
        return self.buffer[GUARD : GUARD + self.length]

    def damage(self) -> str | None:
        """Which canary bytes were overwritten, or None. Offsets are bytes from the end nearest to the tensor."""
        before, after = self.buffer[:GUARD], self.buffer[GUARD + self.length :]
        found = []
        for side, zone in (("before", before.flip(0)), ("after", after)):
            wrong = (zone != self.canary).nonzero().flatten()
            if wrong.numel():
                offset = int(wrong[0])
                found.append(f"{wrong.numel()} bytes {side} it, the nearest {offset} bytes away")
        return f"{self.label}: {' and '.join(found)} were overwritten" if found else None


def guarded(tensor_like: torch.Tensor, label: str, canary: int, *, fill: int | None = None) -> Guarded:
    """A guarded tensor of the same shape, strides, dtype and device, holding the same values (or ``fill`` bytes)."""
    made = _allocate(tensor_like.shape, tensor_like.stride(), tensor_like.dtype, tensor_like.device, label, canary)
    if fill is None:
        storage_view(made.tensor).copy_(storage_view(tensor_like))
    else:
        made.inside.fill_(fill)
    return made


def storage_view(tensor: torch.Tensor) -> torch.Tensor:
    """The elements between a strided tensor's first and last one, as a flat tensor."""
    return tensor.as_strided((_extent(tensor.shape, tensor.stride()),), (1,), tensor.storage_offset())


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _allocate(
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    label: str,
    canary: int,
) -> Guarded:
    length = _extent(shape, stride) * dtype.itemsize
    rounded = -(-length // 16) * 16  # a view as a wider dtype needs a whole number of elements; odd tails stay canary
    buffer = torch.full((rounded + 2 * GUARD,), canary, dtype=torch.uint8, device=device)
    inside = buffer[GUARD : GUARD + rounded].view(dtype)
    tensor = inside.as_strided(tuple(shape), tuple(stride), inside.storage_offset())
    return Guarded(label, tensor, buffer, canary, length)


class GuardedAllocations(TorchDispatchMode):
    """Poisons and guards what is allocated inside it, also inside custom operators written in Python."""

    def __init__(self, *, poison: int, canary: int = CANARIES[0]) -> None:
        super().__init__()
        self.poison, self.canary = poison, canary
        self.made: list[Guarded] = []
        self.opaque: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if f"{func._schema.name}" + (f".{func._overloadname}" if func._overloadname != "default" else "") in _EMPTY:
            return self._replace(func(*args, **kwargs))
        if func.namespace not in {"aten", "prim", "prims"}:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            kernel = python_kernel(func, device_type_of(tensors))
            if kernel is not None:
                with self:
                    return kernel(*args, **kwargs)
            self.opaque.add(str(func))
        return func(*args, **kwargs)

    def _replace(self, fresh: torch.Tensor) -> torch.Tensor:
        if fresh.layout is not torch.strided or fresh.device.type == "meta" or fresh.is_pinned():
            return fresh
        label = f"allocation {len(self.made)} {tuple(fresh.shape)} {fresh.dtype}".replace("torch.", "")
        made = _allocate(fresh.shape, fresh.stride(), fresh.dtype, fresh.device, label, self.canary)
        made.inside.fill_(self.poison)
        self.made.append(made)
        return made.tensor

    def damage(self) -> list[str]:
        """Every allocation whose canaries were overwritten."""
        return [line for made in self.made if (line := made.damage())]
