"""CUDA C++ kernels of the exhibits that only a GPU can show, compiled at run time."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_name("affine.cu")
THREADS = 256


@dataclass(frozen=True)
class _Stream:
    """A stream by its handle, in cuda.core's protocol."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def missing() -> str | None:
    """Why the kernels cannot be had here, or None."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    try:
        import cuda.core  # noqa: F401
    except ImportError:
        return "cuda-core is not installed"
    return None


@functools.cache
def _module(arch: str) -> Any:
    from cuda.core import ObjectCode, Program, ProgramOptions

    options = ProgramOptions(name=SOURCE.name, arch=arch, std="c++17")
    code = Program(SOURCE.read_text(), "c++", options).compile("cubin").code
    return ObjectCode.from_cubin(bytes(code), name=SOURCE.name)


@functools.cache
def kernel(name: str) -> Any:
    """A kernel of ``affine.cu``, compiled for the current device on first use."""
    major, minor = torch.cuda.get_device_capability()
    torch.cuda.current_stream().synchronize()  # makes torch's context current
    return _module(f"sm_{major}{minor}").get_kernel(name)


def launch(
    name: str,
    grid: int | tuple[int, int],
    *arguments: int | float,
    shared: int = 0,
    stream: int | None = None,
) -> None:
    """Launch on torch's current stream, or on a stream given by its handle (0 is the legacy default stream)."""
    from cuda.core import LaunchConfig
    from cuda.core import launch as start

    handle = torch.cuda.current_stream().cuda_stream if stream is None else stream
    start(_Stream(handle), LaunchConfig(grid=grid, block=THREADS, shmem_size=shared), kernel(name), *arguments)
