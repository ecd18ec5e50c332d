"""The two modes through which the lint sees a call: operators, and Python methods of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.fake_cuda.fake_mode import known_values
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
    """Reports the methods in ``PYTHON_CALLS`` when they are called on a device tensor."""

    def __init__(self, tell: Callable[[Hit], None]) -> None:
        super().__init__()
        self._tell = tell

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__qualname__", "")
        hit = PYTHON_CALLS.get(name)
        if hit is not None and args and on_cuda(args[0]):
            self._tell(hit)
            if name == "TensorBase.data_ptr":
                return 0  # what the fake would answer, without its warning
        if name.rpartition(".")[2] == "tensor_split":
            args = _known_sections(args)
        return func(*args, **(kwargs or {}))


def _known_sections(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``tensor_split`` reads the memory of a CPU tensor of sections; a fake has none, but a literal is known."""
    values = known_values(args[1]) if len(args) > 1 else None
    return args if values is None else (args[0], tuple(values), *args[2:])
