"""Operations that are right and unusual: views as results, overflow by contract, several outputs, seeds as inputs."""

from __future__ import annotations

import concurrent.futures
import functools
from typing import Any

import torch

from harness import Case, Contract, Draw, Inputs, Tolerance, grid, register
from suites.faults.rooms import ALL, CPU, Room, State, remembers

T = torch.Tensor


# -- views of an input


def _halves(case: Case, draw: Draw) -> Inputs:
    return {"x": draw.tensor(case["m"], 2 * case["n"])}


SPLIT = Room(
    "museum_split",
    doc="the two halves of each row, bit by bit",
    inputs=_halves,
    reference=lambda x: tuple(part.clone() for part in x.chunk(2, dim=-1)),
    outputs=("gate", "up"),
    cases=grid(m=[0, 1, 7], n=12, dtype="bf16") + grid(m=7, n=12, dtype="fp32", regime=["nan", "inf", "signed-zeros"]),
    contract=Contract(strided=("x",)),
)


@SPLIT.awkward("both results are views of the input, and nothing is launched at all", worlds=ALL)
def split_views(x: T) -> tuple[T, T]:
    n = x.shape[-1] // 2
    return x[:, :n], x[:, n:]


@SPLIT.awkward("one result is a view, the other a copy", worlds=ALL)
def split_view_and_copy(x: T) -> tuple[T, T]:
    n = x.shape[-1] // 2
    return x[:, :n], x[:, n:].clone()


@SPLIT.awkward("both results live in one buffer, side by side", worlds=ALL)
def split_one_buffer(x: T) -> tuple[T, T]:
    both = torch.empty(2, x.shape[0], x.shape[1] // 2, dtype=x.dtype, device=x.device)
    both[0], both[1] = x.chunk(2, dim=-1)
    return both[0], both[1]


@SPLIT.awkward("results are returned as a list", worlds=ALL)
def split_list(x: T) -> list[T]:
    return [part.contiguous() for part in x.chunk(2, dim=-1)]


register(SPLIT.suite())


# -- several outputs of different kinds


def _rows(case: Case, draw: Draw) -> Inputs:
    return {"x": draw.tensor(case["m"], case["k"])}


def _statistics(x: T) -> tuple[T, ...]:
    """Largest magnitude of all, index of each row's first largest value, and which values are negative."""
    magnitude = torch.tensor(
        max((abs(v) for row in x.double().tolist() for v in row), default=0.0), dtype=torch.float32
    )
    where = [max(range(len(row)), key=lambda i: (row[i], -i)) for row in x.double().tolist()]
    return magnitude.to(x.device), torch.tensor(where, dtype=torch.int64, device=x.device), x.double() < 0


STATISTICS = Room(
    "museum_statistics",
    doc="a 0-d float, an index per row and a mask",
    inputs=_rows,
    reference=_statistics,
    outputs=("amax", "argmax", "negative"),
    cases=grid(m=[1, 6], k=33, dtype="fp32") + grid(m=6, k=33, dtype="bf16", regime=["normal", "constant", "zeros"]),
    tolerance=Tolerance.bitwise(),
)


def _first_largest(x: T) -> T:
    column = torch.arange(x.shape[-1], device=x.device)
    return torch.where(x == x.amax(-1, keepdim=True), column, x.shape[-1]).amin(-1)


@STATISTICS.awkward("a 0-d result, an integer and a boolean one", worlds=ALL)
def statistics_plain(x: T) -> tuple[T, T, T]:
    _floating(x)
    return x.float().abs().amax(), _first_largest(x), x < 0


@STATISTICS.awkward("computed by numpy on the CPU", worlds=("cpu",))
def statistics_numpy(x: T) -> tuple[T, T, T]:
    _floating(x)
    values = x.float().numpy()
    return (
        torch.from_numpy(abs(values).max(keepdims=True)).reshape(()),
        torch.from_numpy(values.argmax(-1)),
        torch.from_numpy(values < 0),
    )


@STATISTICS.awkward("row by row in Python, on a small pool of threads that stays alive", worlds=("cpu",))
def statistics_thread_pool(x: T) -> tuple[T, T, T]:
    _floating(x)
    rows = list(_pool().map(lambda row: (row.float().abs().amax(), _first_largest(row), row < 0), x.unbind(0)))
    amax, argmax, negative = zip(*rows, strict=True)
    return torch.stack(amax).amax(), torch.stack(argmax), torch.stack(negative)


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(2)


register(STATISTICS.suite())


# -- values at the edge of the range


HUGE = Room(
    "museum_huge",
    doc="4 x in float32, where much of it overflows to infinity by contract",
    inputs=_rows,
    reference=lambda x: (x.float() * 4).double(),
    cases=grid(m=5, k=33, dtype="fp32", regime=["normal", "huge", "subnormals", "inf", "nan", "signed-zeros"])
    + grid(m=[0, 5], k=33, dtype="bf16", regime=["huge", "normal"]),
    tolerance=Tolerance(rtol=1e-6),
    contract=Contract(rows=("x",), strided=("x",), out=True),
)


@HUGE.awkward("infinities, NaN and subnormal values in the right places", worlds=ALL)
def huge_plain(x: T, out: T | None = None) -> T:
    _floating(x)
    result = x.float() * 4
    return result if out is None else out.copy_(result)


@HUGE.awkward("switches settings of the process, and puts them back", worlds=CPU)
def huge_settings_restored(x: T, out: T | None = None) -> T:
    _floating(x)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        result = x.float() * 4
    finally:
        torch.set_default_dtype(before)
    return result if out is None else out.copy_(result)


@HUGE.awkward("a random state of its own, forked from the global one", worlds=CPU)
def huge_forks_rng(x: T, out: T | None = None) -> T:
    _floating(x)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        order = torch.randperm(x.shape[0])
    result = torch.empty(x.shape, device=x.device)
    result[order] = x[order].float() * 4
    return result if out is None else out.copy_(result)


@HUGE.awkward("works in a slice of a larger buffer, with an offset", worlds=ALL)
def huge_offset_output(x: T, out: T | None = None) -> T:
    _floating(x)
    if out is not None:
        return out.copy_(x.float() * 4)
    buffer = torch.empty(x.numel() + 5, device=x.device)
    return buffer[5:].view(x.shape).copy_(x.float() * 4)


@HUGE.awkward("expects nothing of strides and returns those of its input", worlds=ALL)
def huge_preserves_strides(x: T, out: T | None = None) -> T:
    _floating(x)
    if out is not None:
        return out.copy_(x.float() * 4)
    return torch.empty_like(x, dtype=torch.float32).copy_(x.float() * 4)


register(HUGE.suite())


# -- one value for many: a result with stride 0


BROADCAST = Room(
    "museum_broadcast",
    doc="the mean of each column, for every row",
    inputs=_rows,
    reference=lambda x: (x.double().sum(0, keepdim=True) / x.shape[0]).expand(x.shape),
    cases=grid(m=[1, 8], k=[1, 16], dtype="fp32"),
    tolerance=Tolerance(rtol=1e-5, atol=1e-6),
)


@BROADCAST.awkward("the result has stride 0 along its rows", worlds=ALL)
def broadcast_expanded(x: T) -> T:
    _floating(x)
    return x.contiguous().float().mean(0, keepdim=True).expand(x.shape)


@BROADCAST.awkward("equal rows, each in memory of its own", worlds=ALL)
def broadcast_copied(x: T) -> T:
    _floating(x)
    return x.contiguous().float().mean(0, keepdim=True).repeat(x.shape[0], 1)


register(BROADCAST.suite())


# -- random numbers whose seed is an argument


def _dropout(case: Case, draw: Draw) -> Inputs:
    return {"x": draw.tensor(case["m"], case["k"]), "seed": draw.integers(0, 1 << 20, 1, dtype="i64", name="seed")}


def _keeps(seed: Any, index: Any) -> Any:
    """A counter-based generator: a hash of seed and element number, three quarters of which say yes."""
    return ((seed * 2654435761 + index * 40503 + 12345) >> 7) % 4 != 0


def _dropout_reference(x: T, seed: T) -> T:
    start = int(seed)
    kept = [bool(_keeps(start, index)) for index in range(x.numel())]
    return torch.where(torch.tensor(kept, device=x.device).reshape(x.shape), x.double() / 0.75, 0.0)


DROPOUT = Room(
    "museum_dropout",
    doc="dropout by a counter-based generator; the seed is on the device",
    inputs=_dropout,
    reference=_dropout_reference,
    cases=grid(m=[4, 9], k=20, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-6),
)


@DROPOUT.awkward("random by contract and the same for one seed; safe in a graph", worlds=ALL)
def dropout_counter_based(x: T, seed: T) -> T:
    _floating(x)
    if seed.dtype is not torch.int64:
        raise TypeError(f"seed must be int64, got {seed.dtype}")
    index = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    return torch.where(_keeps(seed, index), x / 0.75, 0.0)


_masks = State(masks=dict)


@DROPOUT.awkward("the element numbers are made once for each shape and kept", worlds=ALL)
@remembers(_masks)
def dropout_cached_counter(x: T, seed: T) -> T:
    _floating(x)
    if seed.dtype is not torch.int64:
        raise TypeError(f"seed must be int64, got {seed.dtype}")
    key = (x.shape, x.device)
    if key not in _masks.masks:
        _masks.masks[key] = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    return torch.where(_keeps(seed, _masks.masks[key]), x / 0.75, 0.0)


register(DROPOUT.suite())


def _floating(x: T) -> None:
    if not x.is_floating_point():
        raise TypeError(f"x must be floating-point, got {x.dtype}")
