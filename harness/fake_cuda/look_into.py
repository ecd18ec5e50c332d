"""Runs the Python kernel of a custom operator under the modes, up to where it launches something.

A kernel made of torch operators is followed to its end. One that goes on to CuTe DSL, TVM-FFI or the driver is
followed up to there, and the operator's fake answers for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from harness.custom_ops import python_kernel
from harness.fake_cuda.device import active_device, is_active
from harness.fake_cuda.fake_methods import PretendMethods
from harness.fake_cuda.guard import GuardKind
from harness.fake_cuda.launchers import refuse_cute
from harness.fake_cuda.patching import Patches
from harness.fake_cuda.pretend_pointer import NoMemoryError

_LAUNCHERS = ("cuda", "cutlass", "tvm_ffi", "triton")
_REFUSALS = ("PretendPointer", "dlpack_exchange_api")
"""Words by which launchers refuse what a pretended tensor hands them, in errors of their own."""


def kernel_to_look_into(func: Any, device: str) -> Callable[..., Any] | None:
    """The Python kernel of a custom operator, or None.

    One written for CUDA alone is a launcher: where there is a GPU it is left alone.
    """
    if func.namespace in ("aten", "prim", "prims"):
        return None
    kernel = python_kernel(func, device)
    for_cuda_alone = device == "cuda" and python_kernel(func, "meta") is None
    if for_cuda_alone and not (is_active() and active_device().guard is not GuardKind.REAL):
        return None
    return kernel


def look_into(kernel: Callable[..., Any], fake: Callable[[], Any]) -> tuple[Any, str | None]:
    """The result, and why the kernel was left before its end, or None. Its own errors pass through."""
    try:
        with ExitStack() as stack:
            if is_active():
                refuse_cute(stack.enter_context(Patches()))  # it may have been imported since the block began
                # the operator was called from inside the function modes, which are off until that call returns
                stack.enter_context(PretendMethods())
            return kernel(), None
    except Exception as error:
        if not is_a_launch(error):
            raise
        reason = first_line(error)
    return fake(), reason


def is_a_launch(error: BaseException) -> bool:
    """Whether an exception says that there is nothing to launch with, and not that the kernel is wrong."""
    if isinstance(error, NoMemoryError) or any(word in str(error) for word in _REFUSALS):
        return True
    if type(error).__module__.split(".")[0] in _LAUNCHERS:
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    if module.split(".")[0] in _LAUNCHERS:
        return True
    cause = error.__cause__ or error.__context__
    return cause is not None and is_a_launch(cause)


def first_line(error: BaseException) -> str:
    """``TypeError: expected ..``: the first line of the message that says anything."""
    lines = (line.strip() for line in str(error).splitlines())
    return f"{type(error).__name__}: {next(filter(None, lines), '')}"[:160]
