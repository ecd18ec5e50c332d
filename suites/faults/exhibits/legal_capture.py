"""What looks dangerous in a CUDA graph and is not: tables made once, side streams joined, fixed-size masks."""

from __future__ import annotations

import threading

import torch

from harness import Contract, Tolerance, grid, register
from suites.faults.operations import affine, affine_inputs, affine_memory, affine_reference
from suites.faults.rooms import CAPTURE, CPU, Room, State, remembers

ROOM = Room(
    "museum_legal_capture",
    doc="2 x + y inside a CUDA graph, in legal ways",
    inputs=affine_inputs,
    reference=affine_reference,
    cases=grid(m=64, k=256, dtype="fp32"),
    tolerance=Tolerance(rtol=1e-6, atol=1e-6),
    contract=Contract(),
    memory=lambda case: 3 * affine_memory(case),
)
T = torch.Tensor


def _right(x: T, y: T) -> T:
    if not (x.is_floating_point() and x.dtype == y.dtype):
        raise TypeError("x and y must be floating-point and of one dtype")
    return affine(x, y)


_table = State(tables=dict)


@ROOM.awkward("a table made on the first call and kept: warm-up work, by device")
@remembers(_table)
def legal_table_once(x: T, y: T) -> T:
    _right(x[:0], y[:0])
    if x.device not in _table.tables:
        _table.tables[x.device] = torch.tensor([2.0, 1.0], device=x.device)
    return x * _table.tables[x.device][0].to(x.dtype) + y


@ROOM.awkward("constants by torch.full and arange: kernels, not copies")
def legal_full(x: T, y: T) -> T:
    _right(x[:0], y[:0])
    return x * torch.full((), 2.0, device=x.device, dtype=x.dtype) + y


@ROOM.awkward("a side stream, forked by an event and joined before the end", worlds=CAPTURE)
def legal_side_stream(x: T, y: T) -> T:
    _right(x[:0], y[:0])
    side, ready, done = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
    ready.record()
    side.wait_event(ready)
    with torch.cuda.stream(side):
        twice = 2 * x
        done.record()
    torch.cuda.current_stream().wait_event(done)
    return twice + y


@ROOM.awkward("a boolean mask applied by torch.where: the shape is fixed")
def legal_where_mask(x: T, y: T) -> T:
    out = _right(x, y)
    return torch.where(x == x, out, out)


@ROOM.awkward("y[mask] = scalar is a masked fill, which does not synchronise")
def legal_masked_fill(x: T, y: T) -> T:
    out = _right(x, y).clone()
    out[out != out] = float("nan")
    return out


@ROOM.awkward("random numbers of the default generator, which a capture registers; no effect on the result")
def legal_default_rng(x: T, y: T) -> T:
    return _right(x, y) + 0.0 * torch.rand(x.shape, device=x.device)


@ROOM.awkward("branches on shapes and dtypes, which a graph fixes anyway")
def legal_branch_on_shape(x: T, y: T) -> T:
    _right(x[:0], y[:0])
    return torch.add(y, x, alpha=2) if x.shape[0] % 2 else 2 * x + y


_tuned = State(choice=dict)


@ROOM.awkward("autotuned at the first call of a shape, on scratch copies; the choice is kept")
@remembers(_tuned)
def legal_autotuned(x: T, y: T) -> T:
    key = (x.shape, x.dtype, x.device)
    if key not in _tuned.choice:
        candidates = (_right, lambda a, b: torch.add(b, a, alpha=2))
        for candidate in candidates:
            candidate(x.clone(), y.clone())
        _tuned.choice[key] = candidates[0]
    return _tuned.choice[key](x, y)


_kept = State(buffers=dict)


@ROOM.awkward("a workspace per shape, made in the warm-up and never replaced; results are fresh")
@remembers(_kept)
def legal_persistent_workspace(x: T, y: T) -> T:
    _right(x[:0], y[:0])
    key = (x.shape, x.dtype, x.device, threading.get_ident())
    if key not in _kept.buffers:
        _kept.buffers[key] = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.mul(x, 2, out=_kept.buffers[key])
    return _kept.buffers[key] + y


_compiled = State(done=set)


@ROOM.awkward("compiled once for each dtype, at the first call", max_compiles=8)
@remembers(_compiled)
def legal_compiles_once(x: T, y: T) -> T:
    import sys

    _right(x[:0], y[:0])
    if (x.dtype, x.device.type) not in _compiled.done:
        sys.audit("gpu.compile", f"affine for {x.dtype}")
        _compiled.done.add((x.dtype, x.device.type))
    return affine(x, y)


@ROOM.awkward("waits for a pinned copy made in the warm-up: nothing in the call itself", worlds=CAPTURE)
@remembers(_table)
def legal_pinned_once(x: T, y: T) -> T:
    _right(x[:0], y[:0])
    key = (x.dtype, x.device, "pinned")
    if key not in _table.tables:
        _table.tables[key] = torch.tensor([2.0], dtype=x.dtype).pin_memory().to(x.device, non_blocking=True)
    return x * _table.tables[key] + y


@ROOM.awkward("counts its calls for a statistic that never reaches the device")
def legal_counts_calls(x: T, y: T) -> T:
    _statistics["calls"] = _statistics.get("calls", 0) + 1
    return _right(x, y)


_statistics: dict[str, int] = {}


@ROOM.awkward("declared not capturable, and it is not: the host reads a value", capturable=False)
def legal_declared_host_read(x: T, y: T) -> T:
    out = _right(x, y)
    return out if bool((out == out).any()) or not out.numel() else out.clone()


@ROOM.awkward("topk and sort along a fixed size, gathers by index: all shapes known")
def legal_sort_and_undo(x: T, y: T) -> T:
    out = _right(x, y)
    order = out.argsort(dim=-1, stable=True)
    return torch.empty_like(out).scatter_(-1, order, out.gather(-1, order))


@ROOM.awkward("the sum of counts by cumsum with a declared output size")
def legal_repeat_with_size(x: T, y: T) -> T:
    _right(x[:0], y[:0])
    counts = torch.ones(x.shape[0], dtype=torch.int64, device=x.device)
    rows = torch.repeat_interleave(torch.arange(x.shape[0], device=x.device), counts, output_size=x.shape[0])
    return affine(x.index_select(0, rows), y)


@ROOM.awkward("chunks of rows through one scratch buffer, written with out=")
def legal_chunks(x: T, y: T) -> T:
    _right(x[:0], y[:0])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for start in range(0, x.shape[0], 16):
        rows = slice(start, start + 16)
        torch.add(y[rows], x[rows], alpha=2, out=out[rows])
    return out


@ROOM.awkward("the result in a workspace of its own, overwritten by the next call, as declared", reuses_output=True)
@remembers(_kept)
def legal_reused_output(x: T, y: T) -> T:
    _right(x[:0], y[:0])
    key = (x.shape, x.dtype, x.device, "out")
    if key not in _kept.buffers:
        _kept.buffers[key] = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    return _kept.buffers[key].copy_(affine(x, y))


@ROOM.awkward("memory taken from and returned to a pool of its own within the call", worlds=CPU)
def legal_private_pool(x: T, y: T) -> T:
    scratch = torch.empty(2 * x.numel(), dtype=torch.float32, device=x.device)
    first = scratch[: x.numel()].view(x.shape)
    _right(x[:0], y[:0])
    first.copy_(2 * x)
    return (first + y).to(x.dtype)


register(ROOM.suite())
