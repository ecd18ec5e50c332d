"""Records Triton launches instead of compiling and running them."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from harness.fake_cuda.device import active_device
from harness.fake_cuda.findings import Severity
from harness.fake_cuda.patching import Patches


def record_triton(patches: Patches) -> None:
    """Replace ``JITFunction.run`` and ``Autotuner.run``, if Triton is installed."""
    if importlib.util.find_spec("triton") is None:
        return
    from triton.runtime.jit import JITFunction

    patches.set(JITFunction, "run", _run)
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError:
        return
    patches.set(Autotuner, "run", _autotune)


def _run(function: Any, *args: Any, grid: Any = None, warmup: bool = False, **options: Any) -> None:
    if warmup:
        return
    tensors = (*args, *options.values())
    active_device().launched(f"triton:{name_of(function)}", tensors, _specialisation(function, args, options))


def _autotune(tuner: Any, *args: Any, **options: Any) -> Any:
    """One configuration is launched; which one does not matter here. A new key means a benchmark run."""
    names = list(getattr(tuner, "arg_names", ()))
    given = {**dict(zip(names, args, strict=False)), **options}
    key = [given.get(name) for name in getattr(tuner, "keys", ()) if name in given]
    key += [str(value.dtype) for value in given.values() if isinstance(value, torch.Tensor)]
    if len(tuner.configs) > 1:
        active_device().launched(f"triton-autotune:{name_of(tuner)}", (), ("autotune", *map(str, key)))
    return tuner.fn.run(*args, **{**options, **tuner.configs[0].all_kwargs()})


def name_of(function: Any) -> str:
    while not hasattr(function, "__name__") and hasattr(function, "fn"):
        function = function.fn
    return str(getattr(function, "__name__", function))


def _specialisation(function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """What Triton compiles a kernel for: types, and of an integer whether it is 1 and whether 16 divides it.

    Arguments that the kernel declares ``tl.constexpr`` or ``do_not_specialize`` are not told apart, so a value that
    changes freely may be reported as a compile though it is none; the finding names it as a specialisation.
    """
    skipped = set(getattr(function, "do_not_specialize", ()) or ())
    names = list(getattr(function, "arg_names", ()))

    def one(index: int, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return str(value.dtype)
        if isinstance(value, bool) or not isinstance(value, int):
            return repr(value) if isinstance(value, (bool, str, torch.dtype)) else type(value).__name__
        if index in skipped or (index < len(names) and names[index] in skipped):
            return "int"
        return "1" if value == 1 else f"int{'/16' if value % 16 == 0 else ''}"

    fixed = tuple(sorted((key, str(value)) for key, value in options.items() if not isinstance(value, torch.Tensor)))
    return (name_of(function), *(one(index, value) for index, value in enumerate(args)), *fixed)


def cold_kernel(kernel: str) -> tuple[str, Severity, str]:
    """The finding for a kernel that meets a new specialisation inside the captured call.

    Triton loads the compiled module with cuModuleLoadData, which the driver refuses while a stream is capturing.
    """
    if kernel.startswith("triton-autotune:"):
        what = f"{kernel} meets a new key: the autotuner benchmarks, and synchronises, inside the captured call"
    else:
        what = f"{kernel} meets a new specialisation: it is compiled and loaded inside the captured call"
    return "jit-in-capture", Severity.BREAK, what
