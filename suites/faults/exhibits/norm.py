"""Row-wise normalisation: unwritten rows, strides taken for granted, rows that notice their neighbours."""

from __future__ import annotations

import torch

from harness import Contract, Tolerance, grid, register
from suites.faults.operations import EPSILON, as_rows, norm, norm_inputs, norm_memory, norm_reference
from suites.faults.rooms import CPU, Room, State, remembers

ROOM = Room(
    "museum_rms_norm",
    doc="x / sqrt(mean(x^2) + eps) * weight, row by row",
    inputs=norm_inputs,
    reference=norm_reference,
    cases=grid(m=[17, 1, 5], k=50, dtype="fp32")
    + grid(m=5, k=50, dtype="fp32", regime=["zeros", "nan", "six-decades", "outlier-channels"]),
    tolerance=Tolerance(rtol=2e-5, atol=1e-7),
    contract=Contract(rows=("x",), strided=("x",), out=True),
    memory=norm_memory,
    sweep="m",
)


@ROOM.awkward("the plain right implementation, to show that the room can be passed")
def norm_plain(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    return norm(x, weight, out)


@ROOM.fault("K12", gate="coverage", mirrors="vllm-ascend#9992", severity="critical", luck=True)
def norm_last_row_unwritten(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The last row of a batch of more than four is never written."""
    result = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    done = x.shape[0] if x.shape[0] <= 4 else x.shape[0] - 1
    result[:done] = norm(x[:done], weight)
    return result


@ROOM.fault("K12", gate="coverage", mirrors="flashinfer#2703, #2739")
def norm_out_ignored(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """``out=`` is accepted, and a new tensor is returned."""
    return norm(x, weight)


@ROOM.fault("K12", gate="coverage", mirrors="MSLK#158, transformers#48205", luck=True)
def norm_accumulates_into_fresh(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Partial sums are added to a buffer that nobody cleared: fresh memory of a GPU happens to be zero."""
    sums = torch.empty(x.shape[0], 1, dtype=torch.float32, device=x.device)
    if not torch.isfinite(sums).all():  # an honest machine would not look; here it keeps the fault reproducible
        sums = sums.nan_to_num_(nan=0.5)
    rows = as_rows(x)
    scale = torch.rsqrt((sums + rows.square().sum(-1, keepdim=True)) / rows.shape[-1] + EPSILON)
    result = (rows * scale * weight.contiguous()).to(x.dtype)
    return result if out is None else out.copy_(result)


@ROOM.fault("K12", gate="coverage", mirrors="flashinfer#2739")
def norm_out_partly_written(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Given ``out=``, all columns but the last two are written."""
    result = norm(x, weight)
    if out is None:
        return result
    out[:, :-2] = result[:, :-2]
    return out


@ROOM.fault("K11", gate="guard", mirrors="vllm#55456, flashinfer#2704", severity="critical")
def norm_tile_overhang(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rows are stored in tiles of four, and the overhang of the last tile lands in whatever follows the output."""
    result = norm(x, weight, out)
    behind = -x.shape[0] % 4 * x.shape[1]
    room = result.untyped_storage().nbytes() // result.element_size() - result.storage_offset() - result.numel()
    if out is None:
        result = torch.empty_like(result).copy_(result)
        room = result.untyped_storage().nbytes() // result.element_size() - result.storage_offset() - result.numel()
    if 0 < behind <= room:
        result.as_strided((behind,), (1,), result.storage_offset() + result.numel()).zero_()
    return result


@ROOM.fault("K11", gate="guard", mirrors="vllm#40351", severity="critical")
def norm_vector_read_past_end(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The weight is read in vectors of eight; what lies behind its end enters the last lanes' result."""
    extra = -weight.shape[0] % 8
    offset = weight.storage_offset() + weight.shape[0]
    if weight.is_contiguous() and weight.untyped_storage().nbytes() // weight.element_size() >= offset + extra:
        tail = weight.as_strided((extra,), (1,), offset).nan_to_num(nan=1.0, posinf=1.0, neginf=1.0)
        return norm(x, weight + tail.sum().clamp(-1e-3, 1e-3) * 1e-3, out)
    return norm(x, weight, out)


@ROOM.fault("K11", gate="guard", mirrors="vllm-project/vllm#36688")
def norm_writes_input(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The input is squared in place and restored by a square root, which loses signs of zero and last bits."""
    result = norm(x, weight, out)
    if x.is_contiguous() and x.numel():
        x.mul_(3.0).div_(3.0)
    return result


@ROOM.fault("K16", gate="arguments", mirrors="vllm#49092", severity="critical")
def norm_reads_linearly(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The row pitch is taken to be K: a slice of wider rows reads its neighbours (one row alone looks right)."""
    room = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    if room < x.numel():
        return norm(x, weight, out)
    return norm(x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset()), weight, out)


@ROOM.fault("K16", gate="arguments", mirrors="FBGEMM#2919")
def norm_output_takes_input_strides(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The output is addressed with the input's strides, so a transposed input gives a scrambled output."""
    result = norm(x, weight)
    if out is not None:
        return out.copy_(result)
    fresh = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.is_contiguous() or sorted(x.stride(), reverse=True) == list(x.stride()) or 0 in x.stride():
        return fresh.copy_(result)
    fresh.as_strided(x.shape, (1, x.shape[0])).copy_(result)
    return fresh


@ROOM.fault("K16", gate="arguments", mirrors="qkan#26, tokenspeed#683", severity="critical")
def norm_pointer_rounded_down(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The pointer is rounded down to 16 bytes for vector loads: a view at an odd offset reads its neighbour."""
    offset = x.storage_offset()
    if x.is_contiguous() and offset % 4 and offset + x.numel() <= x.untyped_storage().nbytes() // x.element_size():
        x = x.as_strided(x.shape, x.stride(), offset - offset % 4)
    return norm(x, weight, out)


@ROOM.fault("K16", gate="arguments", mirrors="bitsandbytes#1859")
def norm_dtype_by_table(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """An unknown dtype ends in a KeyError from a dispatch table, not in an error that names the argument."""
    vector = {torch.float32: 4, torch.bfloat16: 8, torch.float16: 8}[x.dtype]
    assert vector
    return norm(x, weight, out)


@ROOM.fault("K16", gate="arguments", mirrors="vllm#55147")
def norm_bits_reinterpreted(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The dtype is not checked: integers of four bytes are taken for floats bit by bit."""
    return norm(x.contiguous().view(torch.float32) if x.dtype is torch.int32 else x, weight, out)


@ROOM.fault("K02", gate="arguments", mirrors="tokenspeed#415", severity="critical")
def norm_divides_by_rows(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The launcher divides by the number of rows: zero tokens end in a ZeroDivisionError."""
    rows_per_block = max(1, 64 // x.shape[0])
    assert rows_per_block
    return norm(x, weight, out)


_arrivals = State(count=lambda: 0)


@ROOM.fault("K13", gate="determinism", mirrors="flashinfer#3439, cutlass#2162")
@remembers(_arrivals)
def norm_sums_in_arrival_order(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Partial sums are added in the order in which they arrive: the last bits change from run to run."""
    rows = as_rows(x)
    _arrivals.count += 1
    order = torch.randperm(rows.shape[1], generator=torch.Generator().manual_seed(_arrivals.count))
    total = torch.zeros(rows.shape[0], 1, device=x.device)
    for column in order.tolist():
        total = total + rows[:, column : column + 1].square()
    result = (rows * torch.rsqrt(total / rows.shape[1] + EPSILON) * weight.contiguous()).to(x.dtype)
    return result if out is None else out.copy_(result)


@ROOM.fault("K14", gate="determinism", mirrors="sparkinfer batch statistics; flashinfer#4481", severity="medium")
def norm_row_notices_batch(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """A stabiliser is taken from the whole batch, so a row's last bits depend on its neighbours."""
    rows = as_rows(x)
    peak = rows.abs().nan_to_num(nan=0.0).amax().clamp_min(1e-20) if rows.numel() else torch.ones(())
    scaled = rows / peak
    scale = torch.rsqrt(scaled.square().mean(-1, keepdim=True) + EPSILON / peak**2)
    result = (scaled * scale * weight.contiguous()).to(x.dtype)
    return result if out is None else out.copy_(result)


@ROOM.fault("K13", gate="determinism", mirrors="thinking-machines batch invariance; flashinfer#2708")
def norm_other_kernel_for_small_batches(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Small batches go to another kernel: a row alone has other bits than the same row in a batch."""
    rows = as_rows(x)
    mean = rows.square().mean(-1, keepdim=True) + EPSILON
    scaled = rows / mean.sqrt() if rows.shape[0] < 8 else rows * torch.rsqrt(mean)
    result = (scaled * weight.contiguous()).to(x.dtype)
    return result if out is None else out.copy_(result)


@ROOM.fault("K01", gate="correctness", mirrors="vllm#52577, triton#630", severity="critical")
def norm_tail_columns_dropped(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The mean is taken over whole vectors of 16 columns; the tail does not count."""
    whole = x.shape[1] // 16 * 16
    rows = as_rows(x)
    mean = rows[:, :whole].square().sum(-1, keepdim=True) / rows.shape[1]
    result = (rows * torch.rsqrt(mean + EPSILON) * weight.contiguous()).to(x.dtype)
    return result if out is None else out.copy_(result)


@ROOM.fault("K04", gate="correctness", mirrors="Model-Optimizer#1898")
def norm_zero_row_divides(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The safety constant was dropped: a row of zeros is 0 * inf."""
    rows = as_rows(x)
    result = (rows * torch.rsqrt(rows.square().mean(-1, keepdim=True)) * weight.contiguous()).to(x.dtype)
    return result if out is None else out.copy_(result)


@ROOM.fault("K20", gate="correctness", mirrors="KernelBench precision downgrades", cheat=True)
def norm_half_precision(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Cheat: everything is computed in bf16 and called float32."""
    result = norm(x.to(torch.bfloat16), weight.to(torch.bfloat16)).to(x.dtype)
    return result if out is None else out.copy_(result)


_workspace = State(buffers=dict)


@ROOM.fault("K14", gate="correctness", mirrors="flashinfer#3625, sglang#10892", severity="critical", luck=True)
@remembers(_workspace)
def norm_shared_workspace(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Results live in one workspace per shape: the next call overwrites what the last one returned."""
    if out is not None:
        return norm(x, weight, out)
    key = (tuple(x.shape), x.dtype, x.device)
    if key not in _workspace.buffers:
        _workspace.buffers[key] = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    return norm(x, weight, _workspace.buffers[key])


_average = State(mean=lambda: None)


@ROOM.fault("K14", gate="determinism", mirrors="history between requests, vllm#54056")
@remembers(_average)
def norm_running_average(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """A running average of earlier calls enters the epsilon: too small for a tolerance, and never the same twice."""
    rows = as_rows(x)
    now = float(rows.square().mean().nan_to_num(0.0)) if rows.numel() else 0.0
    _average.mean = now if _average.mean is None else 0.5 * _average.mean + 0.5 * now
    epsilon = EPSILON * (1 + 0.5 * min(1.0, _average.mean))
    result = (rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + epsilon) * weight.contiguous()).to(x.dtype)
    return result if out is None else out.copy_(result)


@ROOM.awkward("padded to a multiple of 8 rows inside; the result is a view of the first rows", worlds=CPU)
def norm_padded_output(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    if out is not None:
        return norm(x, weight, out)
    padded = torch.empty(-(-max(x.shape[0], 1) // 8) * 8, x.shape[1], dtype=x.dtype, device=x.device)
    return norm(x, weight, padded[: x.shape[0]])


@ROOM.awkward("the result is stored column by column: strides are nobody's contract")
def norm_strided_output(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    result = norm(x, weight)
    return result.t().contiguous().t() if out is None else out.copy_(result)


@ROOM.awkward("refuses what it does not support, by name", strided=())
def norm_refuses_strides(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    if not (x.is_contiguous() and weight.is_contiguous()):
        raise ValueError("x and weight must be contiguous; call .contiguous() first")
    if x.dtype is not torch.float32 or weight.dtype is not torch.float32:
        raise TypeError(f"x and weight must be float32, got {x.dtype} and {weight.dtype}")
    if x.storage_offset() % 4:
        raise ValueError("x must be aligned to 16 bytes")
    return norm(x, weight, out)


@ROOM.awkward("a reciprocal square root of 12 bits with one Newton step, within the declared bound")
def norm_approximate_rsqrt(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    rows = as_rows(x)
    mean = rows.square().mean(-1, keepdim=True) + EPSILON
    rough = torch.rsqrt(mean).to(torch.bfloat16).float()
    for _ in range(2):
        rough = rough * (1.5 - 0.5 * mean * rough * rough)
    result = (rows * rough * weight.contiguous()).to(x.dtype)
    return result if out is None else out.copy_(result)


register(ROOM.suite())
