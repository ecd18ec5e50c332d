"""Looks inside custom operators that are written in Python.

To a dispatch mode a ``torch.library.custom_op`` is one opaque call: its allocations, host reads and temporaries are
hidden behind its fake. Where the operator has a Python kernel for the device, a mode can run that instead, and sees
what really happens. Operators written in C++ stay opaque.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def python_kernel(func: Any, device_type: str) -> Callable[..., Any] | None:
    """The Python function that implements an operator overload on ``device_type``, or None if there is none.

    Reads the table in which torch keeps the operators made by ``torch.library.custom_op``; there is no public way
    to ask. On a torch that has moved it, every operator counts as opaque.
    """
    try:
        from torch._library.custom_ops import OPDEFS
    except ImportError:
        return None
    definition = OPDEFS.get(getattr(func, "_schema", None) and func._schema.name)
    if definition is None:
        return None
    kernels = getattr(definition, "_backend_fns", {})
    kernel = kernels.get(device_type, kernels.get(None))
    if kernel is None:
        return None
    # the registered kernel is wrapped against torch.compile; the function itself is kept beside it
    original = getattr(definition, "_init_fn", None)
    return original if kernels.get(device_type) is None and original is not None else kernel


def is_opaque(func: Any, device_type: str) -> bool:
    """Whether an operator is outside torch's own namespaces and has no Python kernel to look into."""
    namespace = getattr(func, "namespace", "aten")
    return namespace not in {"aten", "prim", "prims"} and python_kernel(func, device_type) is None


def device_type_of(tensors: list[torch.Tensor]) -> str:
    """``cuda`` if any of the tensors is on a GPU, else ``cpu``."""
    return "cuda" if any(tensor.device.type == "cuda" for tensor in tensors) else "cpu"
