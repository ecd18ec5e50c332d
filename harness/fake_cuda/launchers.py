"""Refuses to compile, load and launch CUDA code while the device is pretended.

With a GPU in the machine a launch would really happen, on made-up addresses. Without one, cuda-core 1.2 fails on its
first use with a lock held, and hangs on the second: so it must not be tried.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from harness.fake_cuda.patching import Patches
from harness.fake_cuda.pretend_pointer import NoMemoryError

_CUDA_CORE = ("Program", "ObjectCode", "Linker", "Device", "Stream", "Buffer", "launch")


class _Refusal:
    """Stands in for a class or a function: calling it or taking anything from it raises."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NoMemoryError

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what functools.wraps and inspect ask for
            raise AttributeError(name)
        raise NoMemoryError


def refuse_launchers(patches: Patches) -> None:
    """cuda-core, by the names in its module; CuTe DSL's compiler, if it is loaded.

    Code that bound such a name at import keeps the real thing; pretended pointers and stream handles stop it there.
    """
    if importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.core") is not None:
        import cuda.core

        for name in _CUDA_CORE:
            patches.set_if_there(cuda.core, name, _Refusal())
    refuse_cute(patches)


def refuse_cute(patches: Patches) -> None:
    """Every ``cute.compile`` and every call of a ``@cute.jit`` function goes through one class."""
    owner = getattr(sys.modules.get("cutlass.base_dsl.compiler"), "CompileCallable", None)
    if owner is not None:

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NoMemoryError

        patches.set(owner, "__call__", refuse)
