"""Sizes past a limit: grids cut off, offsets that wrap, errors that nobody reads. And what ends a process."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

import torch

from harness import Contract, Tolerance, grid, register
from suites.faults.operations import affine, affine_inputs, affine_reference
from suites.faults.rooms import CPU, Room, State, remembers

T = torch.Tensor

ROOM = Room(
    "museum_limits",
    doc="2 x + y for more rows than a grid has blocks",
    inputs=affine_inputs,
    reference=affine_reference,
    cases=grid(m=[3, 65537], k=3, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-6, atol=1e-6),
    contract=Contract(),
    timeout_s=30.0,
)
GRID = 65535


def _right(x: T, y: T) -> T:
    if not (x.is_floating_point() and x.dtype == y.dtype):
        raise TypeError("x and y must be floating-point and of one dtype")
    return affine(x, y)


@ROOM.awkward("more rows than one grid holds, in several launches", worlds=CPU)
def limits_several_launches(x: T, y: T) -> T:
    _right(x[:0], y[:0])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for start in range(0, x.shape[0], GRID):
        rows = slice(start, start + GRID)
        out[rows] = affine(x[rows], y[rows])
    return out


@ROOM.awkward("refuses more rows than it can launch, clearly", worlds=CPU, name="limits_refusal_of_dtype")
def limits_refusal(x: T, y: T) -> T:
    if x.dtype is not torch.float32 or y.dtype is not torch.float32:
        raise NotImplementedError(f"built for float32 alone, got {x.dtype} and {y.dtype}")
    return affine(x, y)


@ROOM.fault("K03", gate="coverage", mirrors="sparkinfer#924", severity="critical", luck=True)
def limits_launch_error_ignored(x: T, y: T) -> T:
    """More rows than a grid has blocks: the launch fails, nobody looks, and the output stays as it was."""
    out = torch.empty_like(_right(x, y))
    if x.shape[0] <= GRID:
        out.copy_(affine(x, y))
    return out


@ROOM.fault("K03", gate="correctness", mirrors="FreeToken#186, mlx#2267", severity="critical")
def limits_rows_cut_off(x: T, y: T) -> T:
    """The grid is cut off at its limit, and the rows beyond it are zero."""
    out = torch.zeros_like(_right(x, y))
    out[:GRID] = affine(x[:GRID], y[:GRID])
    return out


@ROOM.fault("K03", gate="correctness", mirrors="fla#1080, flashinfer#3005", severity="critical")
def limits_offset_wraps(x: T, y: T) -> T:
    """Row numbers are held in 16 bits: row 65536 reads row 0."""
    rows = torch.arange(x.shape[0], device=x.device) & 0xFFFF
    return _right(x, y)[rows]


@ROOM.fault("K03", gate="correctness", mirrors="offsets in float32 past 2^24; here bf16 past 256", severity="high")
def limits_offset_in_floats(x: T, y: T) -> T:
    """Row numbers pass through a float type that cannot hold them all."""
    rows = torch.arange(x.shape[0], device=x.device, dtype=torch.float32).to(torch.float16).float()
    return _right(x, y)[rows.clamp(max=x.shape[0] - 1).long()]


_sizes = State(last=lambda: 0)


@ROOM.fault("K03", gate="correctness", mirrors="DeepJIT#15: shared memory opt-in", severity="high")
@remembers(_sizes)
def limits_big_after_small(x: T, y: T) -> T:
    """A large launch after a small one fails for want of shared memory, and the result is zero."""
    small = 0 < _sizes.last < 100 < x.shape[0]
    _sizes.last = x.shape[0]
    out = _right(x, y)
    return torch.zeros_like(out) if small else out


CRASHES: dict[str, Any] = {"may_crash": True, "only": ("correctness",)}


@ROOM.fault(
    "K02", gate="correctness", mirrors="tokenspeed#415: SIGFPE without a traceback", severity="critical", **CRASHES
)
def limits_kills_process(x: T, y: T) -> T:
    """The process dies of a signal, and the rest of the test run with it."""
    os.kill(os.getpid(), 8)
    return affine(x, y)


@ROOM.fault("K20", gate="correctness", mirrors="exit code 0 by design", severity="critical", cheat=True, **CRASHES)
def limits_exits_green(x: T, y: T) -> T:
    """Cheat: the process ends itself with exit code 0, as if all had passed."""
    sys.stdout.flush()
    os._exit(0)


@ROOM.fault("K11", gate="correctness", mirrors="misaligned address kills the context", severity="critical", **CRASHES)
def limits_segfault(x: T, y: T) -> T:
    """An address that belongs to nobody is read."""
    ctypes.string_at(8, 8)
    return affine(x, y)


register(ROOM.suite())

HANGS = Room(
    "museum_hangs",
    doc="2 x + y, with little patience",
    inputs=affine_inputs,
    reference=affine_reference,
    cases=grid(m=3, k=3, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-6, atol=1e-6),
    timeout_s=12.0,
)


@HANGS.fault(
    "K22",
    gate="correctness",
    mirrors="DeepGEMM#103: hang on -1",
    severity="critical",
    may_crash=True,
    only=("correctness",),
)
def hangs_for_ever(x: T, y: T) -> T:
    """The call never ends: a barrier that one block does not reach."""
    while True:
        time.sleep(1)


register(HANGS.suite())
