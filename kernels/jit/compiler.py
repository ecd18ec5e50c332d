"""The one place that calls `cute.compile`."""

from __future__ import annotations

import functools
import tempfile
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.jit.cache import KernelSpec


@functools.cache
def dsl_version() -> str:
    """Version of the CuTe DSL and the CUDA version of the compiler it bundles, e.g. "4.8.1+cuda13.4"."""
    import cutlass

    try:
        package = version("nvidia-cutlass-dsl")
    except PackageNotFoundError:
        package = str(getattr(cutlass, "__version__", "unknown"))
    cuda = getattr(cutlass, "CUDA_VERSION", None)
    return f"{package}+cuda{cuda.major}.{cuda.minor}" if cuda is not None else package


def compile_spec(spec: KernelSpec, *, inspect: bool = False) -> Any:
    """Compile, bypassing every cache. `inspect` keeps PTX and cubin readable as `__ptx__` and `__cubin__`.

    Each compile dumps into a folder of its own: the DSL reads PTX and cubin back from files whose names do not tell
    tile shapes apart, and a shared folder once returned another configuration's cubin.
    """
    import cutlass.cute as cute

    function, arguments = spec.build()
    options = f"--gpu-arch {spec.arch} --enable-tvm-ffi"
    with tempfile.TemporaryDirectory(prefix="cute-") as dump:
        options += f" --dump-dir {dump}"
        if inspect:
            options += " --keep-ptx --keep-cubin"
        compiled = cute.compile(function, *arguments, options=options)
        if inspect:  # read while the dump folder exists
            compiled.__ptx__  # noqa: B018
            compiled.__cubin__  # noqa: B018
        return compiled
