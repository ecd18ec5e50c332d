"""Answers for Python calls that a fake tensor refuses or that never reach the dispatcher."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from harness.fake_cuda.fake_mode import known_values, storage_key
from harness.fake_cuda.patching import Patches
from harness.fake_cuda.pretend_pointer import NoMemoryError, PretendPointer

_NUMPY = {
    torch.bool: np.bool_,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float16,
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
}


class PretendMethods(TorchFunctionMode):
    """Active inside ``fake_cuda``, below the lint's own modes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__qualname__", "").rpartition(".")[2]
        if name in _ANSWERS and args:
            subject = args[0]
            if isinstance(subject, FakeTensor):
                return _ANSWERS[name](subject)
        elif name in ("tensor", "as_tensor", "new_tensor"):
            args = tuple(_host_values(value) if isinstance(value, (list, tuple)) else value for value in args)
        elif name == "tensor_split":
            args = tuple(known_values(value) or value for value in args)
        return func(*args, **kwargs)


def _pointer(tensor: torch.Tensor) -> PretendPointer:
    """Unique to the storage, aligned to 256 B as the allocator's blocks are, and offset as the tensor is."""
    return PretendPointer((storage_key(tensor) << 8) + int(tensor.storage_offset()) * tensor.element_size())


def _array(tensor: torch.Tensor) -> Any:
    """Zeros: the values are not known, and the system gives pages of zeros without taking memory for them."""
    if tensor.device.type == "cuda":
        raise TypeError("can't convert a cuda tensor to numpy; use Tensor.cpu() to copy it to host memory first")
    if tensor.dtype not in _NUMPY:
        raise TypeError(f"Got unsupported ScalarType {str(tensor.dtype).removeprefix('torch.')}")
    values = known_values(tensor)
    if values is not None:
        return np.array(values, dtype=_NUMPY[tensor.dtype]).reshape(tuple(tensor.shape))
    return np.zeros(tuple(tensor.shape), dtype=_NUMPY[tensor.dtype])


def answer_for_the_class(patches: Patches) -> None:
    """Answers that must be methods of ``FakeTensor``, since they are not looked up through a function mode."""
    original = FakeTensor.tolist

    def tolist(tensor: FakeTensor) -> Any:
        """A literal's values are known; the method of ``FakeTensor`` asks for every element."""
        values = known_values(tensor)
        return original(tensor) if values is None else values

    patches.set(FakeTensor, "tolist", tolist)
    patches.set(FakeTensor, "__dlpack__", _no_memory)
    # TVM-FFI (and CuTe DSL with it) takes tensors through this C table without calling any method: a launch would
    # really happen, on null pointers. An entry that is no capsule makes it refuse.
    patches.set(FakeTensor, "__dlpack_c_exchange_api__", None)


def _no_memory(tensor: FakeTensor, **options: Any) -> Any:
    raise NoMemoryError


_ANSWERS = {
    "data_ptr": _pointer,
    "numpy": _array,
}


def _host_values(data: Any) -> Any:
    """Device scalars inside a list, read one by one as the constructor would: below the dispatcher, unseen."""
    return tree_map(lambda leaf: leaf.item() if isinstance(leaf, FakeTensor) and leaf.numel() == 1 else leaf, data)
