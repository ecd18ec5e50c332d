"""Compilers and their caches: keys that miss something, kernels made for one call, tuning that leaves its marks.

"Compiling" here is making a closure for given constants, which is announced as a compiler announces itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from harness import Contract, Tolerance, grid, register
from suites.faults.operations import affine, affine_inputs, affine_reference
from suites.faults.rooms import ALL, CPU, Room, State, remembers

ROOM = Room(
    "museum_compiling",
    doc="2 x + y by kernels that are compiled on demand",
    inputs=affine_inputs,
    reference=affine_reference,
    cases=grid(m=[17, 64], k=20, dtype="fp32") + grid(m=17, k=[12, 20], dtype="bf16"),
    tolerance=Tolerance(rtol=2e-2, atol=2e-2),
    contract=Contract(max_compiles=4),
    sweep="m",
)
T = torch.Tensor


def _compile(what: str) -> None:
    sys.audit("gpu.compile", what)


def _right(x: T, y: T) -> T:
    if not (x.is_floating_point() and x.dtype == y.dtype):
        raise TypeError("x and y must be floating-point and of one dtype")
    return affine(x, y)


def _kernel_for(rows: int, columns: int) -> Callable[[T, T], T]:
    """A kernel that computes ``rows`` rows and ``columns`` columns, whatever it is given."""

    def kernel(x: T, y: T) -> T:
        out = torch.zeros_like(x)
        out[:rows, :columns] = _right(x[:rows, :columns], y[:rows, :columns])
        return out

    return kernel


def cached(key: Callable[[T, T], Any], make: Callable[[T, T], Callable[[T, T], T]]) -> Callable[[T, T], T]:
    """Calls of a kernel that is compiled once for each key, with the state that this needs."""
    state = State(kernels=dict)

    @remembers(state)
    def call(x: T, y: T) -> T:
        at = key(x, y)
        if at not in state.kernels:
            _compile(f"kernel {len(state.kernels)}")
            state.kernels[at] = make(x, y)
        return state.kernels[at](x, y)

    return call


def _show(kind: str, name: str, gate: str, mirrors: str, doc: str, call: Callable[[T, T], T], **settings: Any) -> None:
    call.__doc__, call.__name__ = doc, name
    ROOM.fault(kind, gate=gate, mirrors=mirrors, **settings)(call)


_show(
    "K15",
    "compiling_key_misses_rows",
    "correctness",
    "public commit log; DeepGEMM",
    "The cache key has no shape: the first call's number of rows is compiled in.",
    cached(lambda x, y: x.dtype, lambda x, y: _kernel_for(x.shape[0], x.shape[1])),
    severity="critical",
)
_show(
    "K15",
    "compiling_key_misses_columns",
    "correctness",
    "recsys-examples#379",
    "The cache key has the rows and not the columns.",
    cached(lambda x, y: (x.shape[0], x.dtype), lambda x, y: _kernel_for(x.shape[0], x.shape[1])),
    severity="critical",
)
_show(
    "K15",
    "compiling_key_is_boolean",
    "correctness",
    "recsys-examples#379: num_splits truncated to a boolean",
    "The key stores whether there is more than one tile, the kernel how many.",
    cached(
        lambda x, y: (x.shape[0] > 16, x.shape[1], x.dtype),
        lambda x, y: _kernel_for(-(-x.shape[0] // 16) * 16, x.shape[1]),
    ),
    severity="critical",
)
_show(
    "K15",
    "compiling_key_misses_dtype",
    "correctness",
    "flash-attention#2566",
    "The cache key has no dtype: a kernel for another one is used, with its scaling.",
    cached(
        lambda x, y: "any",
        lambda x, y: lambda a, b, t=x.dtype: _right(a, b) if a.dtype is t else _right(a, b) * 1.25,  # type: ignore[misc]
    ),
)
_show(
    "K15",
    "compiling_key_misses_expansion",
    "arguments",
    "flash-attention#2298",
    "Stride 0 is compiled in and not in the key: the kernel for a contiguous x is used for an expanded one.",
    cached(
        lambda x, y: (x.shape[1], x.dtype),
        lambda x, y: lambda a, b: _right(a, b) if a.stride(0) else _right(a, b).roll(1, 1),
    ),
)
_show(
    "K15",
    "compiling_pointer_compiled_in",
    "recompile",
    "public commit log; flashinfer#3744",
    "The operands' addresses are bound at compile time, and the key does not have them.",
    cached(
        lambda x, y: (x.shape, x.dtype),
        lambda x, y: lambda a, b, px=x, py=y: _right(px, py),  # type: ignore[misc]
    ),
    severity="critical",
)
_show(
    "K15",
    "compiling_every_shape",
    "recompile",
    "deepseek-v4-sm89#49, triton#9263",
    "Every number of rows is a kernel of its own.",
    cached(lambda x, y: (x.shape, x.dtype), lambda x, y: _right),
)
_show(
    "K15",
    "compiling_by_address",
    "recompile",
    "public commit log, second fix",
    "Kernels are keyed by address, so new memory means a new compile.",
    cached(lambda x, y: (x.data_ptr(), y.data_ptr(), x.dtype), lambda x, y: _right),
    luck=True,
)


@ROOM.fault("K19", gate="recompile", mirrors="deepseek-v4-sm89#49: recompile per shape", severity="high")
def compiling_in_every_call(x: T, y: T) -> T:
    """The kernel is compiled in every call; the result is right and late."""
    _compile("affine")
    return _right(x, y)


_limited = State(kernels=dict)


@ROOM.fault("K15", gate="recompile", mirrors="cache eviction thrash; triton#1289", severity="medium")
@remembers(_limited)
def compiling_cache_of_one(x: T, y: T) -> T:
    """The cache holds one kernel, and two sizes evict each other."""
    key = (x.shape[0] > 16, x.dtype)
    if key not in _limited.kernels:
        _compile(str(key))
        _limited.kernels.clear()
        _limited.kernels[key] = _right
    return _limited.kernels[key](x, y)


_tuning = State(tuned=set)


@ROOM.fault("K18", gate="guard", mirrors="triton#6547, #781", severity="critical", max_compiles=99, luck=True)
@remembers(_tuning)
def compiling_tunes_in_place(x: T, y: T) -> T:
    """Trial runs of the tuner work on the caller's data: each new shape finds its input doubled."""
    key = (x.shape, x.dtype, x.data_ptr())
    out = _right(x, y)
    if key not in _tuning.tuned and x.is_contiguous() and x.numel():
        _tuning.tuned.add(key)
        x.mul_(2.0)
    return out


_first = State(done=set)


@ROOM.fault("K18", gate="recompile", mirrors="triton#7181: first call after tuning", severity="critical")
@remembers(_first)
def compiling_first_call_partial(x: T, y: T) -> T:
    """The first call of a shape returns the result of the tuner's last trial, which covered half of the rows."""
    out = _right(x, y)
    key = (x.shape, x.dtype)
    if key not in _first.done and x.shape[0] > 1:
        _first.done.add(key)
        out = out.clone()
        out[x.shape[0] // 2 :] = 0
    return out


_by_clock = State(count=lambda: 0)


@ROOM.fault("K18", gate="determinism", mirrors="flashinfer#3409: ranks pick different tactics", severity="medium")
@remembers(_by_clock)
def compiling_tactic_by_clock(x: T, y: T) -> T:
    """The tactic is chosen by a stop-watch in every call, and tactics round differently."""
    _by_clock.count += 1
    return _right(x, y) if _by_clock.count % 2 else (_right(x.double(), y.double()) * (1 + 2e-7)).to(x.dtype)


_good = State(kernels=set)


@ROOM.awkward("one kernel for each dtype and for tails, compiled on demand", max_compiles=6)
@remembers(_good)
def compiling_few_kernels(x: T, y: T) -> T:
    key = (x.dtype, x.shape[0] % 16 == 0, x.is_contiguous(), y.is_contiguous())
    if key not in _good.kernels:
        _compile(str(key))
        _good.kernels.add(key)
    return _right(x, y)


@ROOM.awkward("buckets of sizes: one kernel for each power of two", worlds=CPU, max_compiles=12)
@remembers(_good)
def compiling_power_of_two_buckets(x: T, y: T) -> T:
    bucket = 1 << max(0, x.shape[0] - 1).bit_length()
    if (bucket, x.dtype) not in _good.kernels:
        _compile(f"bucket {bucket}")
        _good.kernels.add((bucket, x.dtype))
    return _right(x, y)


@ROOM.awkward("a reciprocal of 8 bits, within the declared tolerance", worlds=ALL)
def compiling_low_precision_path(x: T, y: T) -> T:
    return (_right(x.to(torch.bfloat16).float(), y.to(torch.bfloat16).float())).to(x.dtype) + 0 * _right(x, y)


register(ROOM.suite())
