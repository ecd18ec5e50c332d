"""torch's fake tensor mode, with answers where a fake tensor would normally refuse one."""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map

from harness.fake_cuda.guard import FakeCudaUnavailable

aten = torch.ops.aten

_SMALL = 64
"""Up to this many elements the values of a literal CPU tensor are kept: section lists, sizes."""

_READS_ON_THE_HOST = {
    aten.equal.default: True,
    aten.allclose.default: True,
    aten.is_nonzero.default: True,
}


class PretendMode(FakeTensorMode):
    """Fake tensors on a pretended device.

    A host read gives a plausible value (1, 1.0, True) instead of an exception or a symbol, and a shape that depends
    on data is that of one selected element: so a call is followed to its end and the lint sees everything in it,
    not only the first break.
    """

    def __init__(self) -> None:
        # no fallback kernels: they run the real operator on zeros, which needs a device, and hides a missing fake
        super().__init__(allow_fallback_kernels=False, allow_non_fake_inputs=True, shape_env=ShapeEnv())
        self.pinned: set[int] = set()

    @property
    def avoid_device_init(self) -> bool:
        """Always: otherwise ``torch.tensor(.., device="cuda")`` would really be made where a GPU is visible."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default and unknown(args[0]):
            return plausible(args[0].dtype)
        if func in _READS_ON_THE_HOST and any(unknown(value) for value in args):
            return _READS_ON_THE_HOST[func]
        if func is aten._pin_memory.default:  # torch has no fake for it
            pinned = torch.ops.aten.empty_like.default(args[0])
            self.pin(pinned)
            return pinned
        if func is aten.is_pinned.default:
            return storage_key(args[0]) in self.pinned
        out: Any = super().__torch_dispatch__(func, types, args, kwargs)
        if torch.Tag.dynamic_output_shape in func.tags:
            out = tree_map(self._with_known_shape, out)
        if func is aten.lift_fresh.default and args[0].device.type == "cpu" and args[0].numel() <= _SMALL:
            out.known_values = (args[0].tolist(), out._version)
        if kwargs.get("pin_memory") and isinstance(out, torch.Tensor) and out.device.type == "cpu":
            self.pin(out)
        return out

    def _with_known_shape(self, value: Any) -> Any:
        """A tensor in place of one whose shape depends on data: one element was selected (or the least allowed)."""
        if not (isinstance(value, FakeTensor) and value._has_symbolic_sizes_strides):
            return value
        return value.new_empty([self._known_size(size) for size in value.shape])

    def _known_size(self, size: int | torch.SymInt) -> int:
        if isinstance(size, int):
            return size
        assert self.shape_env is not None
        ranges = self.shape_env.var_to_range
        symbols = size.node.expr.free_symbols
        least = {symbol: max(1, int(ranges[symbol].lower)) if symbol in ranges else 1 for symbol in symbols}
        return int(size.node.expr.xreplace(least))

    def pin(self, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        self.pinned.add(key)
        # the key is an address: it may be another storage's later
        weakref.finalize(tensor.untyped_storage(), self.pinned.discard, key).atexit = False


@cache
def pretend_mode() -> PretendMode:
    """The one mode of this process: fake tensors of two modes cannot meet, and code under test keeps tables of its
    own from one block to the next.
    """
    if not hasattr(FakeTensorMode, "avoid_device_init"):
        raise FakeCudaUnavailable(
            f"torch {torch.__version__}: FakeTensorMode has no avoid_device_init, without which constants would "
            "really be made on a GPU; this module knows torch 2.11 to 2.14"
        )
    return PretendMode()


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of a tensor's storage, as long as somebody keeps the storage."""
    return tensor.untyped_storage()._cdata


def unknown(value: Any) -> bool:
    """Whether a tensor's values are not known (small CPU constants are, until something writes to them)."""
    return isinstance(value, FakeTensor) and value.constant is None


def known_values(value: Any) -> list[Any] | None:
    """The values of a small CPU tensor that was written as a literal and not changed since; else None."""
    values, version = getattr(value, "known_values", (None, None))
    return values if isinstance(values, list) and value._version == version else None


def plausible(dtype: torch.dtype) -> bool | int | float | complex:
    """A value that keeps most code going: a true condition, a size of one."""
    if dtype is torch.bool:
        return True
    if dtype.is_complex:
        return complex(1)
    return 1.0 if dtype.is_floating_point else 1
