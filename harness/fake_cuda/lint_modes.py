"""The two modes through which the lint sees a call: operators, and Python methods of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.fake_cuda.op_call import Hit, on_cuda
from harness.fake_cuda.rules.python_calls import PYTHON_CALLS


class OperatorMode(TorchDispatchMode):
    """Hands every operator to ``handle(func, args, kwargs)``, which runs it and returns its result."""

    def __init__(self, handle: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__()
        self._handle = handle

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._handle(func, args, kwargs or {})


class MethodMode(TorchFunctionMode):
    """Reports the methods in ``PYTHON_CALLS`` when they are called on a device tensor.

    Also remembers which generator a call was given: an operator sees a new wrapper of it, with another identity.
    """

    def __init__(self, tell: Callable[[Hit], None]) -> None:
        super().__init__()
        self.generator: torch._C.Generator | None = None
        self._tell = tell

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        hit = PYTHON_CALLS.get(getattr(func, "__qualname__", ""))
        if hit is not None and args and on_cuda(args[0]):
            self._tell(hit)
        before = self.generator
        given = (value for value in (*args, *kwargs.values()) if isinstance(value, torch._C.Generator))
        self.generator = next(given, before)
        try:
            return func(*args, **kwargs)
        finally:
            self.generator = before
