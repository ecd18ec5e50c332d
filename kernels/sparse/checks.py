"""Argument checks of the metadata functions: what was expected, what was found, how to mend it.

Only shapes, strides, dtypes and devices are looked at, never values: a check that read a value would wait for the
GPU and could not run under graph capture.
"""

from __future__ import annotations

import torch

INT32_MAX = 2**31 - 1
VALID_DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64)


def check_vector(name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], device: torch.device) -> None:
    """Refuse a vector of another dtype, rank, stride or device."""
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name}: expected {wanted}, got {tensor.dtype}; convert it before the call")
    if tensor.dim() != 1:
        raise ValueError(f"{name}: expected 1 dimension, got shape {tuple(tensor.shape)}; reshape it to (tokens,)")
    if tensor.numel() > 1 and tensor.stride(0) != 1:
        raise ValueError(f"{name}: expected stride 1, got {tensor.stride(0)}; call .contiguous() on it")
    check_device(name, tensor, device)


def check_matrix(name: str, tensor: torch.Tensor, device: torch.device, *, written: bool) -> None:
    """Refuse anything but an int32 matrix with adjacent columns; rows may be further apart than they are wide."""
    if tensor.dtype != torch.int32:
        raise TypeError(f"{name}: expected torch.int32, got {tensor.dtype}; convert it before the call")
    if tensor.dim() != 2:
        raise ValueError(f"{name}: expected 2 dimensions, got shape {tuple(tensor.shape)}; reshape it to 2")
    if tensor.shape[1] > 1 and tensor.stride(1) != 1:
        raise ValueError(
            f"{name}: expected stride 1 along columns, got strides {tuple(tensor.stride())}; call .contiguous() on it"
        )
    if written and tensor.shape[0] > 1 and tensor.stride(0) < tensor.shape[1]:
        raise ValueError(
            f"{name}: expected rows that do not overlap, got row stride {tensor.stride(0)} for {tensor.shape[1]} "
            "columns; pass a buffer with one row of memory a row"
        )
    check_device(name, tensor, device)


def check_device(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Refuse a tensor on another device than the rest."""
    if tensor.device != device:
        raise ValueError(f"{name}: expected a tensor on {device}, got {tensor.device}; move it before the call")


def check_at_least(name: str, found: int, wanted: int, what: str, mend: str) -> None:
    """Refuse a size below what the call will touch."""
    if found < wanted:
        raise ValueError(f"{name}: expected at least {wanted} {what}, got {found}; {mend}")


def check_positive(name: str, value: int) -> None:
    """Refuse a count that is not in 1..2^31-1."""
    if not 1 <= value <= INT32_MAX:
        raise ValueError(f"{name}: expected 1..{INT32_MAX}, got {value}; pass the size in compressed tokens")


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are views of one storage. Inside torch.compile there are no storages yet: False."""
    return not torch.compiler.is_compiling() and torch._C._is_alias_of(a, b)  # type: ignore[attr-defined]


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two matrices are the same view, element for element. Raises if they overlap in any other way."""
    if torch.compiler.is_compiling():
        return a is b  # memory has no addresses yet; a second view of it is kept apart by functionalisation
    if not share_memory(a, b):
        return False
    if a.storage_offset() == b.storage_offset() and a.shape == b.shape and a.stride() == b.stride():
        return True
    if _last(a) < b.storage_offset() or _last(b) < a.storage_offset():
        return False
    raise ValueError(
        "out: expected the input itself or memory apart from it, got a view that overlaps the input partly; "
        "pass the same tensor for work in place, or a buffer of its own"
    )


def _last(tensor: torch.Tensor) -> int:
    """Storage index of the last element."""
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + sum(steps))
