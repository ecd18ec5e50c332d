"""The CUDA kernels of this package: compiled by NVRTC, loaded once a device.

NVRTC is a library (the `nvidia-cuda-nvrtc` wheel, or the one that CUDA builds of torch bring), so neither a CUDA
toolkit nor a host compiler is needed, and compiling needs no GPU. Compilation goes to machine code for the very
architecture: PTX would leave the driver to compile it at load time, out of sight.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_name("sparse_topk_metadata.cu")
KERNEL_NAMES = ("c128a_topk_metadata", "c4a_global_topk")
MAX_GRID_X = 2**31 - 1


@dataclass(frozen=True)
class SparseKernels:
    """The loaded kernels of one device (cuda.core.Kernel)."""

    c128a_topk_metadata: Any
    c4a_global_topk: Any


@dataclass(frozen=True, slots=True)
class _StreamHandle:
    """A stream of torch in cuda.core's protocol; `Stream.from_handle` would make a class at every launch."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


_loaded: dict[int, SparseKernels] = {}
_lock = threading.Lock()


@cache
def compile_cubin(arch: str) -> bytes:
    """Machine code of the kernels for `arch`, for example "sm_90a". Needs no GPU.

    Raises:
        RuntimeError: NVRTC is not installed.
    """
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise RuntimeError("cuda.core is missing: pip install cuda-core nvidia-cuda-nvrtc") from error
    options = ProgramOptions(name=SOURCE.name, arch=arch, std="c++17", lineinfo=True)
    try:
        return bytes(Program(SOURCE.read_text(), "c++", options).compile("cubin").code)
    except Exception as error:
        if "libnvrtc" in str(error):
            raise RuntimeError("libnvrtc is missing: pip install 'nvidia-cuda-nvrtc>=13,<14'") from error
        raise


def arch_of(device: torch.device) -> str:
    """The architecture to compile for. From Hopper on, the architecture-specific one ("sm_90a")."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def warmup_sparse_kernels(device: torch.device | str | int = "cuda") -> None:
    """Compile, load and launch the kernels once on `device`. Call it before the first graph capture.

    The first eager call of a metadata function does the same. Idempotent and safe from several threads.
    """
    _load(_with_index(torch.device("cuda", device) if isinstance(device, int) else torch.device(device)))


def kernels_for(device: torch.device) -> SparseKernels:
    """The kernels of `device`, loaded on first use.

    Raises:
        RuntimeError: the first use is inside a graph capture, where nothing may be compiled or loaded.
    """
    device = _with_index(device)
    found = _loaded.get(device.index)
    if found is not None:
        return found
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"the sparse metadata kernels are not loaded on {device}, and a graph capture is under way; "
            f"call kernels.sparse.warmup_sparse_kernels('{device}') before the capture"
        )
    return _load(device)


def launch(kernel: Any, device: torch.device, blocks: int, threads: int, *arguments: int) -> None:
    """Launch on torch's current stream of `device`. Arguments are 64-bit integers and addresses."""
    from cuda.core import LaunchConfig
    from cuda.core import launch as cuda_launch

    if blocks > MAX_GRID_X:
        raise ValueError(f"expected at most {MAX_GRID_X} blocks, got {blocks}; split the batch")
    with torch.cuda.device(device):
        stream = _StreamHandle(torch.cuda.current_stream(device).cuda_stream)
        cuda_launch(stream, LaunchConfig(grid=blocks, block=threads), kernel, *arguments)


def _with_index(device: torch.device) -> torch.device:
    if device.type != "cuda":
        raise ValueError(f"expected a CUDA device, got {device}; the torch implementation serves the others")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def _load(device: torch.device) -> SparseKernels:
    from cuda.core import ObjectCode

    with _lock:
        if device.index in _loaded:
            return _loaded[device.index]
        with torch.cuda.device(device):
            torch.cuda.current_stream(device).synchronize()  # makes torch's context of this device current
            module = ObjectCode.from_cubin(compile_cubin(arch_of(device)), name=SOURCE.name)
            kernels = SparseKernels(**{name: module.get_kernel(name) for name in KERNEL_NAMES})
            # The driver loads functions lazily, at the first launch. A launch over zero tokens brings that forward.
            launch(kernels.c128a_topk_metadata, device, 1, 32, *(0,) * 17, 1, 0, 1, 0, 1, 0)
            launch(kernels.c4a_global_topk, device, 1, 32, *(0,) * 16)
            torch.cuda.current_stream(device).synchronize()
        _loaded[device.index] = kernels
        return kernels
