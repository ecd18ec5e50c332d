"""Gives a torch build without CUDA the device guard that its Python bindings ask for.

``x[0]``, ``.to("cuda")``, ``float(x)`` and ``nonzero`` open a C++ ``DeviceGuard`` before they dispatch. A CPU-only
build has none for CUDA and stops with "PyTorch is not linked with support for cuda devices", also for fake tensors.
torch's own remedy (``torch._C._ensureCUDADeviceGuardSet``) replaces a guard that exists, so it helps CUDA builds on
machines without a GPU and nobody else.

The remedy here needs no compiler: make a guard in Python that says it is CUDA's, let torch register it under the one
device type that accepts Python guards (PrivateUse1), and move the pointer to CUDA's slot of the table.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch

# c10::DeviceType; asserted against what the table holds before anything is written
_CPU, _CUDA, _META, _PRIVATE_USE = 0, 1, 14, 20
_TABLE = "_ZN3c104impl26device_guard_impl_registryE"
_kept_alive: list[Any] = []


class GuardKind(StrEnum):
    """Where CUDA's device guard comes from."""

    REAL = "a GPU is visible"
    TORCH = "a CUDA build without a GPU: torch puts a no-op guard in place"
    STAND_IN = "a build without CUDA: the guard of this module"


class FakeCudaUnavailable(RuntimeError):
    """This torch build is laid out in a way this module does not know."""


def guard_kind() -> GuardKind:
    """Which guard applies on this machine. Changes nothing."""
    if torch.cuda.is_available():
        return GuardKind.REAL
    return GuardKind.TORCH if _table()[_CUDA] else GuardKind.STAND_IN


@contextmanager
def cuda_guard() -> Iterator[GuardKind]:
    """CUDA's device guard exists inside the block; the table is put back afterwards."""
    kind = guard_kind()
    if kind is not GuardKind.STAND_IN:
        yield kind
        return
    table = _table()
    table[_CUDA] = _stand_in_pointer(table)
    try:
        yield kind
    finally:
        table[_CUDA] = None


def _stand_in_pointer(table: Any) -> int:
    """Address of the stand-in's C++ side, made once: torch keeps guards for the life of the process."""
    if not _kept_alive:
        if not (table[_CPU] and table[_META]) or table[_PRIVATE_USE]:
            raise FakeCudaUnavailable(
                f"torch {torch.__version__}: the table of device guards does not have the expected layout "
                "(CPU and Meta present, PrivateUse1 free); another backend may have taken PrivateUse1"
            )
        try:
            accelerator: Any = torch._C._acc
            base, register = accelerator.DeviceGuard, accelerator.register_python_privateuseone_device_guard
        except AttributeError as error:
            raise FakeCudaUnavailable(
                f"torch {torch.__version__} cannot register a device guard written in Python ({error}); "
                "use a CUDA build of torch (it needs no GPU)"
            ) from error

        class StandInGuard(base):  # type: ignore[misc, valid-type]
            def type_(self) -> Any:
                return torch._C._autograd.DeviceType.CUDA

        guard = StandInGuard()
        register(guard)
        _kept_alive.extend((guard, table[_PRIVATE_USE]))
        table[_PRIVATE_USE] = None
    return int(_kept_alive[1])


def _table() -> Any:
    """c10's table of device guards, as an array of pointers."""
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        return (ctypes.c_void_p * (_PRIVATE_USE + 1)).in_dll(ctypes.CDLL(str(library)), _TABLE)
    except (OSError, ValueError) as error:
        raise FakeCudaUnavailable(
            f"torch {torch.__version__}: no table of device guards in {library}: {error}"
        ) from error
