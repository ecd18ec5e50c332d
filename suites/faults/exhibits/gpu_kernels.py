"""Faults that only a GPU can show: CUDA C++ through NVRTC, and what the CUDA runtime does around it."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from harness import Case, Contract, Draw, Inputs, Tolerance, grid, register
from suites.faults import gpu
from suites.faults.operations import affine_inputs, affine_reference
from suites.faults.rooms import GPU, Room, State, remembers

T = torch.Tensor

ROOM = Room(
    "museum_gpu_kernels",
    doc="2 x + y by CUDA kernels",
    inputs=affine_inputs,
    reference=affine_reference,
    cases=grid(m=[37, 1000], k=33, dtype="fp32", worlds=GPU) + grid(m=65540, k=3, dtype="fp32", worlds=GPU),
    tolerance=Tolerance(rtol=1e-6, atol=1e-6),
    contract=Contract(),
)


def _arguments(x: T, y: T) -> tuple[T, int, tuple[int, ...]]:
    """Output, blocks, and the addresses and size that every kernel takes."""
    for name, value in (("x", x), ("y", y)):
        if value.dtype is not torch.float32 or not value.is_cuda or not value.is_contiguous():
            raise ValueError(f"{name} must be a contiguous float32 CUDA tensor")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    blocks = -(-max(1, x.numel()) // gpu.THREADS)
    return out, blocks, (x.data_ptr(), y.data_ptr(), out.data_ptr(), x.numel())


def fault(kind: str, gate: str, mirrors: str, **settings: Any) -> Any:
    return ROOM.fault(kind, gate=gate, mirrors=mirrors, worlds=GPU, requires=gpu.missing, **settings)


@ROOM.awkward("a raw CUDA kernel on the current stream", worlds=GPU, requires=gpu.missing)
def gpu_right(x: T, y: T) -> T:
    out, blocks, arguments = _arguments(x, y)
    gpu.launch("affine_right", blocks, *arguments)
    return out


@fault("K11", "guard", "vllm#55456: tile overhang stored", severity="critical")
def gpu_no_bound(x: T, y: T) -> T:
    """Threads past the last element write as well."""
    out, blocks, arguments = _arguments(x, y)
    gpu.launch("affine_no_bound", blocks, *arguments)
    return out


@fault("K16", "arguments", "qkan#26, tokenspeed#683: misaligned address", severity="critical", may_crash=True)
def gpu_vector_loads(x: T, y: T) -> T:
    """Vectors of 16 bytes are loaded from addresses that need not be aligned to 16 bytes."""
    out, blocks, arguments = _arguments(x, y)
    gpu.launch("affine_vector", -(-blocks // 4), *arguments)
    return out


@fault("K13", "determinism", "flashinfer#3439: __syncwarp for a barrier", severity="critical")
def gpu_no_barrier(x: T, y: T) -> T:
    """Warps exchange values through shared memory with no barrier between them."""
    out, blocks, arguments = _arguments(x, y)
    gpu.launch("affine_no_barrier", blocks, *arguments)
    return out


@fault("K03", "coverage", "sparkinfer#924: grid.y over 65535, return code unchecked", severity="critical")
def gpu_grid_too_tall(x: T, y: T) -> T:
    """One block a row in the grid's second dimension; the error of the launch is swallowed."""
    out, _, arguments = _arguments(x, y)
    with contextlib.suppress(Exception):
        gpu.launch("affine_rows", (1, max(1, x.shape[0])), *arguments[:3], x.shape[1])
    return out


@fault("K03", "coverage", "shared memory over 48 KiB without opting in", severity="critical")
def gpu_shared_memory_not_granted(x: T, y: T) -> T:
    """More shared memory is asked for than is granted without opting in, and the error is swallowed."""
    out, blocks, arguments = _arguments(x, y)
    with contextlib.suppress(Exception):
        gpu.launch("affine_uninitialised", blocks, *arguments, shared=200 << 10)
    return out


@fault("K13", "correctness", "uninitialised shared memory", severity="high")
def gpu_uninitialised_shared(x: T, y: T) -> T:
    """The last element's slot in shared memory is never written."""
    out, blocks, arguments = _arguments(x, y)
    gpu.launch("affine_uninitialised", blocks, *arguments, shared=4 * gpu.THREADS)
    return out


@fault("K17", "correctness", "flashinfer#3858, Cytnx#1171: empty body on this architecture", severity="critical")
def gpu_other_architecture(x: T, y: T) -> T:
    """The kernel's body is compiled for sm_100 and later alone."""
    out, blocks, arguments = _arguments(x, y)
    gpu.launch("affine_sm100", blocks, *arguments)
    return out


@fault("K17", "capture", "tilelang#89, SageAttention#380: legacy default stream", severity="critical")
def gpu_legacy_stream(x: T, y: T) -> T:
    """The kernel is launched on the legacy default stream."""
    out, blocks, arguments = _arguments(x, y)
    gpu.launch("affine_right", blocks, *arguments, stream=0)
    return out


_step = State(count=lambda: 0)


@fault("K09", "determinism", "a host value baked into a graph", severity="critical")
@remembers(_step)
def gpu_step_argument(x: T, y: T) -> T:
    """A counter on the host is a kernel argument."""
    out, blocks, arguments = _arguments(x, y)
    _step.count += 1
    gpu.launch("affine_step", blocks, *arguments, _step.count)
    return out


_freed = State(address=lambda: 0, owner=lambda: None)


@fault("K09", "replay", "vllm#40038: a workspace outside the graph's pool is freed", severity="critical")
@remembers(_freed)
def gpu_stale_workspace(x: T, y: T) -> T:
    """Doubled input goes through a workspace that is dropped after each eager call; a graph keeps its address."""
    out, blocks, _ = _arguments(x, y)
    stage = _freed.owner
    if stage is None or stage.shape != x.shape:
        stage = _freed.owner = torch.empty_like(x)
    stage.copy_(x)
    gpu.launch("affine_right", blocks, stage.data_ptr(), y.data_ptr(), out.data_ptr(), x.numel())
    if not torch.cuda.is_current_stream_capturing():
        return out
    _freed.owner = None
    return out


@fault("K20", "guard", "persisting L2 carve-out", severity="high", cheat=True)
def gpu_persisting_l2(x: T, y: T) -> T:
    """Cheat: half of the L2 cache is set aside, so that operands survive a flush of the rest."""
    from cuda.bindings import runtime

    out, blocks, arguments = _arguments(x, y)
    (status,) = runtime.cudaDeviceSetLimit(runtime.cudaLimit.cudaLimitPersistingL2CacheSize, 16 << 20)
    assert status == runtime.cudaError_t.cudaSuccess
    gpu.launch("affine_right", blocks, *arguments)
    return out


@fault("K20", "capture", "a captured no-op with a kernel of another name", severity="critical", cheat=True)
def gpu_captures_less(x: T, y: T) -> T:
    """Cheat: in a capture, a copy of y stands for the work."""
    out, blocks, arguments = _arguments(x, y)
    if torch.cuda.is_current_stream_capturing():
        return out.copy_(y)
    gpu.launch("affine_right", blocks, *arguments)
    return out


register(ROOM.suite())


PITCH = (1 << 30) + 64


def _far_rows(case: Case, draw: Draw) -> Inputs:
    """Three rows of bytes a gibibyte apart: the offset of the last one does not fit 31 bits."""
    rows, columns = case["m"], case["k"]
    wide = draw.put(torch.zeros(1, dtype=torch.int8)).repeat((rows - 1) * PITCH + columns)
    x = wide.as_strided((rows, columns), (PITCH, 1))
    x.copy_(draw.integers(-100, 100, rows, columns, dtype="i64", name="x"))
    return {"x": x, "y": draw.tensor(rows, columns, dtype="fp32", name="y")}


FAR = Room(
    "museum_gpu_far_rows",
    doc="2 x + y where the rows of x are a gibibyte apart",
    inputs=_far_rows,
    reference=lambda x, y: 2.0 * x.double() + y.double(),
    cases=grid(m=3, k=64, dtype="fp32", worlds=GPU),
    tolerance=Tolerance(rtol=1e-6, atol=1e-6),
)


@FAR.fault(
    "K03",
    gate="correctness",
    mirrors="fla#1080, flashinfer#3005",
    severity="critical",
    worlds=GPU,
    requires=gpu.missing,
)
def gpu_offset_in_32_bits(x: T, y: T) -> T:
    """Offsets are computed in 32 bits: the row past 2^31 bytes reads an earlier one."""
    if x.dtype is not torch.int8 or x.stride(1) != 1 or y.dtype is not torch.float32 or not y.is_contiguous():
        raise ValueError("x must be int8 with rows of stride 1, y contiguous float32")
    out = torch.empty(x.shape, device=x.device)
    blocks = -(-x.numel() // gpu.THREADS)
    gpu.launch("affine_pitch32", blocks, x.data_ptr(), y.data_ptr(), out.data_ptr(), *x.shape, x.stride(0))
    return out


register(FAR.suite())
